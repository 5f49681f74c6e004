//! Recent times of the requests of a backend, from two sources: gaps between outputs in the streams through
//! this gateway, and counters of the engine.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_protocol::histogram::{self, BucketBounds, BucketLayout, OutputGap};

/// Histogram of the gaps between outputs in the streams of a backend, over the current time window
/// and the previous time window.
#[derive(Debug, Default)]
pub(super) struct RollingGapHistogram {
    /// The number of gaps in each bucket, for each of the two windows.
    windows: [[AtomicU32; GAP_BUCKET_COUNT]; 2],
    current_window: AtomicUsize,
}

/// Recent mean prefill time of the requests of an engine, from the increase of the engine's
/// counters.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MeanPrefill {
    /// The load of an earlier scrape, with which the counters are compared, and the start of that scrape.
    /// `None`: no scrape yet.
    baseline: Option<(EngineLoad, Instant)>,
    /// The mean prefill time since the baseline. It stays constant while the engine's counters do not grow.
    /// `None`: not known.
    pub(super) time: Option<Duration>,
}

/// Upper bounds of the histogram buckets, in seconds. They do not depend on the configured buckets
/// of the metrics.
const GAP_BUCKET_BOUNDS: BucketBounds = BucketBounds::from_static(OutputGap::BOUNDS);
/// Number of histogram buckets: one for each bound, and one for gaps above the last bound.
const GAP_BUCKET_COUNT: usize = OutputGap::BOUNDS.len() + 1;
/// Length of one time window of the gap histogram.
pub(super) const GAP_WINDOW: Duration = Duration::from_secs(30);
/// Minimum number of gaps in both windows together for which a p99 is computed.
const MIN_GAPS_FOR_P99: u32 = 200;
/// Age at which the current scrape replaces the baseline scrape of [`MeanPrefill`].
const MEAN_WINDOW: Duration = Duration::from_secs(10);

impl RollingGapHistogram {
    /// Counts one gap in the current window.
    pub(super) fn observe(&self, gap: Duration) {
        let window = &self.windows[self.current_window.load(Ordering::Relaxed) & 1];
        if let Some(count) = window.get(GAP_BUCKET_BOUNDS.bucket_index(gap.as_secs_f64())) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Starts a new window. The current window becomes the previous window, and the counts of the
    /// previous window are discarded.
    pub(super) fn rotate(&self) {
        let next = (self.current_window.load(Ordering::Relaxed) + 1) & 1;
        for count in &self.windows[next] {
            count.store(0, Ordering::Relaxed);
        }
        self.current_window.store(next, Ordering::Relaxed);
    }

    /// The p99 of the gaps in both windows, in seconds. `None`: there are fewer than
    /// [`MIN_GAPS_FOR_P99`] gaps.
    pub(super) fn p99(&self) -> Option<f64> {
        let [first, second] = &self.windows;
        let count_in_both = |bucket: usize| {
            first[bucket].load(Ordering::Relaxed) + second[bucket].load(Ordering::Relaxed)
        };
        let counts: [u32; GAP_BUCKET_COUNT] = std::array::from_fn(count_in_both);
        let is_enough = counts.iter().sum::<u32>() >= MIN_GAPS_FOR_P99;
        if !is_enough {
            return None;
        }
        histogram::bucket_quantile(OutputGap::BOUNDS, &counts, 0.99)
    }
}

impl MeanPrefill {
    /// Updates the mean prefill time with the load of a scrape that started at `scraped_at`.
    pub(super) fn record_load(&mut self, load: &EngineLoad, scraped_at: Instant) {
        let Some((baseline, baseline_at)) = &self.baseline else {
            self.baseline = Some((*load, scraped_at));
            return;
        };
        let mean = mean_prefill_since(baseline, load);
        let is_restarted = load.prefilled < baseline.prefilled;
        self.time = mean.or(self.time);
        if is_restarted
            || (mean.is_some() && scraped_at.saturating_duration_since(*baseline_at) > MEAN_WINDOW)
        {
            self.baseline = Some((*load, scraped_at));
        }
    }
}

/// The mean prefill time of the requests since the load `baseline`. `None`: no requests since then, or a
/// counter is missing.
fn mean_prefill_since(baseline: &EngineLoad, load: &EngineLoad) -> Option<Duration> {
    let requests = load.prefilled? - baseline.prefilled?;
    let seconds = load.prefill_seconds? - baseline.prefill_seconds?;
    if requests < 1.0 {
        None
    } else {
        Duration::try_from_secs_f64(seconds / requests).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    #[test]
    fn the_p99_covers_two_windows() {
        let gaps = RollingGapHistogram::default();
        let gap = Duration::from_millis(10);
        (0..MIN_GAPS_FOR_P99 - 1).for_each(|_| gaps.observe(gap));
        assert_eq!(gaps.p99(), None);
        gaps.observe(gap);
        assert!(gaps.p99().is_some_and(|p99| p99 <= 0.01));
        gaps.rotate();
        assert!(gaps.p99().is_some());
        gaps.rotate();
        assert_eq!(gaps.p99(), None);
    }

    #[test]
    fn the_mean_prefill_follows_counter_increases() {
        let mut mean = MeanPrefill::default();
        let now = clock::now();
        let load = |count: f64, prefill: f64| EngineLoad {
            prefilled: Some(count),
            prefill_seconds: Some(prefill),
            ..EngineLoad::default()
        };
        mean.record_load(&load(10.0, 100.0), now);
        assert_eq!(mean.time, None);
        mean.record_load(&load(12.0, 100.5), now);
        assert_eq!(mean.time, Some(Duration::from_millis(250)));
        // Neither a scrape without new requests nor a restart changes the mean.
        mean.record_load(&load(12.0, 100.5), now);
        mean.record_load(&load(0.0, 0.0), now);
        assert_eq!(mean.time, Some(Duration::from_millis(250)));
    }
}
