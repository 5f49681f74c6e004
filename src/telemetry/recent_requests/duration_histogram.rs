//! A duration histogram with narrow buckets, so that its quantiles are accurate within 10 %.

use std::sync::LazyLock;
use std::time::Duration;
use tokenweir_api::LatencyQuantiles;
use tokenweir_core::histogram::{self, OutputGapHistogram};

/// Counts of durations by bucket, and the maximum.
#[derive(Debug, Clone)]
pub struct DurationHistogram {
    bucket_counts: Vec<u32>,
    max_seconds: f64,
}

/// The smallest upper bound, in seconds.
const MIN_BOUND_SECONDS: f64 = 1e-4;
/// Buckets per octave: each bound is 9 % above the previous one.
const BUCKETS_PER_OCTAVE: u32 = 8;
/// Octaves: the largest bound is about 1,700 seconds.
const OCTAVE_COUNT: u32 = 24;

/// Upper bounds of the buckets in seconds, ascending.
static BUCKET_BOUNDS_SECONDS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let bound =
        |step: u32| MIN_BOUND_SECONDS * 2_f64.powf(f64::from(step) / f64::from(BUCKETS_PER_OCTAVE));
    (0..BUCKETS_PER_OCTAVE * OCTAVE_COUNT).map(bound).collect()
});

// === impl Times ===

impl DurationHistogram {
    /// Records one duration.
    pub fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.add_to_bucket(seconds, 1);
        self.max_seconds = self.max_seconds.max(seconds);
    }

    /// Adds the gaps of one stream. Each gap counts as the midpoint of its bucket.
    pub fn merge_gaps(&mut self, gaps: &OutputGapHistogram) {
        let snapshot = gaps.snapshot();
        let mut lower = 0.0;
        for (count, bound) in
            snapshot.bucket_counts.iter().zip(gaps.bounds().iter().chain([&snapshot.max]))
        {
            let upper = bound.min(snapshot.max);
            if *count > 0 {
                self.add_to_bucket(f64::midpoint(lower, upper), *count);
            }
            lower = upper;
        }
        self.max_seconds = self.max_seconds.max(snapshot.max);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.bucket_counts.iter_mut().zip(&other.bucket_counts) {
            *count = count.saturating_add(*more);
        }
        self.max_seconds = self.max_seconds.max(other.max_seconds);
    }

    /// The quantiles, in seconds. `None`: no durations.
    pub fn quantiles(&self) -> Option<LatencyQuantiles> {
        let q = |q| {
            let seconds = histogram::quantile(&BUCKET_BOUNDS_SECONDS, &self.bucket_counts, q)?;
            Some(seconds.min(self.max_seconds))
        };
        Some(LatencyQuantiles {
            p50: q(0.5)?,
            p95: q(0.95)?,
            p99: q(0.99)?,
            max: self.max_seconds,
            count: self.bucket_counts.iter().map(|count| u64::from(*count)).sum(),
        })
    }

    fn add_to_bucket(&mut self, seconds: f64, more: u32) {
        let bucket = BUCKET_BOUNDS_SECONDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.bucket_counts.get_mut(bucket) {
            *count = count.saturating_add(more);
        }
    }
}

impl Default for DurationHistogram {
    fn default() -> Self {
        Self { bucket_counts: vec![0; BUCKET_BOUNDS_SECONDS.len() + 1], max_seconds: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_ten_percent_and_never_above_the_maximum() {
        let mut times = DurationHistogram::default();
        assert_eq!(times.quantiles(), None);
        (1..=1_000).for_each(|millis| times.add(Duration::from_millis(millis)));
        let quantiles = times.quantiles().unwrap();
        for (actual, expected) in
            [(quantiles.p50, 0.5), (quantiles.p95, 0.95), (quantiles.p99, 0.99)]
        {
            assert!((actual / expected - 1.0_f64).abs() < 0.1, "{actual} for {expected}");
        }
        assert_eq!((quantiles.max, quantiles.count), (1.0, 1_000));
        assert!(quantiles.p99 <= quantiles.max);
    }

    #[test]
    fn durations_beyond_all_bounds_are_counted() {
        let mut times = DurationHistogram::default();
        times.add(Duration::ZERO);
        times.add(Duration::from_secs(1_000_000));
        let quantiles = times.quantiles().unwrap();
        assert_eq!((quantiles.count, quantiles.p99, quantiles.max), (2, 1e6, 1e6));
    }

    #[test]
    fn gaps_of_streams_are_merged() {
        let mut gaps = OutputGapHistogram::default();
        gaps.record_duration_n(Duration::from_millis(28), 99);
        gaps.record_duration_n(Duration::from_mins(2), 1);
        let mut times = DurationHistogram::default();
        times.merge_gaps(&gaps);
        times.merge_gaps(&gaps);
        let quantiles = times.quantiles().unwrap();
        assert_eq!((quantiles.count, quantiles.max), (200, 120.0));
        assert!((0.025..=0.03).contains(&quantiles.p95), "{quantiles:?}");
    }
}
