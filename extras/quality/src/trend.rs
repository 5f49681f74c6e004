//! The trend of a quantity: an exponentially decaying mean over a recent window, and another over a
//! longer baseline window.
//!
//! The means depend only on the recorded values and their instants, and not on a clock.

use std::time::{Duration, Instant};

/// A mean in which the weight of a value decays with the age of the value. The weight is 1 at first
/// and 1/e after one time constant.
#[derive(Debug, Clone, Copy)]
struct DecayingMean {
    time_constant: Duration,
    /// Sum of (value × weight) over all recorded values, with the weights at `updated_at`.
    weighted_sum: f64,
    /// Sum of the weights of all recorded values at `updated_at`. It is at least 1 after the first
    /// value.
    total_weight: f64,
    /// Latest instant of a recorded value. `None`: no value was recorded.
    updated_at: Option<Instant>,
}

/// The exponentially decaying means of one quantity over the recent window and over the baseline
/// window.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeanTrend {
    recent: DecayingMean,
    baseline: DecayingMean,
}

/// Minimum total weight of the values of a reported mean. Without this minimum, a few unusual
/// values in a period with few requests would appear as a trend.
const MIN_MEAN_WEIGHT: f64 = 20.0;

impl DecayingMean {
    const fn new(time_constant: Duration) -> Self {
        Self {
            time_constant,
            weighted_sum: 0.0,
            total_weight: 0.0,
            updated_at: None,
        }
    }

    fn add(&mut self, value: f64, now: Instant) {
        let factor = self.decay_factor(now);
        self.weighted_sum = self.weighted_sum * factor + value;
        self.total_weight = self.total_weight * factor + 1.0;
        // `now` may be before `updated_at`, because responses that end at about the same time may
        // be recorded in any order.
        self.updated_at = self.updated_at.max(Some(now));
    }

    /// Returns the mean at `now`. `None`: the total weight at `now` is below [`MIN_MEAN_WEIGHT`].
    fn value_at(&self, now: Instant) -> Option<f64> {
        let is_enough = self.total_weight * self.decay_factor(now) >= MIN_MEAN_WEIGHT;
        is_enough.then(|| self.weighted_sum / self.total_weight)
    }

    /// Returns the factor by which the weight of each recorded value has decayed from `updated_at`
    /// to `now`.
    fn decay_factor(&self, now: Instant) -> f64 {
        let age = self.updated_at.map_or(Duration::ZERO, |updated_at| {
            now.saturating_duration_since(updated_at)
        });
        (-age.as_secs_f64() / self.time_constant.as_secs_f64()).exp()
    }
}

impl MeanTrend {
    /// Creates a trend without values. `recent` and `baseline` are the time constants of the two
    /// means.
    pub(super) const fn new(recent: Duration, baseline: Duration) -> Self {
        Self {
            recent: DecayingMean::new(recent),
            baseline: DecayingMean::new(baseline),
        }
    }

    pub(super) fn add(&mut self, value: f64, now: Instant) {
        self.recent.add(value, now);
        self.baseline.add(value, now);
    }

    /// Returns the recent and the baseline mean at `now`. A mean is `None` if the total weight of
    /// its values is below [`MIN_MEAN_WEIGHT`].
    pub(super) fn means(&self, now: Instant) -> [Option<f64>; 2] {
        [self.recent.value_at(now), self.baseline.value_at(now)]
    }

