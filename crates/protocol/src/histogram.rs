//! Histograms and quantiles.
//!
//! [`FixedBucketHistogram`] stores the values of one request in a fixed size: a stream of a million
//! tokens takes as much memory as a stream of ten. [`DurationHistogram`] stores durations of many
//! requests with a bounded relative error. [`ExponentialHistogram`] has the buckets of Prometheus native
//! histograms. [`sample_quantile`] is the quantile of stored samples.
//! `docs/decisions/0002-metrics-and-histograms.md` states why there are these types.

mod duration_histogram;
mod exponential_histogram;

pub use duration_histogram::DurationHistogram;
pub use exponential_histogram::{ExponentialHistogram, MAX_EXPONENTIAL_BUCKETS, ZERO_THRESHOLD};

use duration_histogram::nearest_rank;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A kind of measured value, such as [`OutputGap`], with its default bucket bounds.
pub trait BucketLayout {
    /// Upper bounds of the buckets in ascending order; at most [`MAX_BUCKET_BOUNDS`].
    const BOUNDS: &'static [f64];
}

/// Time between two events with output, in seconds. Most bounds are those of OpenTelemetry and vLLM for
/// inter-token latency, so quantiles are comparable. Additional bounds below 50 ms are for fast models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputGap;

/// Number of tokens in one event of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCount;

/// Time from reading bytes of a stream to writing them to the client, in seconds. The bounds begin at 10 µs,
/// because the gateway forwards most chunks within 100 µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkTransit;

/// Histogram of the times between two events with output, in seconds.
pub type OutputGapHistogram = FixedBucketHistogram<OutputGap>;
/// Histogram of the numbers of tokens in one event with output.
pub type ChunkTokensHistogram = FixedBucketHistogram<TokenCount>;
/// Histogram of the times from reading bytes of a stream to writing them to the client, in seconds.
pub type ChunkTransitHistogram = FixedBucketHistogram<ChunkTransit>;

/// Upper bounds of buckets in ascending order. There are at most [`MAX_BUCKET_BOUNDS`], so that the counts of a
/// histogram need no allocation.
#[derive(Debug, Clone)]
pub struct BucketBounds(BoundsStorage);

#[derive(Debug, Clone)]
enum BoundsStorage {
    Static(&'static [f64]),
    Shared(Arc<[f64]>),
    /// The histogram counts its values in exponential buckets in addition to these bounds.
    Native(Arc<[f64]>),
}

/// A histogram with a fixed number of bucket counts, and with the count, sum and maximum of its
/// values.
#[derive(Debug, Clone)]
pub struct FixedBucketHistogram<S> {
    /// Number of values in each bucket. A value that equals a bound is in the bucket that ends at the bound.
    /// The bucket after the last bound has no upper bound.
    bucket_counts: [u32; MAX_BUCKET_BOUNDS + 1],
    count: u32,
    sum: f64,
    max: f64,
    bounds: BucketBounds,
    /// The values counted in exponential buckets too. `None`: the histogram has only its fixed buckets.
    exponential: Option<Box<ExponentialHistogram>>,
    layout: PhantomData<S>,
}

/// A view of a [`FixedBucketHistogram`] without its bucket bounds, for aggregation.
#[derive(Debug, Clone, Copy, Default)]
pub struct HistogramSnapshot<'a> {
    /// Number of values in each bucket. The last bucket has no upper bound.
    pub bucket_counts: &'a [u32],
    /// How many values were recorded.
    pub count: u32,
    /// The sum, in the unit of the values.
    pub sum: f64,
    /// The largest value; 0 if there are no values.
    pub max: f64,
    /// The values counted in exponential buckets too. `None`: the histogram has only its fixed buckets.
    pub exponential: Option<&'a ExponentialHistogram>,
}

/// Maximum number of bucket bounds of a [`FixedBucketHistogram`].
pub const MAX_BUCKET_BOUNDS: usize = 40;

impl BucketLayout for OutputGap {
    const BOUNDS: &'static [f64] = &[
        0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075,
        0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0,
    ];
}

impl BucketLayout for TokenCount {
    const BOUNDS: &'static [f64] = &[
        1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0,
    ];
}

impl BucketLayout for ChunkTransit {
    const BOUNDS: &'static [f64] = &[
        0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01,
        0.025, 0.05, 0.1, 0.25, 1.0,
    ];
}

