//! What ended lately: how many requests, how long they took, and the last of them one by one. It
//! is what somebody looks at who looks now; Prometheus has the rest.

mod ended;
mod times;

pub use ended::Ended;
pub use times::Times;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokenweir_api::{LastMinute, Totals};
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{BackendId, Observed, Outcome, RequestRecord};

/// What ended lately: the sink that counts it.
///
/// It takes about 60 KiB, and 0.2 KiB for each request that is kept. Whoever tells it of requests
/// does so off the path of the bytes.
#[derive(Debug)]
pub struct Recent {
    epoch: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    windows: VecDeque<Window>,
    totals: Totals,
    last: VecDeque<Arc<Ended>>,
    slow: VecDeque<Arc<Ended>>,
}

/// What ended in one window.
#[derive(Debug)]
struct Window {
    number: u64,
    requests: u64,
    failed: u64,
    left: u64,
    output_tokens: u64,
    ttft: Times,
    itl: Times,
    e2e: Times,
    by_replica: HashMap<BackendId, u64>,
}

/// A minute is so many windows, and the one that is being filled.
const WINDOWS: u64 = 12;
const WINDOW: Duration = Duration::from_secs(5);
/// Requests that are kept: the last, and the last slow ones.
const KEPT: usize = 25;

// === impl Recent ===

impl Recent {
    /// Nothing has ended. Windows begin at `epoch`.
    pub fn new(epoch: Instant) -> Self {
        Self { epoch, state: Mutex::default() }
    }

    /// What ended in the minute before `now`.
    pub fn last_minute(&self, now: Instant) -> LastMinute {
        let number = self.number(now);
        let since = number.saturating_sub(WINDOWS);
        let began = self.epoch + WINDOW * u32::try_from(since).unwrap_or(u32::MAX);
        let mut all = Window::new(number);
        let state = self.state();
        state.windows.iter().filter(|one| one.number >= since).for_each(|one| all.add(one));
        drop(state);
        let named = |(id, requests): (BackendId, u64)| (id.to_string(), requests);
        LastMinute {
            seconds: now.saturating_duration_since(began).as_secs_f64(),
            requests: all.requests,
            failed: all.failed,
            left: all.left,
            output_tokens: all.output_tokens,
            ttft: all.ttft.quantiles(),
            itl: all.itl.quantiles(),
            e2e: all.e2e.quantiles(),
            by_replica: all.by_replica.into_iter().map(named).collect(),
        }
    }

    /// All that ended since the start.
    pub fn totals(&self) -> Totals {
        self.state().totals
    }

    /// The last requests that ended and the last slow ones, the newest first.
    pub fn ended(&self) -> Vec<Arc<Ended>> {
        let state = self.state();
        let all = state.last.iter().chain(&state.slow).cloned();
        let mut ended: Vec<Arc<Ended>> = all.collect();
        drop(state);
        ended.sort_by_key(|one| std::cmp::Reverse(one.number));
        ended.dedup_by_key(|one| one.number);
        ended
    }

    fn number(&self, moment: Instant) -> u64 {
        let nanos = moment.saturating_duration_since(self.epoch).as_nanos() / WINDOW.as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Recent {
    fn finished(&self, record: &RequestRecord) {
        let number = record.timings.ended.map_or(0, |ended| self.number(ended));
        self.state().count(record, number);
    }
}

// === impl State, Window ===

impl State {
    fn count(&mut self, record: &RequestRecord, number: u64) {
        let newest = self.windows.back().map(|window| window.number);
        if newest.is_none_or(|newest| newest < number) {
            self.windows.push_back(Window::new(number));
            self.windows.retain(|window| window.number + WINDOWS >= number);
        }
        // One that is told late is counted with those that it is told with.
        if let Some(window) = self.windows.back_mut() {
            window.count(record);
        }
        let ended = Arc::new(Ended::of(record, self.totals.requests));
        self.totals.requests += 1;
        self.totals.output_tokens += record.output_tokens().unwrap_or_default();
        if ended.slow.is_some() {
            keep(&mut self.slow, ended.clone());
        }
        keep(&mut self.last, ended);
    }
}

fn keep(kept: &mut VecDeque<Arc<Ended>>, ended: Arc<Ended>) {
    if kept.len() >= KEPT {
        kept.pop_front();
    }
    kept.push_back(ended);
}

impl Window {
    fn new(number: u64) -> Self {
        Self {
            number,
            requests: 0,
            failed: 0,
            left: 0,
            output_tokens: 0,
            ttft: Times::default(),
            itl: Times::default(),
            e2e: Times::default(),
            by_replica: HashMap::new(),
        }
    }

    fn count(&mut self, record: &RequestRecord) {
        self.requests += 1;
        self.output_tokens += record.output_tokens().unwrap_or_default();
        match record.outcome {
            Outcome::Ok => self.e2e.add(record.duration()),
            Outcome::Cancelled => self.left += 1,
            _ => self.failed += 1,
        }
        if let Some(ttft) = record.ttft() {
            self.ttft.add(ttft);
        }
        let Observed { itl, gaps, .. } = &record.observed;
        self.itl.add_spread(if itl.count() > 0 { itl } else { gaps });
        if let Some(id) = record.backend() {
            *self.by_replica.entry(id.clone()).or_default() += 1;
        }
    }

    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.left += other.left;
        self.output_tokens += other.output_tokens;
        self.ttft.merge(&other.ttft);
        self.itl.merge(&other.itl);
        self.e2e.merge(&other.e2e);
        for (id, requests) in &other.by_replica {
            *self.by_replica.entry(id.clone()).or_default() += requests;
        }
    }
}

#[cfg(test)]
mod tests;
