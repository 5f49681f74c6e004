//! How the many values of one request are spread, kept as a histogram of fixed size: a stream of
//! a million tokens costs as much memory as one of ten.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// What is measured, and the upper bounds of its buckets unless others are given.
pub trait Scale {
    /// Upper bounds, ascending; at most [`MAX_BOUNDS`].
    const BOUNDS: &'static [f64];
}

/// Seconds from one piece of output to the next. The bounds are those that OpenTelemetry and vLLM
/// use for inter-token latency, so that quantiles compare, and finer ones below 50 ms, where fast
/// models are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap;

/// Tokens in one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCount;

/// Times between pieces of output, in seconds.
pub type Gaps = Spread<Gap>;
/// Tokens in each event that had output.
pub type ChunkTokens = Spread<TokenCount>;

/// Upper bounds, ascending; at most [`MAX_BOUNDS`], so that a spread needs no memory of its own.
#[derive(Debug, Clone)]
pub struct Bounds(Origin);

#[derive(Debug, Clone)]
enum Origin {
    Fixed(&'static [f64]),
    Given(Arc<[f64]>),
}

/// Counts under bounds, and what does not need bounds: number, sum and maximum.
pub struct Spread<S> {
    /// How many values fell under each bound and over the one before it; the one after the last
    /// bound is open.
    counts: [u32; MAX_BOUNDS + 1],
    count: u32,
    sum: f64,
    max: f64,
    bounds: Bounds,
    scale: PhantomData<S>,
}

/// A spread without its scale, for whoever adds many of them up.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts<'a> {
    /// Counts by bucket, then the open one.
    pub counts: &'a [u32],
    /// How many values there were.
    pub count: u32,
    /// Their sum.
    pub sum: f64,
    /// The largest.
    pub max: f64,
}

/// Most bounds of a scale.
pub const MAX_BOUNDS: usize = 40;

impl Scale for Gap {
    const BOUNDS: &'static [f64] = &[
        0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075,
        0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0,
    ];
}

impl Scale for TokenCount {
    const BOUNDS: &'static [f64] =
        &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0];
}

// === impl Bounds ===

impl Bounds {
    /// Those of the catalogue or of a scale.
    pub const fn fixed(bounds: &'static [f64]) -> Self {
        Self(Origin::Fixed(bounds))
    }

    /// Others, of which the first [`MAX_BOUNDS`] count.
    pub fn given(bounds: &[f64]) -> Self {
        Self(Origin::Given(bounds[..bounds.len().min(MAX_BOUNDS)].into()))
    }

    /// The bucket that a value falls into: one on a bound falls under it.
    pub fn bucket(&self, value: f64) -> usize {
        self.partition_point(|bound| *bound < value)
    }
}

impl Deref for Bounds {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        match &self.0 {
            Origin::Fixed(bounds) => bounds,
            Origin::Given(bounds) => bounds,
        }
    }
}

impl PartialEq for Bounds {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

// === impl Spread ===

impl<S: Scale> Spread<S> {
    /// An empty one with bounds other than the scale's.
    pub fn with_bounds(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Adds `times` equal values.
    pub fn add(&mut self, value: f64, times: u32) {
        let bucket = self.bounds.bucket(value);
        self.counts[bucket] = self.counts[bucket].saturating_add(times);
        self.count = self.count.saturating_add(times);
        self.sum += value * f64::from(times);
        self.max = self.max.max(value);
    }

    /// How many values there were.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The sum of all values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The largest value; `None` if there was none.
    pub fn max(&self) -> Option<f64> {
        (self.count > 0).then_some(self.max)
    }

    /// The mean value; `None` if there was none.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    /// Counts by bucket, in the order of the bounds, then the open one.
    pub fn counts(&self) -> &[u32] {
        &self.counts[..=self.bounds.len()]
    }

    /// The bounds.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// All of it, without the scale.
    pub fn parts(&self) -> Parts<'_> {
        Parts { counts: self.counts(), count: self.count, sum: self.sum, max: self.max }
    }

    /// The `q` quantile, never above the largest value. `None` if there was none.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        quantile(&self.bounds, self.counts(), q).map(|value| value.min(self.max))
    }
}