impl BucketBounds {
    /// Bounds that are known at compile time.
    pub const fn from_static(bounds: &'static [f64]) -> Self {
        Self(BoundsStorage::Static(bounds))
    }

    /// Bounds from the configuration. Bounds after the first [`MAX_BUCKET_BOUNDS`] are ignored.
    pub fn from_slice(bounds: &[f64]) -> Self {
        Self(BoundsStorage::Shared(
            bounds[..bounds.len().min(MAX_BUCKET_BOUNDS)].into(),
        ))
    }

    /// Returns the same bounds for a histogram that also counts its values in exponential buckets.
    #[must_use]
    pub fn native(&self) -> Self {
        Self(BoundsStorage::Native((**self).into()))
    }

    /// Whether a histogram with these bounds counts its values in exponential buckets too.
    pub fn is_native(&self) -> bool {
        matches!(self.0, BoundsStorage::Native(_))
    }

    /// Index of the bucket of a value. A value that equals a bound belongs to the bucket that ends
    /// at the bound.
    pub fn bucket_index(&self, value: f64) -> usize {
        self.partition_point(|bound| *bound < value)
    }
}

impl Deref for BucketBounds {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        match &self.0 {
            BoundsStorage::Static(bounds) => bounds,
            BoundsStorage::Shared(bounds) | BoundsStorage::Native(bounds) => bounds,
        }
    }
}

impl PartialEq for BucketBounds {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<S: BucketLayout> FixedBucketHistogram<S> {
    /// An empty histogram with these bounds instead of the default bounds. It allocates the memory of
    /// exponential buckets now, so that recording a value allocates nothing.
    pub fn with_bounds(bounds: &BucketBounds) -> Self {
        let mut exponential = None;
        if bounds.is_native() {
            exponential = Some(Box::new(ExponentialHistogram::preallocated()));
        }
        Self {
            bounds: bounds.clone(),
            exponential,
            ..Self::default()
        }
    }

    /// Records `times` equal values at the cost of one.
    pub fn record_n(&mut self, value: f64, times: u32) {
        let bucket = self.bounds.bucket_index(value);
        self.bucket_counts[bucket] = self.bucket_counts[bucket].saturating_add(times);
        self.count = self.count.saturating_add(times);
        self.sum += value * f64::from(times);
        self.max = self.max.max(value);
        if let Some(exponential) = &mut self.exponential {
            exponential.record_n(value, times.into());
        }
    }

    /// How many values were recorded.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The sum, in the unit of the values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The largest value; `None` if there are no values.
    pub fn max(&self) -> Option<f64> {
        (self.count > 0).then_some(self.max)
    }

    /// The mean of all values. `None`: the histogram is empty.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    /// Number of values in each bucket, in the order of the bounds. The last bucket has no upper
    /// bound.
    pub fn bucket_counts(&self) -> &[u32] {
        &self.bucket_counts[..=self.bounds.len()]
    }

    /// The upper bounds of the buckets, without infinity.
    pub fn bounds(&self) -> &BucketBounds {
        &self.bounds
    }

    /// A view of this histogram without its bounds.
    pub fn snapshot(&self) -> HistogramSnapshot<'_> {
        HistogramSnapshot {
            bucket_counts: self.bucket_counts(),
            count: self.count,
            sum: self.sum,
            max: self.max,
            exponential: self.exponential.as_deref(),
        }
    }

    /// The `q` quantile of the values, interpolated and at most the largest value. `None`: there are no values.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        bucket_quantile(&self.bounds, self.bucket_counts(), q).map(|value| value.min(self.max))
    }
}

impl<S: BucketLayout> Default for FixedBucketHistogram<S> {
    fn default() -> Self {
        Self {
            bucket_counts: [0; MAX_BUCKET_BOUNDS + 1],
            count: 0,
            sum: 0.0,
            max: 0.0,
            bounds: BucketBounds::from_static(S::BOUNDS),
            exponential: None,
            layout: PhantomData,
        }
    }
}

impl<S> PartialEq for FixedBucketHistogram<S> {
    fn eq(&self, other: &Self) -> bool {
        (self.bucket_counts, self.count) == (other.bucket_counts, other.count)
            && (self.sum - other.sum).abs() <= f64::EPSILON * self.sum.abs().max(1.0)
    }
}

