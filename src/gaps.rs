//! The time between one piece of output and the next, kept for one request as a histogram of
//! fixed size: a stream of a million tokens costs as much memory as one of ten.

use std::time::Duration;

/// Upper bounds in seconds: the bounds that OpenTelemetry and vLLM use for inter-token latency,
/// so that quantiles compare, and finer ones below 50 ms, where fast models are.
pub const BOUNDS: [f64; 26] = [
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.08,
    0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0,
];

/// The gaps of one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gaps {
    /// How many gaps fell under each bound and over the one before it; the last is open.
    counts: [u32; BOUNDS.len() + 1],
    count: u32,
    sum: Duration,
    max: Duration,
}

impl Gaps {
    /// Adds one gap.
    pub fn add(&mut self, gap: Duration) {
        let seconds = gap.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.count = self.count.saturating_add(1);
        self.sum += gap;
        self.max = self.max.max(gap);
    }

    /// How many gaps there were.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The sum of all gaps.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The longest gap.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The mean gap; `None` if there was no gap.
    pub fn mean(&self) -> Option<Duration> {
        self.sum.checked_div(self.count)
    }

    /// Counts by bucket, in the order of [`BOUNDS`], then the open one.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// The `q` quantile in seconds, interpolated inside its bucket as Prometheus does, and never
    /// above the longest gap. `None` if there was no gap.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let rank = q * f64::from(self.count);
        let mut below = 0.0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            let upto = below + f64::from(count);
            if upto >= rank && count > 0 {
                let max = self.max.as_secs_f64();
                let lower = if bucket == 0 { 0.0 } else { BOUNDS[bucket - 1] };
                let upper = BOUNDS.get(bucket).copied().unwrap_or(max);
                return Some(
                    (lower + (upper - lower) * (rank - below) / f64::from(count)).min(max),
                );
            }
            below = upto;
        }
        Some(self.max.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_on_a_bound_falls_under_it() {
        let mut gaps = Gaps::default();
        gaps.add(Duration::from_millis(10));
        gaps.add(Duration::from_nanos(10_000_001));
        gaps.add(Duration::from_secs(100));
        assert_eq!((gaps.counts()[4], gaps.counts()[5], gaps.counts()[BOUNDS.len()]), (1, 1, 1));
        assert_eq!(gaps.max(), Duration::from_secs(100));
    }

    #[test]
    fn a_quantile_is_within_its_bucket() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.quantile(0.95), None);
        for _ in 0..95 {
            gaps.add(Duration::from_micros(1_500));
        }
        for _ in 0..5 {
            gaps.add(Duration::from_millis(45));
        }
        let p50 = gaps.quantile(0.5).unwrap();
        assert!((0.001..=0.0025).contains(&p50), "{p50}");
        assert!(gaps.quantile(0.99).unwrap() > 0.04);
        assert!(gaps.quantile(1.0).unwrap() <= 0.045);
    }
}
