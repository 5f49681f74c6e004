//! Why a slow request was slow: one cause from a closed set, the one that took the most time.

use super::{Outcome, Phase, Phases, RequestRecord, Timings};
use crate::units;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What made a request slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlowCause {
    /// It was sent to a replica that failed, and then to another.
    Retry,
    /// It waited in the gateway for a replica.
    GatewayQueue,
    /// The gateway itself was slow.
    Gateway,
    /// It waited in the engine's queue.
    EngineQueue,
    /// Its prompt took long to compute.
    LongPrompt,
    /// The engine took its KV cache away for others, and computed it again.
    Preempted,
    /// The engine fell silent in the middle of the answer.
    Stalled,
    /// The engine made each token slowly: a large batch, or long contexts.
    SlowDecode,
    /// The client was slow to send the request, or to take the answer.
    SlowReader,
}

/// A request that takes longer than any of these is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlowLimits {
    /// Time to first token, of streams.
    #[serde(with = "units::duration")]
    pub ttft: Duration,
    /// Time per output token, of streams.
    #[serde(with = "units::duration")]
    pub tpot: Duration,
    /// Duration, of answers that are no stream.
    #[serde(with = "units::duration")]
    pub whole: Duration,
    /// How long the client holds an answer up.
    #[serde(with = "units::duration")]
    pub write_stall: Duration,
}

impl Default for SlowLimits {
    /// 2 s to the first token, 200 ms a token, 60 s for a whole answer, 1 s of a slow client.
    fn default() -> Self {
        Self {
            ttft: Duration::from_secs(2),
            tpot: Duration::from_millis(200),
            whole: Duration::from_mins(1),
            write_stall: Duration::from_secs(1),
        }
    }
}

// === impl SlowCause ===

impl SlowCause {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Retry,
        Self::GatewayQueue,
        Self::Gateway,
        Self::EngineQueue,
        Self::LongPrompt,
        Self::Preempted,
        Self::Stalled,
        Self::SlowDecode,
        Self::SlowReader,
    ];

    /// The name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::GatewayQueue => "gateway_queue",
            Self::Gateway => "gateway",
            Self::EngineQueue => "engine_queue",
            Self::LongPrompt => "long_prompt",
            Self::Preempted => "preempted",
            Self::Stalled => "stalled",
            Self::SlowDecode => "slow_decode",
            Self::SlowReader => "slow_reader",
        }
    }

    /// The cause of a request that has ended, if it was slow.
    pub fn of(record: &RequestRecord, limits: &SlowLimits) -> Option<Self> {
        if !is_slow(record, limits) {
            return None;
        }
        let costs = costs(record, limits);
        // The last of equals: the order of the list is that of the request.
        let longest = costs.into_iter().max_by_key(|(_, took)| *took);
        longest.filter(|(_, took)| !took.is_zero()).map(|(cause, _)| cause)
    }
}

fn is_slow(record: &RequestRecord, limits: &SlowLimits) -> bool {
    let observed = &record.observed;
    // Refused, or without an answer for reasons that are not slowness.
    if record.attempts.is_empty() || record.outcome == Outcome::ClientError {
        return false;
    }
    let is_over = |took: Option<Duration>, limit| took.is_some_and(|took| took > limit);
    // One that never had a first token has waited for it until its end.
    let waited = record.ttft().or_else(|| record.asked.stream.then(|| record.duration()));
    is_over(waited, limits.ttft)
        || is_over(record.tpot(), limits.tpot)
        || (!record.asked.stream && record.duration() > limits.whole)
        || observed.write_stall > limits.write_stall
        || !observed.stalls.is_empty()
}

/// What each cause has cost.
fn costs(record: &RequestRecord, limits: &SlowLimits) -> [(SlowCause, Duration); 9] {
    let timings = &record.timings;
    let phases = Phases::of(record);
    let took = |phase| phases.get(phase).map_or(Duration::ZERO, |span| span.took);
    let first = record.attempts.first().map(|attempt| attempt.started);
    let upload = between(Some(timings.accepted), timings.received);
    let engine = waits(record, took(Phase::Queue), took(Phase::Prefill));
    let silent = silences(timings, record);
    let is_preempted = record.preemptions().is_some_and(|preemptions| preemptions > 0);
    let (preempted, stalled) =
        if is_preempted { (silent, Duration::ZERO) } else { (Duration::ZERO, silent) };
    let is_dragging = record.tpot().is_some_and(|tpot| tpot > limits.tpot);
    let decode = took(Phase::Decode).saturating_sub(silent);
    [
        (SlowCause::Retry, between(first, timings.sent)),
        (SlowCause::GatewayQueue, between(timings.received, first)),
        (SlowCause::Gateway, between(timings.routed, timings.sent)),
        (SlowCause::EngineQueue, engine.0),
        (SlowCause::LongPrompt, engine.1),
        (SlowCause::Preempted, preempted),
        (SlowCause::Stalled, stalled),
        (SlowCause::SlowDecode, if is_dragging { decode } else { Duration::ZERO }),
        (SlowCause::SlowReader, upload + record.observed.write_stall),
    ]
}

/// Queue and prefill. If nobody told them, the whole wait for the first output is of one kind: it
/// was queued if the replica had a queue, and computed if not.
fn waits(record: &RequestRecord, queue: Duration, prefill: Duration) -> (Duration, Duration) {
    if !(queue + prefill).is_zero() {
        return (queue, prefill);
    }
    let timings = &record.timings;
    let wait = between(timings.sent, timings.first_output.or(timings.ended));
    let waiting = record.decision.as_ref().and_then(|decision| decision.condition.waiting);
    match waiting {
        Some(1..) => (wait, Duration::ZERO),
        _ => (Duration::ZERO, wait),
    }
}

fn silences(timings: &Timings, record: &RequestRecord) -> Duration {
    let stalls = record.observed.stalls.iter();
    stalls.map(|stall| between(Some(stall.since), stall.until.or(timings.ended))).sum()
}

fn between(from: Option<Instant>, to: Option<Instant>) -> Duration {
    match (from, to) {
        (Some(from), Some(to)) => to.saturating_duration_since(from),
        _ => Duration::ZERO,
    }
}