impl OutputGapHistogram {
    /// Adds a time between two outputs `times` times.
    pub fn record_duration_n(&mut self, gap: Duration, times: u32) {
        self.record_n(gap.as_secs_f64(), times);
    }
}

/// The `q` quantile of samples by nearest rank. Changes the order of the samples. `None`: there are no samples.
pub fn sample_quantile(samples: &mut [f64], q: f64) -> Option<f64> {
    let index = nearest_rank(samples.len() as u64, q)? - 1;
    Some(
        *samples
            .select_nth_unstable_by(index as usize, f64::total_cmp)
            .1,
    )
}

/// The `q` quantile of bucket counts, interpolated linearly inside its bucket as Prometheus does. `None`: all
/// counts are zero. Infinity: the quantile is in the bucket without an upper bound.
pub fn bucket_quantile(bounds: &[f64], counts: &[u32], q: f64) -> Option<f64> {
    let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    let rank = q * total as f64;
    let mut lower_count = 0.0;
    for (bucket, &count) in counts.iter().enumerate() {
        let cumulative_count = lower_count + f64::from(count);
        if cumulative_count >= rank && count > 0 {
            let lower = if bucket == 0 { 0.0 } else { bounds[bucket - 1] };
            let Some(upper) = bounds.get(bucket) else {
                return Some(f64::INFINITY);
            };
            return Some(lower + (upper - lower) * (rank - lower_count) / f64::from(count));
        }
        lower_count = cumulative_count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_a_bound_is_below_it() {
        let mut gaps = OutputGapHistogram::default();
        gaps.record_duration_n(Duration::from_millis(10), 1);
        gaps.record_duration_n(Duration::from_nanos(10_000_001), 1);
        gaps.record_duration_n(Duration::from_secs(100), 2);
        let counts = gaps.bucket_counts();
        assert_eq!(
            (counts[4], counts[5], counts[OutputGap::BOUNDS.len()]),
            (1, 1, 2)
        );
        assert_eq!(
            (counts.len(), gaps.max(), gaps.count()),
            (27, Some(100.0), 4)
        );
    }

    #[test]
    fn configured_bounds_separate_quantiles() {
        let mut gaps = OutputGapHistogram::with_bounds(&BucketBounds::from_slice(&[0.033, 0.07]));
        gaps.record_duration_n(Duration::from_millis(33), 95);
        gaps.record_duration_n(Duration::from_millis(34), 5);
        assert_eq!(gaps.bucket_counts(), [95, 5, 0]);
        assert!(gaps.quantile(0.95).unwrap() <= 0.033 && gaps.quantile(0.951).unwrap() > 0.033);
    }

    #[test]
    fn quantiles_stay_in_their_bucket_below_the_maximum() {
        let mut gaps = OutputGapHistogram::default();
        assert_eq!(
            (gaps.quantile(0.95), gaps.mean(), gaps.max()),
            (None, None, None)
        );
        gaps.record_duration_n(Duration::from_micros(1_500), 95);
        gaps.record_duration_n(Duration::from_millis(45), 5);
        let p50 = gaps.quantile(0.5).unwrap();
        assert!((0.001..=0.0025).contains(&p50), "{p50}");
        assert!(gaps.quantile(0.99).unwrap() > 0.04);
        assert!(gaps.quantile(1.0).unwrap() <= 0.045);
        gaps.record_duration_n(Duration::from_mins(1), 1_000);
        assert_eq!(gaps.quantile(0.99), Some(60.0));
    }

    #[test]
    fn a_quantile_is_one_of_the_samples() {
        let mut samples = [3.0, 1.0, 2.0, 5.0, 4.0];
        for (q, expected) in [(0.0, 1.0), (0.2, 1.0), (0.21, 2.0), (0.5, 3.0), (1.0, 5.0)] {
            assert_eq!(sample_quantile(&mut samples, q), Some(expected), "{q}");
        }
        assert_eq!(sample_quantile(&mut [], 0.5), None);
    }

    #[test]
    fn a_chunk_of_several_tokens_is_one_value() {
        let mut tokens = ChunkTokensHistogram::default();
        tokens.record_n(7.0, 1);
        tokens.record_n(1_000.0, 1);
        assert_eq!(tokens.bucket_counts()[6], 1);
        assert_eq!(tokens.bucket_counts().last(), Some(&1));
    }
}
