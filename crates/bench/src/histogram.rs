//! Many durations in fixed memory: a histogram whose buckets grow with the value, so that every
//! quantile is off by 0.2 % at most, from nanoseconds to an hour.

use serde::{Deserialize, Serialize};

/// Durations, counted.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    /// As long as the largest value needs, 9,216 buckets at most.
    counts: Vec<u64>,
    count: u64,
    sum: f64,
    max: f64,
}

/// What is shown of one. All in seconds; `None`s of an empty one are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many values there were.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// Buckets for each doubling of the value, as a power of two.
const BITS: u32 = 8;
/// Longest time that is told from longer ones: 2^43 ns, over two hours.
const MOST: u64 = (1 << 43) - 1;

// === impl Histogram ===

impl Histogram {
    /// Adds a duration in seconds.
    pub fn add(&mut self, seconds: f64) {
        let bucket = bucket((seconds.max(0.0) * 1e9).round() as u64);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
        self.sum += seconds;
        self.max = self.max.max(seconds);
    }

    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest value that at least a share `q` of all do not exceed; 0 if there are none.
    pub fn quantile(&self, q: f64) -> f64 {
        let rank = ((q * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return middle(bucket).min(self.max);
            }
        }
        0.0
    }

    /// How many values fall under each of these upper bounds, in seconds and ascending, and over
    /// the one before it; last, how many are over all.
    pub fn under(&self, bounds: &[f64]) -> Vec<u64> {
        let mut counts = vec![0; bounds.len() + 1];
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            counts[bounds.partition_point(|bound| *bound < middle(bucket))] += count;
        }
        counts
    }

    /// What is shown of it.
    pub fn summary(&self) -> Summary {
        Summary {
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

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.min(MOST);
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(BITS + 1);
    ((u64::from(shift) << BITS) + (nanos >> shift)) as usize
}

/// The middle of a bucket, in seconds.
fn middle(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    // Below two rounds of buckets each is one value.
    let shift = (bucket >> BITS).saturating_sub(1);
    let least = (bucket - (shift << BITS)) << shift;
    (least as f64 + ((1_u64 << shift) - 1) as f64 / 2.0) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_histogram_has_no_values() {
        assert_eq!(Histogram::default().summary(), Summary::default());
    }

    #[test]
    fn quantiles_are_those_of_the_values_and_never_above_the_largest() {
        let mut histogram = Histogram::default();
        for millis in 1..=1_000 {
            histogram.add(f64::from(millis) / 1e3);
        }
        let Summary { count, mean, p50, p99, max, .. } = histogram.summary();
        assert_eq!((count, max), (1_000, 1.0));
        assert!((mean - 0.5005).abs() < 1e-9);
        assert!((p50 / 0.5 - 1.0).abs() < 0.002 && (p99 / 0.99 - 1.0).abs() < 0.002);
        assert!(histogram.quantile(1.0) <= 1.0);
    }

    #[test]
    fn values_are_counted_under_bounds_of_others() {
        let mut histogram = Histogram::default();
        for seconds in [0.0, 0.004, 0.006, 0.5, 99.0] {
            histogram.add(seconds);
        }
        assert_eq!(histogram.under(&[0.005, 0.01, 1.0]), [2, 1, 1, 1]);
    }

    proptest! {
        #[test]
        fn every_value_is_known_to_a_fifth_of_a_percent(nanos in 0_u64..MOST) {
            let found = middle(bucket(nanos)) * 1e9;
            prop_assert!((found - nanos as f64).abs() <= 0.5 + nanos as f64 / 512.0);
        }

        #[test]
        fn a_larger_value_is_in_no_smaller_bucket(a in 0_u64..u64::MAX, b in 0_u64..u64::MAX) {
            prop_assert!((bucket(a) <= bucket(b)) == (a <= b) || bucket(a) == bucket(b));
        }
    }
}
