//! What is counted of each replica's requests between two looks: a few atomics, so that whoever
//! ends a request waits for nobody.

use super::case::SLOW_START;
use super::sample::Counts;
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{BackendId, Outcome, RequestRecord};

/// The counts of each replica of the fleet. Requests of others are not counted.
#[derive(Debug, Default)]
pub struct Tallies(ArcSwap<HashMap<BackendId, Arc<Tally>>>);

/// The counts of one replica. Times are in milliseconds.
#[derive(Debug, Default)]
struct Tally {
    first_outputs: AtomicU64,
    first_output_time: AtomicU64,
    slow_first_outputs: AtomicU64,
    finished: AtomicU64,
    streams: AtomicU64,
    cancelled: AtomicU64,
    cancel_time: AtomicU64,
    cancel_squares: AtomicU64,
    prompt_tokens: AtomicU64,
    reusable_tokens: AtomicU64,
    reusable_here_tokens: AtomicU64,
    longest_prompt: AtomicU64,
}

// === impl Tallies ===

impl Tallies {
    /// Counts for these replicas from now on, and for no others.
    pub fn keep<'a>(&self, fleet: impl Iterator<Item = &'a BackendId>) {
        let known = self.0.load();
        let tally = |id: &BackendId| (id.clone(), known.get(id).cloned().unwrap_or_default());
        let kept: HashMap<BackendId, Arc<Tally>> = fleet.map(tally).collect();
        if kept.len() != known.len() || kept.keys().any(|id| !known.contains_key(id)) {
            self.0.store(Arc::new(kept));
        }
    }

    /// What was counted of a replica since this was last asked for.
    pub fn take(&self, backend: &BackendId) -> Counts {
        self.0.load().get(backend).map(|tally| tally.take()).unwrap_or_default()
    }

    fn of(&self, record: &RequestRecord) -> Option<Arc<Tally>> {
        self.0.load().get(record.backend()?).cloned()
    }
}

impl Sink for Tallies {
    fn first_output(&self, record: &RequestRecord) {
        if let (Some(tally), Some(ttft)) = (self.of(record), record.upstream_ttft()) {
            tally.on_first_output(ttft);
        }
    }

    fn finished(&self, record: &RequestRecord) {
        if let Some(tally) = self.of(record) {
            tally.on_finished(record);
        }
    }
}

// === impl Tally ===

impl Tally {
    fn on_first_output(&self, ttft: Duration) {
        add(&self.first_outputs, 1);
        add(&self.first_output_time, ttft.as_millis() as u64);
        add(&self.slow_first_outputs, u64::from(ttft.as_secs_f64() > SLOW_START));
    }

    fn on_finished(&self, record: &RequestRecord) {
        add(&self.finished, 1);
        add(&self.streams, u64::from(record.observed.is_stream));
        if record.outcome == Outcome::Cancelled {
            let waited = record.duration().as_millis() as u64;
            add(&self.cancelled, 1);
            add(&self.cancel_time, waited);
            add(&self.cancel_squares, waited.saturating_mul(waited));
        }
        let Some(decision) = &record.decision else { return };
        let chosen = decision.chosen().candidate;
        add(&self.prompt_tokens, chosen.prompt as u64);
        add(&self.reusable_tokens, decision.most_cached() as u64);
        add(&self.reusable_here_tokens, chosen.cached as u64);
        self.longest_prompt.fetch_max(chosen.prompt as u64, Ordering::Relaxed);
    }

    /// Each count is taken by itself: one that grows meanwhile is in the next moment.
    fn take(&self) -> Counts {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        let seconds = |time: &AtomicU64| take(time) as f64 / 1e3;
        Counts {
            first_outputs: take(&self.first_outputs),
            first_output_seconds: seconds(&self.first_output_time),
            slow_first_outputs: take(&self.slow_first_outputs),
            finished: take(&self.finished),
            streams: take(&self.streams),
            cancelled: take(&self.cancelled),
            cancel_seconds: seconds(&self.cancel_time),
            cancel_squares: take(&self.cancel_squares) as f64 / 1e6,
            prompt_tokens: take(&self.prompt_tokens) as f64,
            reusable_tokens: take(&self.reusable_tokens) as f64,
            reusable_here_tokens: take(&self.reusable_here_tokens) as f64,
            longest_prompt: take(&self.longest_prompt) as f64,
        }
    }
}

fn add(count: &AtomicU64, value: u64) {
    count.fetch_add(value, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::record::sample::streamed;

    #[test]
    fn what_ends_at_a_replica_of_the_fleet_is_counted_once() {
        let record = streamed();
        let id = record.backend().unwrap().clone();
        let tallies = Tallies::default();
        tallies.finished(&record);
        assert_eq!(tallies.take(&id), Counts::default(), "it is not of the fleet");
        tallies.keep([&id].into_iter());
        tallies.first_output(&record);
        tallies.finished(&record);
        let left = RequestRecord { outcome: Outcome::Cancelled, ..streamed() };
        tallies.finished(&left);
        tallies.keep([&id].into_iter());
        let counts = tallies.take(&id);
        assert_eq!((counts.first_outputs, counts.finished, counts.cancelled), (1, 2, 1));
        assert!(counts.first_output_seconds > 0.0 && counts.cancel_seconds > 0.0, "{counts:?}");
        assert_eq!(tallies.take(&id), Counts::default(), "each is taken once");
        tallies.keep(std::iter::empty());
        tallies.finished(&record);
        assert_eq!(tallies.take(&id), Counts::default());
    }
}
