//! The canary requests of one backend.

use crate::answer::{CanaryAnswer, CanaryResult};
use crate::rows::CanaryStatus;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::TokenCounts;
use tokenweir_gateway::backend::Backend;
use tokenweir_gateway::backend::facets::{BackendFacet, BackendTargets};
use tokenweir_gateway::status::StatusBlocks;
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;

/// The canary requests of one backend.
#[derive(Debug, Default)]
pub(crate) struct CanaryFacet(Mutex<CanaryHistory>);

/// The results of the canary requests so far.
#[derive(Debug, Default)]
struct CanaryHistory {
    /// The last canary request. `None`: the option is off, or no canary request has ended.
    last: Option<LastCanary>,
    /// The open silence of the backend. `None`: the last canary request did not time out, or the backend has
    /// worked since.
    silence: Option<Silence>,
    counts: BTreeMap<CanaryResult, u64>,
}

/// The last canary request that ended.
#[derive(Debug)]
struct LastCanary {
    answer: CanaryAnswer,
    took: Duration,
    ended_at: Instant,
}

/// The state of the engine when a canary request was sent. A later comparison shows whether the engine has
/// worked since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentCanary {
    sent_at: Instant,
    /// The token counters of the engine. `None`: its metrics page does not have them.
    tokens: Option<TokenCounts>,
}

/// A period in which canary requests timed out and nothing showed that the engine works.
#[derive(Debug, Clone, Copy)]
struct Silence {
    /// When the first of these canary requests was sent.
    since: Instant,
    last_sent: SentCanary,
}

impl SentCanary {
    pub(crate) fn now(backend: &Backend) -> Self {
        Self {
            sent_at: clock::now(),
            tokens: token_counts(backend),
        }
    }

    /// Whether the engine has computed tokens for any client since the request was sent. The canary request
    /// then only waits in the queue of the engine.
    fn has_seen_work(&self, backend: &Backend) -> bool {
        let counts = self.tokens.zip(token_counts(backend));
        counts.is_some_and(|(before, now)| before != now)
    }
}

fn token_counts(backend: &Backend) -> Option<TokenCounts> {
    backend.health.state().sample?.load.token_counts()
}

impl Silence {
    /// Whether nothing has shown since then that the backend works.
    fn lasts(&self, backend: &Backend) -> bool {
        let age = clock::now().saturating_duration_since(self.since);
        !backend.has_output_since(age) && !self.last_sent.has_seen_work(backend)
    }
}

impl CanaryFacet {
    pub(crate) fn add(&self, backend: &Backend, sent: SentCanary, answer: CanaryAnswer) {
        let ended_at = clock::now();
        let mut history = lock(&self.0);
        *history.counts.entry(answer.result).or_default() += 1;
        let before = history.silence.take().filter(|it| it.lasts(backend));
        if answer.result == CanaryResult::Timeout {
            let silence = Silence {
                since: before.map_or(sent.sent_at, |before| before.since),
                last_sent: sent,
            };
            history.silence = Some(silence);
        }
        history.last = Some(LastCanary {
            answer,
            took: ended_at.saturating_duration_since(sent.sent_at),
            ended_at,
        });
    }

    /// Seconds since the first unanswered canary request was sent. 0: the backend answers, or has worked since.
    pub(crate) fn silent_seconds(&self, backend: &Backend, now: Instant) -> f64 {
        let silence = lock(&self.0).silence;
        let silence = silence.filter(|silence| silence.lasts(backend));
        silence.map_or(0.0, |silence| {
            now.saturating_duration_since(silence.since).as_secs_f64()
        })
    }

    /// Ends the silence, because a backend that is drained or asleep need not answer canary requests.
    pub(crate) fn end_silence(&self) {
        lock(&self.0).silence = None;
    }

    /// Resets the state of canary requests, except for the counts.
    pub(crate) fn switch_off(&self) {
        let mut history = lock(&self.0);
        history.last = None;
        history.silence = None;
    }
}

impl BackendFacet for CanaryFacet {
    fn forget_server(&self) {
        self.end_silence();
    }

    fn add_status(&self, _: &BackendTargets, blocks: &mut StatusBlocks) {
        let history = lock(&self.0);
        if history.counts.is_empty() {
            return;
        }
        let last = history.last.as_ref();
        let age = last.map(|last| clock::now().saturating_duration_since(last.ended_at));
        blocks.add(CanaryStatus {
            result: last.map(|last| last.answer.result),
            error: last.and_then(|last| last.answer.error.clone()),
            seconds: last.map(|last| last.took.as_secs_f64()),
            age_seconds: age.map(|age| age.as_secs_f64()),
            counts: history.counts.clone(),
        });
    }
}
