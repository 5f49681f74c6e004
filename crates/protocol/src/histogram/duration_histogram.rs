//! Counts of durations in buckets whose width grows with the duration. One bound limits the relative error of
//! every quantile from nanoseconds to two hours.

use std::time::Duration;

/// A histogram with `2^BITS` buckets for each doubling of the duration. The relative error of a
/// quantile is at most `2^-(BITS + 1)`: 6.25 % with 3 bits, 0.2 % with 8 bits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DurationHistogram<const BITS: u32> {
    /// Number of durations in each bucket, up to the bucket of the longest duration. There are at
    /// most `(44 - BITS) << BITS` buckets.
    bucket_counts: Vec<u32>,
    count: u64,
    /// Sum of the durations in seconds.
    sum: f64,
    /// Longest duration in seconds.
    max: f64,
}

/// Durations above this limit share the last bucket: 2^43 ns, over two hours.
const MAX_NANOSECONDS: u64 = (1 << 43) - 1;

impl<const BITS: u32> DurationHistogram<BITS> {
    /// Adds one duration.
    pub fn record(&mut self, value: Duration) {
        let seconds = value.as_secs_f64();
        self.add(Self::bucket_index(value), 1, seconds, seconds);
    }

    /// Adds a duration in seconds. A negative number counts as 0.
    pub fn record_seconds(&mut self, seconds: f64) {
        self.record_between(seconds, seconds, 1);
    }

    /// Adds `times` durations between `lower` and `upper`, in seconds. Each duration counts as the
    /// midpoint of the two bounds. [`Self::max`] takes `upper` as the longest duration.
    pub fn record_between(&mut self, lower: f64, upper: f64, times: u32) {
        let seconds = f64::midpoint(lower, upper).max(0.0);
        let value = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        self.add(Self::bucket_index(value), times, seconds, upper);
    }

    fn add(&mut self, bucket: usize, times: u32, seconds: f64, longest: f64) {
        if self.bucket_counts.len() <= bucket {
            self.bucket_counts.resize(bucket + 1, 0);
        }
        self.bucket_counts[bucket] = self.bucket_counts[bucket].saturating_add(times);
        self.count += u64::from(times);
        self.sum += seconds * f64::from(times);
        self.max = self.max.max(longest);
    }

    /// Adds the durations of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if self.bucket_counts.len() < other.bucket_counts.len() {
            self.bucket_counts.resize(other.bucket_counts.len(), 0);
        }
        for (count, other_count) in self.bucket_counts.iter_mut().zip(&other.bucket_counts) {
            *count = count.saturating_add(*other_count);
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Removes all durations. The memory of the buckets stays allocated.
    pub fn clear(&mut self) {
        self.bucket_counts.fill(0);
        (self.count, self.sum, self.max) = (0, 0.0, 0.0);
    }

    /// How many durations were recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest duration in seconds; 0 without durations.
    pub fn max(&self) -> f64 {
        self.max
    }

    /// The mean in seconds; 0 without durations. It is exact except for durations added by
    /// [`Self::record_between`].
    pub fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// The `q` quantile in seconds by nearest rank, at most the longest duration; 0 without
    /// durations.
    pub fn quantile(&self, q: f64) -> f64 {
        self.quantile_bucket(q)
            .map_or(0.0, |bucket| Self::midpoint(bucket).min(self.max))
    }

    /// Index of the bucket that contains the `q` quantile. `None`: the histogram contains no durations.
    pub fn quantile_bucket(&self, q: f64) -> Option<usize> {
        let rank = nearest_rank(self.count, q)?;
        let mut cumulative_count = 0;
        self.bucket_counts.iter().position(|count| {
            cumulative_count += u64::from(*count);
            cumulative_count >= rank
        })
    }

    /// The buckets that are not empty, each as its midpoint in seconds and its number of durations.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u32)> {
        let counts = self
            .bucket_counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0);
        counts.map(|(bucket, count)| (Self::midpoint(bucket), *count))
    }

    /// The bucket to which a duration belongs, as an index into the counts.
    pub fn bucket_index(value: Duration) -> usize {
        let nanos = u64::try_from(value.as_nanos())
            .unwrap_or(u64::MAX)
            .min(MAX_NANOSECONDS);
        let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(BITS + 1);
        ((u64::from(shift) << BITS) + (nanos >> shift)) as usize
    }

    /// The middle of a bucket in seconds.
    fn midpoint(bucket: usize) -> f64 {
        let bucket = bucket as u64;
        // Each bucket with an index below 2^(BITS + 1) is one nanosecond wide.
        let shift = (bucket >> BITS).saturating_sub(1);
        let shortest_nanos = (bucket - (shift << BITS)) << shift;
        (shortest_nanos as f64 + ((1_u64 << shift) - 1) as f64 / 2.0) / 1e9
    }
}