impl<S: Scale> Default for Spread<S> {
    fn default() -> Self {
        Self {
            counts: [0; MAX_BOUNDS + 1],
            count: 0,
            sum: 0.0,
            max: 0.0,
            bounds: Bounds::fixed(S::BOUNDS),
            scale: PhantomData,
        }
    }
}

impl<S> Clone for Spread<S> {
    fn clone(&self) -> Self {
        Self { bounds: self.bounds.clone(), scale: PhantomData, ..*self }
    }
}

impl<S> PartialEq for Spread<S> {
    fn eq(&self, other: &Self) -> bool {
        (self.counts, self.count) == (other.counts, other.count)
            && (self.sum - other.sum).abs() <= f64::EPSILON * self.sum.abs().max(1.0)
    }
}

impl<S> fmt::Debug for Spread<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, sum, max, .. } = self;
        write!(f, "Spread {{ count: {count}, sum: {sum}, max: {max} }}")
    }
}

impl Gaps {
    /// Adds `times` equal gaps.
    pub fn add_gap(&mut self, gap: Duration, times: u32) {
        self.add(gap.as_secs_f64(), times);
    }
}

/// The `q` quantile of counts under bounds, interpolated inside its bucket as Prometheus does. The
/// open bucket has the last bound. `None` if all counts are zero.
pub fn quantile(bounds: &[f64], counts: &[u32], q: f64) -> Option<f64> {
    let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    let rank = q * total as f64;
    let mut below = 0.0;
    for (bucket, &count) in counts.iter().enumerate() {
        let upto = below + f64::from(count);
        if upto >= rank && count > 0 {
            let lower = if bucket == 0 { 0.0 } else { bounds[bucket - 1] };
            let Some(upper) = bounds.get(bucket) else { return Some(f64::INFINITY) };
            return Some(lower + (upper - lower) * (rank - below) / f64::from(count));
        }
        below = upto;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_scale_has_more_bounds_than_there_is_room_for() {
        assert!(Gap::BOUNDS.len() <= MAX_BOUNDS && TokenCount::BOUNDS.len() <= MAX_BOUNDS);
    }

    #[test]
    fn a_gap_on_a_bound_falls_under_it() {
        let mut gaps = Gaps::default();
        gaps.add_gap(Duration::from_millis(10), 1);
        gaps.add_gap(Duration::from_nanos(10_000_001), 1);
        gaps.add_gap(Duration::from_secs(100), 2);
        let counts = gaps.counts();
        assert_eq!((counts[4], counts[5], counts[Gap::BOUNDS.len()]), (1, 1, 2));
        assert_eq!((counts.len(), gaps.max(), gaps.count()), (27, Some(100.0), 4));
    }

    #[test]
    fn other_bounds_have_other_buckets_and_a_quantile_is_exact_to_either_side_of_each() {
        let mut gaps = Gaps::with_bounds(Bounds::given(&[0.033, 0.07]));
        gaps.add_gap(Duration::from_millis(33), 95);
        gaps.add_gap(Duration::from_millis(34), 5);
        assert_eq!(gaps.counts(), [95, 5, 0]);
        assert!(gaps.quantile(0.95).unwrap() <= 0.033 && gaps.quantile(0.951).unwrap() > 0.033);
    }

    #[test]
    fn a_quantile_is_within_its_bucket_and_never_above_the_largest_value() {
        let mut gaps = Gaps::default();
        assert_eq!((gaps.quantile(0.95), gaps.mean(), gaps.max()), (None, None, None));
        gaps.add_gap(Duration::from_micros(1_500), 95);
        gaps.add_gap(Duration::from_millis(45), 5);
        let p50 = gaps.quantile(0.5).unwrap();
        assert!((0.001..=0.0025).contains(&p50), "{p50}");
        assert!(gaps.quantile(0.99).unwrap() > 0.04);
        assert!(gaps.quantile(1.0).unwrap() <= 0.045);
        gaps.add_gap(Duration::from_mins(1), 1_000);
        assert_eq!(gaps.quantile(0.99), Some(60.0));
    }

    #[test]
    fn a_chunk_of_several_tokens_is_one_value_in_its_bucket() {
        let mut tokens = ChunkTokens::default();
        tokens.add(7.0, 1);
        tokens.add(1_000.0, 1);
        assert_eq!(tokens.counts()[6], 1);
        assert_eq!(tokens.counts().last(), Some(&1));
    }
}
