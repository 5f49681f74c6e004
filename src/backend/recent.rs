//! What a replica's requests took lately, from two sources: the gaps of the streams that pass
//! through here, and the replica's own counters.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokenweir_core::dialect::Load;
use tokenweir_core::record::RecentTimes;
use tokenweir_core::spread::{self, Bounds, Gap, Scale};

/// The gaps of a replica's streams, in two windows that take turns: the one being filled, and the
/// one before it.
#[derive(Debug, Default)]
pub(super) struct RecentGaps {
    windows: [[AtomicU32; BUCKETS]; 2],
    current: AtomicUsize,
}

/// Mean times from counters that only grow, over what they grew by lately.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RecentMeans {
    base: Option<(Load, Instant)>,
    times: RecentTimes,
}

/// The router's own buckets, whatever those of the metrics are, and the open one.
const BOUNDS: Bounds = Bounds::fixed(Gap::BOUNDS);
const BUCKETS: usize = Gap::BOUNDS.len() + 1;
/// How long a window of gaps is filled.
pub(super) const WINDOW: Duration = Duration::from_secs(30);
/// Fewer gaps say nothing about their p99.
const ENOUGH: u32 = 200;
/// Counters are compared with what they were about this long ago.
const HORIZON: Duration = Duration::from_secs(10);

// === impl RecentGaps ===

impl RecentGaps {
    /// Counts one gap.
    pub(super) fn add(&self, gap: Duration) {
        let window = &self.windows[self.current.load(Ordering::Relaxed) & 1];
        if let Some(count) = window.get(BOUNDS.bucket(gap.as_secs_f64())) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Begins the next window, and forgets the one before this.
    pub(super) fn turn(&self) {
        let next = (self.current.load(Ordering::Relaxed) + 1) & 1;
        for count in &self.windows[next] {
            count.store(0, Ordering::Relaxed);
        }
        self.current.store(next, Ordering::Relaxed);
    }

    /// Their p99 in seconds. `None`: too few.
    pub(super) fn p99(&self) -> Option<f64> {
        let [first, second] = &self.windows;
        let both = |bucket: usize| {
            first[bucket].load(Ordering::Relaxed) + second[bucket].load(Ordering::Relaxed)
        };
        let counts: [u32; BUCKETS] = std::array::from_fn(both);
        let is_enough = counts.iter().sum::<u32>() >= ENOUGH;
        spread::quantile(Gap::BOUNDS, &counts, 0.99).filter(|_| is_enough)
    }
}

// === impl RecentMeans ===

impl RecentMeans {
    /// The replica said `load` at `at`.
    pub(super) fn on_sample(&mut self, load: &Load, at: Instant) {
        let Some((base, since)) = &self.base else {
            self.base = Some((*load, at));
            return;
        };
        let queue = mean(base.queue_seconds, load.queue_seconds, base.queued, load.queued);
        let prefill =
            mean(base.prefill_seconds, load.prefill_seconds, base.prefilled, load.prefilled);
        let is_restarted = load.queued < base.queued;
        if queue.is_some() {
            self.times = RecentTimes { queue, prefill };
        }
        if is_restarted || (queue.is_some() && at.saturating_duration_since(*since) > HORIZON) {
            self.base = Some((*load, at));
        }
    }

    /// The means.
    pub(super) fn times(&self) -> RecentTimes {
        self.times
    }
}

fn mean(
    sum_before: Option<f64>,
    sum: Option<f64>,
    count_before: Option<f64>,
    count: Option<f64>,
) -> Option<Duration> {
    let requests = count? - count_before?;
    let seconds = sum? - sum_before?;
    if requests < 1.0 { None } else { Duration::try_from_secs_f64(seconds / requests).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::clock;

    #[test]
    fn the_p99_is_of_the_last_two_windows_and_needs_enough_gaps() {
        let gaps = RecentGaps::default();
        let gap = Duration::from_millis(10);
        (0..ENOUGH - 1).for_each(|_| gaps.add(gap));
        assert_eq!(gaps.p99(), None);
        gaps.add(gap);
        assert!(gaps.p99().is_some_and(|p99| p99 <= 0.01));
        gaps.turn();
        assert!(gaps.p99().is_some());
        gaps.turn();
        assert_eq!(gaps.p99(), None);
    }

    #[test]
    fn means_are_of_what_the_counters_grew_by() {
        let mut means = RecentMeans::default();
        let now = clock::now();
        let load = |count: f64, queue: f64, prefill: f64| Load {
            queued: Some(count),
            queue_seconds: Some(queue),
            prefilled: Some(count),
            prefill_seconds: Some(prefill),
            ..Load::default()
        };
        means.on_sample(&load(10.0, 100.0, 100.0), now);
        assert_eq!(means.times(), RecentTimes::default());
        means.on_sample(&load(12.0, 101.0, 100.5), now);
        let expected = RecentTimes {
            queue: Some(Duration::from_millis(500)),
            prefill: Some(Duration::from_millis(250)),
        };
        assert_eq!(means.times(), expected);
        // A page on which nothing has grown says nothing new, and neither does a restart.
        means.on_sample(&load(12.0, 101.0, 100.5), now);
        means.on_sample(&load(0.0, 0.0, 0.0), now);
        assert_eq!(means.times(), expected);
    }
}
