//! Counts of values in exponential buckets, as native histograms of Prometheus and exponential histograms of
//! OpenTelemetry have them.
//!
//! The bucket with index `i` at scale `s` has the values above `2^(i/2^s)`, up to `2^((i+1)/2^s)`. The first
//! scale is [`INITIAL_SCALE`]. When the values would need more than [`MAX_EXPONENTIAL_BUCKETS`] buckets, the
//! scale decreases by one: pairs of neighbouring buckets merge.

/// A histogram whose buckets are powers of a base, which its scale determines.
#[derive(Debug, Clone, PartialEq)]
pub struct ExponentialHistogram {
    scale: i32,
    /// Index of the first bucket in `counts`.
    offset: i32,
    /// Number of values in each bucket, from the lowest bucket with a value to the highest one.
    counts: Vec<u64>,
    /// Number of values up to [`ZERO_THRESHOLD`].
    zero_count: u64,
}

/// The first scale: 8 buckets for each doubling. The relative error of a quantile is at most 4.5 %.
const INITIAL_SCALE: i32 = 3;
/// Largest number of buckets of a histogram. At the first scale, this number of buckets covers values that
/// differ by a factor of a million.
pub const MAX_EXPONENTIAL_BUCKETS: usize = 160;
/// Values up to this limit count as 0. The limit is about a nanosecond if the values are seconds.
pub const ZERO_THRESHOLD: f64 = 1.0 / (1_u64 << 30) as f64;

impl ExponentialHistogram {
    /// An empty histogram whose memory for [`MAX_EXPONENTIAL_BUCKETS`] counts is already allocated.
    pub fn preallocated() -> Self {
        Self {
            counts: Vec::with_capacity(MAX_EXPONENTIAL_BUCKETS),
            ..Self::default()
        }
    }

    /// Adds a value `times` times. A value that is not a number counts as 0.
    pub fn record_n(&mut self, value: f64, times: u64) {
        if value > ZERO_THRESHOLD {
            self.add(value.min(f64::MAX), times);
        } else {
            self.zero_count += times;
        }
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.zero_count += other.zero_count;
        while self.scale > other.scale {
            self.decrease_scale();
        }
        // The loop shifts each index of `other` to the scale of this histogram.
        for (index, count) in (other.offset..).zip(&other.counts) {
            if *count > 0 {
                // Each call of `decrease_scale` lowers `self.scale`, so the shift is computed again.
                while !self.make_room(index >> (other.scale - self.scale)) {
                    self.decrease_scale();
                }
                let position = self.position(index >> (other.scale - self.scale));
                self.counts[position] += count;
            }
        }
    }

    /// The scale `s`: each bucket ends at `2^(1/2^s)` times its beginning. Prometheus calls this number the
    /// schema.
    pub fn scale(&self) -> i32 {
        self.scale
    }

    /// Index of the first bucket of [`Self::counts`].
    pub fn offset(&self) -> i32 {
        self.offset
    }

    /// Number of values in each bucket, from the lowest bucket with a value.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Number of values up to [`ZERO_THRESHOLD`].
    pub fn zero_count(&self) -> u64 {
        self.zero_count
    }

    fn add(&mut self, value: f64, times: u64) {
        loop {
            // A value that equals a bound belongs to the bucket that ends at the bound.
            let index = (value.log2() * f64::from(self.scale).exp2()).ceil() as i32 - 1;
            if self.make_room(index) {
                let position = self.position(index);
                self.counts[position] += times;
                return;
            }
            self.decrease_scale();
        }
    }

    /// Extends `counts` until the bucket `index` is part of it. Returns false if `counts` would then have too
    /// many buckets.
    fn make_room(&mut self, index: i32) -> bool {
        if self.counts.is_empty() {
            self.offset = index;
        }
        let missing_before = (self.offset - index).max(0) as usize;
        let required = (index - self.offset).max(-1) + 1;
        let length = self.counts.len().max(required as usize) + missing_before;
        if length > MAX_EXPONENTIAL_BUCKETS {
            return false;
        }
        self.counts.resize(length, 0);
        self.counts.rotate_right(missing_before);
        self.offset = self.offset.min(index);
        true
    }

