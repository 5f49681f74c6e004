//! A histogram of durations in fixed memory. Bucket widths grow with the value, so every quantile
//! has an error of at most 0.2 %, from nanoseconds to two hours.

use serde::{Deserialize, Serialize};

/// A histogram of durations.
#[derive(Debug, Clone, Default)]
pub struct LatencyHistogram {
    /// As long as the largest value needs, at most 9,216 buckets.
    counts: Vec<u64>,
    count: u64,
    sum: f64,
    max: f64,
}

/// Summary of a histogram in seconds. All fields of an empty histogram are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

/// Number of buckets per doubling of the value, as a power of two.
const SUB_BUCKET_BITS: u32 = 8;
/// Values above this limit share the last bucket: 2^43 ns, over two hours.
const MAX_NANOSECONDS: u64 = (1 << 43) - 1;

// === impl Histogram ===

impl LatencyHistogram {
    /// Records a duration in seconds.
    pub fn add(&mut self, seconds: f64) {
        let bucket_index = bucket_index((seconds.max(0.0) * 1e9).round() as u64);
        if self.counts.len() <= bucket_index {
            self.counts.resize(bucket_index + 1, 0);
        }
        self.counts[bucket_index] += 1;
        self.count += 1;
        self.sum += seconds;
        self.max = self.max.max(seconds);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest value that at least a share `q` of all values do not exceed. 0 without values.
    pub fn quantile(&self, q: f64) -> f64 {
        let rank = ((q * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return bucket_midpoint_seconds(bucket).min(self.max);
            }
        }
        0.0
    }

    /// Counts the values per bucket of these ascending upper bounds in seconds. The last count is
    /// that of the values above all bounds.
    pub fn under(&self, bounds: &[f64]) -> Vec<u64> {
        let mut counts = vec![0; bounds.len() + 1];
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            counts[bounds.partition_point(|bound| *bound < bucket_midpoint_seconds(bucket))] +=
                count;
        }
        counts
    }

    /// Returns the summary.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary {
            count: self.count,
            mean: self.sum / self.count.max(1) as f64,
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p95: self.quantile(0.95),
            p99: self.quantile(0.99),
            max: self.max,
        }
    }
}

fn bucket_index(nanos: u64) -> usize {
    let nanos = nanos.min(MAX_NANOSECONDS);
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(SUB_BUCKET_BITS + 1);
    ((u64::from(shift) << SUB_BUCKET_BITS) + (nanos >> shift)) as usize
}

/// Midpoint of a bucket in seconds.
fn bucket_midpoint_seconds(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    // The first two rounds of buckets hold one value each.
    let shift = (bucket >> SUB_BUCKET_BITS).saturating_sub(1);
    let least = (bucket - (shift << SUB_BUCKET_BITS)) << shift;
    (least as f64 + ((1_u64 << shift) - 1) as f64 / 2.0) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_histogram_has_no_values() {
        assert_eq!(LatencyHistogram::default().summary(), LatencySummary::default());
    }

    #[test]
    fn quantiles_match_the_values_and_never_exceed_the_maximum() {
        let mut histogram = LatencyHistogram::default();
        for millis in 1..=1_000 {
            histogram.add(f64::from(millis) / 1e3);
        }
        let LatencySummary { count, mean, p50, p99, max, .. } = histogram.summary();
        assert_eq!((count, max), (1_000, 1.0));
        assert!((mean - 0.5005).abs() < 1e-9);
        assert!((p50 / 0.5 - 1.0).abs() < 0.002 && (p99 / 0.99 - 1.0).abs() < 0.002);
        assert!(histogram.quantile(1.0) <= 1.0);
    }

    #[test]
    fn values_are_counted_in_the_buckets_of_other_bounds() {
        let mut histogram = LatencyHistogram::default();
        for seconds in [0.0, 0.004, 0.006, 0.5, 99.0] {
            histogram.add(seconds);
        }
        assert_eq!(histogram.under(&[0.005, 0.01, 1.0]), [2, 1, 1, 1]);
    }

    proptest! {
        #[test]
        fn the_error_of_a_value_is_at_most_a_fifth_of_a_percent(nanos in 0_u64..MAX_NANOSECONDS) {
            let midpoint = bucket_midpoint_seconds(bucket_index(nanos)) * 1e9;
            prop_assert!((midpoint - nanos as f64).abs() <= 0.5 + nanos as f64 / 512.0);
        }

        #[test]
        fn buckets_are_monotonic(a in 0_u64..u64::MAX, b in 0_u64..u64::MAX) {
            prop_assert!((bucket_index(a) <= bucket_index(b)) == (a <= b) || bucket_index(a) == bucket_index(b));
        }
    }
}