    /// Instant of the latest value. `None`: no value was recorded.
    pub(super) const fn last_update(&self) -> Option<Instant> {
        self.baseline.updated_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::iter::repeat_n;
    use tokenweir_protocol::clock;

    const HOUR: Duration = Duration::from_hours(1);
    const DAY: Duration = Duration::from_hours(24);

    /// Adds one value per minute to the trend. Returns the instant of the last value.
    fn record_one_per_minute(
        trend: &mut MeanTrend,
        from: Instant,
        values: impl IntoIterator<Item = f64>,
    ) -> Instant {
        let mut now = from;
        for value in values {
            now += Duration::from_mins(1);
            trend.add(value, now);
        }
        now
    }

    /// The recent mean divided by the baseline mean. `None`: a mean is unknown.
    fn ratio(trend: &MeanTrend, now: Instant) -> Option<f64> {
        let [recent, baseline] = trend.means(now);
        Some(recent? / baseline?)
    }

    #[test]
    fn the_recent_mean_changes_faster() {
        let mut trend = MeanTrend::new(HOUR, DAY);
        let steady = (0..3_000).map(|number| if number % 2 == 0 { 90.0 } else { 110.0 });
        let now = record_one_per_minute(&mut trend, clock::now(), steady);
        let steady = ratio(&trend, now).unwrap();
        assert!((steady - 1.0).abs() < 0.01, "{steady}");
        let now = record_one_per_minute(&mut trend, now, [200.0; 60]);
        let after_an_hour = ratio(&trend, now).unwrap();
        assert!((1.5..1.65).contains(&after_an_hour), "{after_an_hour}");
        let now = record_one_per_minute(&mut trend, now, [200.0; 60]);
        assert!(
            ratio(&trend, now).unwrap() > after_an_hour,
            "the change continues"
        );
        let now = record_one_per_minute(&mut trend, now, repeat_n(200.0, 24 * 60 * 6));
        let later = ratio(&trend, now).unwrap();
        assert!((later - 1.0).abs() < 0.01, "the baseline adapts: {later}");
    }

    #[test]
    fn few_or_old_values_give_no_mean() {
        let mut trend = MeanTrend::new(HOUR, DAY);
        assert_eq!(trend.means(clock::now()), [None, None]);
        let now = record_one_per_minute(&mut trend, clock::now(), [100.0; 19]);
        assert_eq!(ratio(&trend, now), None);
        let now = record_one_per_minute(&mut trend, now, [100.0; 60]);
        assert!(ratio(&trend, now).is_some());
        let [recent, baseline] = trend.means(now + 3 * HOUR);
        assert_eq!(recent, None, "no value for three hours");
        assert!(baseline.is_some(), "the baseline still has enough weight");
    }

    #[test]
    fn means_are_valid_after_a_long_pause() {
        let mut trend = MeanTrend::new(HOUR, DAY);
        let now = record_one_per_minute(&mut trend, clock::now(), [0.0; 100]);
        assert_eq!(trend.means(now), [Some(0.0); 2]);
        let now = record_one_per_minute(&mut trend, now + 24 * 365 * HOUR, [7.0; 100]);
        assert!((ratio(&trend, now).unwrap() - 1.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn means_stay_between_their_extremes(
            values in proptest::collection::vec((0_u32..100_000, 0_u64..100_000), 1..200),
        ) {
            let (mut trend, mut now) = (MeanTrend::new(HOUR, DAY), clock::now());
            let first = now;
            for (value, pause) in &values {
                // Some values are recorded with an instant before that of the previous value.
                let recorded_at = if pause % 7 == 0 { first } else { now };
                trend.add(f64::from(*value), recorded_at);
                now += Duration::from_millis(pause % 20_000);
            }
            let extreme = |select: fn(u32, u32) -> u32| {
                values.iter().map(|(value, _)| *value).reduce(select).map(f64::from).unwrap()
            };
            let (min, max) = (extreme(u32::min) - 1e-6, extreme(u32::max) + 1e-6);
            for mean in trend.means(now).into_iter().flatten() {
                prop_assert!((min..=max).contains(&mean), "{mean} of {min} to {max}");
            }
        }

        #[test]
        fn constant_values_have_equal_means_at_any_time(
            value in 1_u32..1_000_000,
            pauses in proptest::collection::vec(0_u64..200_000_000, 20..200),
        ) {
            let (mut trend, mut now) = (MeanTrend::new(HOUR, DAY), clock::now());
            for pause in pauses {
                now += Duration::from_millis(pause);
                trend.add(f64::from(value), now);
                if let Some(ratio) = ratio(&trend, now) {
                    prop_assert!((ratio - 1.0).abs() < 1e-9, "{ratio}");
                }
            }
        }
    }
}