/// Rank of the `q` quantile among `count` values in ascending order. The lowest value has rank 1. At least a
/// share `q` of the values is less than or equal to the value with this rank. `None`: `count` is 0.
pub(super) fn nearest_rank(count: u64, q: f64) -> Option<u64> {
    (count > 0).then(|| ((q * count as f64).ceil() as u64).clamp(1, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Fine = DurationHistogram<8>;
    type Coarse = DurationHistogram<3>;

    /// A histogram of the durations 1 ms, 2 ms, … 1,000 ms.
    fn one_to_thousand_millis<const BITS: u32>() -> DurationHistogram<BITS> {
        let mut histogram = DurationHistogram::default();
        (1..=1_000).for_each(|millis| histogram.record(Duration::from_millis(millis)));
        histogram
    }

    #[test]
    fn an_empty_histogram_has_no_quantile() {
        let empty = Coarse::default();
        assert_eq!((empty.count(), empty.quantile_bucket(0.5)), (0, None));
        assert!(empty.quantile(0.5).max(empty.mean()).max(empty.max()) <= 0.0);
    }

    #[test]
    fn quantiles_are_within_the_relative_error() {
        let fine = one_to_thousand_millis::<8>();
        let coarse = one_to_thousand_millis::<3>();
        assert_eq!((fine.count(), fine.max()), (1_000, 1.0));
        assert!((fine.mean() - 0.5005).abs() < 1e-9);
        for q in [0.01, 0.5, 0.9, 0.99, 1.0] {
            let [fine, coarse] = [fine.quantile(q), coarse.quantile(q)];
            assert!(
                (fine / q - 1.0).abs() <= 0.002 && fine <= 1.0,
                "{fine} for {q}"
            );
            assert!(
                (coarse / q - 1.0).abs() <= 0.0625 && coarse <= 1.0,
                "{coarse} for {q}"
            );
        }
    }

    #[test]
    fn merged_histograms_equal_one_of_all_durations() {
        let mut low = Coarse::default();
        let mut high = Coarse::default();
        (1..=500).for_each(|millis| low.record(Duration::from_millis(millis)));
        (501..=1_000).for_each(|millis| high.record(Duration::from_millis(millis)));
        low.merge(&high);
        let expected = one_to_thousand_millis::<3>();
        assert_eq!(
            (&low.bucket_counts, low.count, low.max),
            (&expected.bucket_counts, 1_000, 1.0)
        );
        low.clear();
        assert_eq!(
            (low.count(), low.quantile_bucket(0.5), low.buckets().count()),
            (0, None, 0)
        );
    }

    #[test]
    fn durations_above_the_limit_keep_their_maximum() {
        let mut histogram = Coarse::default();
        histogram.record_seconds(-1.0);
        histogram.record(Duration::from_secs(1_000_000));
        assert_eq!((histogram.count(), histogram.max()), (2, 1e6));
        assert_eq!(
            histogram
                .buckets()
                .map(|(_, count)| count)
                .collect::<Vec<_>>(),
            [1, 1]
        );
        assert_eq!(Coarse::bucket_index(Duration::MAX), ((44 - 3) << 3) - 1);
    }

    #[test]
    fn a_duration_counts_as_its_buckets_midpoint() {
        let mut histogram = Fine::default();
        histogram.record_between(1.0, 3.0, 5);
        assert_eq!((histogram.count(), histogram.max()), (5, 3.0));
        assert!((histogram.quantile(0.5) - 2.0).abs() <= 0.004);
    }

    proptest! {
        #[test]
        fn the_relative_error_is_bounded(nanos in 0..MAX_NANOSECONDS) {
            let value = Duration::from_nanos(nanos);
            let exact = nanos as f64;
            let fine = Fine::midpoint(Fine::bucket_index(value)) * 1e9;
            let coarse = Coarse::midpoint(Coarse::bucket_index(value)) * 1e9;
            prop_assert!((fine - exact).abs() <= 0.5 + exact / 512.0);
            prop_assert!((coarse - exact).abs() <= 0.5 + exact / 16.0);
        }

        #[test]
        fn a_longer_duration_is_never_lower(a in 0_u64..u64::MAX, b in 0_u64..u64::MAX) {
            let index = |nanos| Fine::bucket_index(Duration::from_nanos(nanos));
            prop_assert!((index(a) <= index(b)) == (a <= b) || index(a) == index(b));
        }
    }
}