    fn position(&self, index: i32) -> usize {
        (index - self.offset) as usize
    }

    /// Merges pairs of neighbouring buckets.
    fn decrease_scale(&mut self) {
        self.scale -= 1;
        let indexes = self.offset..;
        let mut merged = 0;
        self.offset >>= 1;
        for (index, position) in indexes.zip(0..self.counts.len()) {
            let target = self.position(index >> 1);
            let count = std::mem::take(&mut self.counts[position]);
            self.counts[target] += count;
            merged = target + 1;
        }
        self.counts.truncate(merged);
    }
}

impl Default for ExponentialHistogram {
    fn default() -> Self {
        Self {
            scale: INITIAL_SCALE,
            offset: 0,
            counts: Vec::new(),
            zero_count: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn histogram(values: &[f64]) -> ExponentialHistogram {
        let mut histogram = ExponentialHistogram::default();
        for value in values {
            histogram.record_n(*value, 1);
        }
        histogram
    }

    /// Begin, end and count of each bucket with values.
    fn buckets(histogram: &ExponentialHistogram) -> Vec<(f64, f64, u64)> {
        let bound = |index: i32| (f64::from(index) / f64::from(histogram.scale).exp2()).exp2();
        let numbered = (histogram.offset..)
            .zip(&histogram.counts)
            .filter(|(_, count)| **count > 0);
        numbered
            .map(|(index, count)| (bound(index), bound(index + 1), *count))
            .collect()
    }

    #[test]
    fn a_bucket_includes_its_upper_bound() {
        let histogram = histogram(&[1.0, 2.0, 2.000_001, 0.0, -1.0, f64::NAN, ZERO_THRESHOLD]);
        let ends: Vec<f64> = buckets(&histogram).iter().map(|(_, end, _)| *end).collect();
        assert_eq!((ends[0], ends[1], ends.len()), (1.0, 2.0, 3));
        assert_eq!(
            (histogram.zero_count(), histogram.scale()),
            (4, INITIAL_SCALE)
        );
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let mut histogram = histogram(&[1e-3, 60.0]);
        assert_eq!(histogram.scale(), INITIAL_SCALE);
        for value in [ZERO_THRESHOLD * 1.1, f64::INFINITY, 1.0] {
            histogram.record_n(value, 2);
            assert!(histogram.counts().len() <= MAX_EXPONENTIAL_BUCKETS);
        }
        assert_eq!(histogram.counts().iter().sum::<u64>(), 8);
        assert!(histogram.scale() < 0);
    }

    proptest! {
        #[test]
        fn every_value_is_within_its_bucket(values in prop::collection::vec(1e-9_f64..1e9, 1..50)) {
            let histogram = histogram(&values);
            let buckets = buckets(&histogram);
            let count = buckets.iter().map(|(_, _, count)| count).sum::<u64>();
            prop_assert_eq!(count, values.len() as u64);
            for (begin, end, count) in buckets {
                // Values close to a bound are not checked, because rounding can put them into either bucket.
                let at_least = values.iter().filter(|value| **value > begin * 1.000_001);
                let inside = at_least.filter(|value| **value < end * 0.999_999).count() as u64;
                prop_assert!(inside <= count, "{begin} to {end}: {inside} of {count}");
            }
        }

        #[test]
        fn merged_exponential_histograms_equal_one_of_all_values(
            low in prop::collection::vec(1e-9_f64..1e-3, 0..50),
            high in prop::collection::vec(1e-4_f64..1e9, 0..50),
        ) {
            let all = histogram(&[low.as_slice(), high.as_slice()].concat());
            let mut merged = histogram(&low);
            merged.merge(&histogram(&high));
            prop_assert_eq!(&merged, &all);
            let mut merged = histogram(&high);
            merged.merge(&histogram(&low));
            prop_assert_eq!(&merged, &all);
        }
    }
}
