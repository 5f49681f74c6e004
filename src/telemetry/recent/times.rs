//! Times under bounds that are near each other, so that their quantiles move when they do.

use std::sync::LazyLock;
use std::time::Duration;
use tokenweir_api::Quantiles;
use tokenweir_core::spread::{self, Gaps};

/// Counts of times.
#[derive(Debug, Clone)]
pub struct Times {
    counts: Vec<u32>,
    max: f64,
}

/// The least bound, in seconds.
const LEAST: f64 = 1e-4;
/// Bounds of an octave: each is 9 % above the one before.
const STEPS: u32 = 8;
/// Up to 1,700 seconds.
const OCTAVES: u32 = 24;

/// Upper bounds, ascending.
static BOUNDS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let bound = |step: u32| LEAST * 2_f64.powf(f64::from(step) / f64::from(STEPS));
    (0..STEPS * OCTAVES).map(bound).collect()
});

// === impl Times ===

impl Times {
    /// Counts one.
    pub fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.count(seconds, 1);
        self.max = self.max.max(seconds);
    }

    /// Counts those of one stream: each in the middle of its bucket there.
    pub fn add_spread(&mut self, gaps: &Gaps) {
        let parts = gaps.parts();
        let mut lower = 0.0;
        for (count, bound) in parts.counts.iter().zip(gaps.bounds().iter().chain([&parts.max])) {
            let upper = bound.min(parts.max);
            if *count > 0 {
                self.count(f64::midpoint(lower, upper), *count);
            }
            lower = upper;
        }
        self.max = self.max.max(parts.max);
    }

    /// Counts those of another one as well.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.max = self.max.max(other.max);
    }

    /// Where they lie. `None`: there are none.
    pub fn quantiles(&self) -> Option<Quantiles> {
        let q = |q| Some(spread::quantile(&BOUNDS, &self.counts, q)?.min(self.max));
        Some(Quantiles {
            p50: q(0.5)?,
            p95: q(0.95)?,
            p99: q(0.99)?,
            max: self.max,
            count: self.counts.iter().map(|count| u64::from(*count)).sum(),
        })
    }

    fn count(&mut self, seconds: f64, times: u32) {
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(times);
        }
    }
}

impl Default for Times {
    fn default() -> Self {
        Self { counts: vec![0; BOUNDS.len() + 1], max: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_tenth_of_what_they_should_be_and_never_above_the_longest() {
        let mut times = Times::default();
        assert_eq!(times.quantiles(), None);
        (1..=1_000).for_each(|millis| times.add(Duration::from_millis(millis)));
        let found = times.quantiles().unwrap();
        for (found, expected) in [(found.p50, 0.5), (found.p95, 0.95), (found.p99, 0.99)] {
            assert!((found / expected - 1.0_f64).abs() < 0.1, "{found} for {expected}");
        }
        assert_eq!((found.max, found.count), (1.0, 1_000));
        assert!(found.p99 <= found.max);
    }

    #[test]
    fn times_beyond_all_bounds_are_counted() {
        let mut times = Times::default();
        times.add(Duration::ZERO);
        times.add(Duration::from_secs(1_000_000));
        let found = times.quantiles().unwrap();
        assert_eq!((found.count, found.p99, found.max), (2, 1e6, 1e6));
    }

    #[test]
    fn the_gaps_of_streams_are_added_up() {
        let mut gaps = Gaps::default();
        gaps.add_gap(Duration::from_millis(28), 99);
        gaps.add_gap(Duration::from_mins(2), 1);
        let mut times = Times::default();
        times.add_spread(&gaps);
        times.add_spread(&gaps);
        let found = times.quantiles().unwrap();
        assert_eq!((found.count, found.max), (200, 120.0));
        assert!((0.025..=0.03).contains(&found.p95), "{found:?}");
    }
}
