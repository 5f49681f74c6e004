//! A rolling p99 (99th percentile) of the durations of the last 2 to 4 minutes.
//!
//! Two histograms of limited size count the durations, so that memory does not depend on the number of
//! requests.

use std::time::{Duration, Instant};
use tokenweir_protocol::histogram::DurationHistogram;

/// Histograms of recent durations, and their p99.
#[derive(Debug, Default)]
pub(super) struct RollingP99 {
    /// The durations of the current window of 2 minutes.
    current: WindowHistogram,
    /// The durations of the current window and of the previous window, from which the p99 is
    /// computed.
    recent: WindowHistogram,
    /// Start of the current window. `None`: no value was recorded yet.
    window_start: Option<Instant>,
    /// Number of durations that were recorded since the p99 was last computed.
    values_since_update: u32,
    /// Index of the histogram bucket that contains the p99. `None`: there are fewer than [`MIN_VALUES_FOR_P99`]
    /// recent values.
    p99: Option<usize>,
}

/// A histogram whose buckets are 6 to 12.5 % wide.
type WindowHistogram = DurationHistogram<3>;

/// Length of a window. Durations older than two windows are discarded.
const WINDOW_DURATION: Duration = Duration::from_mins(2);
/// Minimum number of recent durations from which a p99 is computed.
const MIN_VALUES_FOR_P99: u32 = 200;
/// Number of durations between two computations of the p99.
const VALUES_PER_UPDATE: u32 = 32;

impl RollingP99 {
    /// Records a value measured at `now`. Returns whether the value is in a higher bucket than the p99 of
    /// earlier values. With a constant distribution of values, this is true for at most 1 % of them.
    pub(super) fn record_exceeds_p99(&mut self, value: Duration, now: Instant) -> bool {
        self.rotate_windows(now);
        let exceeds_p99 = self
            .p99
            .is_some_and(|p99| WindowHistogram::bucket_index(value) > p99);
        self.current.record(value);
        self.recent.record(value);
        self.values_since_update += 1;
        if self.values_since_update >= VALUES_PER_UPDATE {
            self.update_p99();
        }
        exceeds_p99
    }

    /// Starts a new window if the current window has expired.
    fn rotate_windows(&mut self, now: Instant) {
        let window_start = *self.window_start.get_or_insert(now);
        let age = now.saturating_duration_since(window_start);
        if age < WINDOW_DURATION {
            return;
        }
        if age < WINDOW_DURATION * 2 {
            std::mem::swap(&mut self.current, &mut self.recent);
        } else {
            self.recent.clear();
        }
        self.current.clear();
        self.window_start = Some(now);
        self.update_p99();
    }

    fn update_p99(&mut self) {
        self.values_since_update = 0;
        let is_enough = self.recent.count() >= u64::from(MIN_VALUES_FOR_P99);
        self.p99 = if is_enough {
            self.recent.quantile_bucket(0.99)
        } else {
            None
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn few_or_equal_durations_never_exceed_the_p99() {
        let now = clock::now();
        let mut few = RollingP99::default();
        assert!(
            (0..u64::from(MIN_VALUES_FOR_P99 - VALUES_PER_UPDATE))
                .all(|n| !few.record_exceeds_p99(millis(1 << (n % 20)), now))
        );
        let mut equal = RollingP99::default();
        assert!((0..10_000).all(|_| !equal.record_exceeds_p99(millis(50), now)));
    }

    #[test]
    fn about_one_percent_of_durations_exceed_the_p99() {
        let now = clock::now();
        let mut random = fastrand::Rng::with_seed(3);
        let mut rolling = RollingP99::default();
        // The product of many small factors has a log-normal distribution.
        let mut value =
            || millis((0..12).fold(100.0, |v, _| v * (0.8 + 0.45 * random.f64())) as u64);
        let values: Vec<Duration> = (0..50_000).map(|_| value()).collect();
        let mut sorted = values.clone();
        sorted.sort_unstable();
        let p99 = sorted[values.len() * 99 / 100];
        let is_slow = |value: &Duration| rolling.record_exceeds_p99(*value, now);
        let slow: Vec<Duration> = values.iter().copied().filter(is_slow).collect();
        assert!(
            slow.len() < values.len() / 90,
            "{} of {}",
            slow.len(),
            values.len()
        );
        // A bucket is at most 12.5 % wide, and the first p99 values are computed from few durations.
        let is_well_over = |value: &&Duration| **value > p99.mul_f64(1.125);
        let expected = values[5_000..].iter().filter(is_well_over).count();
        let detected = slow.iter().filter(is_well_over).count();
        assert!(
            expected > 0 && detected * 10 >= expected * 9,
            "{detected} of {expected}"
        );
    }

    #[test]
    fn longer_durations_become_usual_within_minutes() {
        let mut now = clock::now();
        let mut rolling = RollingP99::default();
        (0..1_000).for_each(|_| assert!(!rolling.record_exceeds_p99(millis(10), now)));
        assert!(rolling.record_exceeds_p99(millis(1_000), now));
        for _ in 0..3 {
            now += WINDOW_DURATION;
            for _ in 0..1_000 {
                rolling.record_exceeds_p99(millis(1_000), now);
            }
        }
        assert!(!rolling.record_exceeds_p99(millis(1_000), now));
        // After a pause of three windows, all earlier values are discarded, so there is no p99.
        assert!(rolling.record_exceeds_p99(millis(9_000), now));
        assert!(!rolling.record_exceeds_p99(millis(9_000), now + 3 * WINDOW_DURATION));
    }
}
