//! The mean of what comes, lately and for long, with more weight on what is newer: a function of
//! times and values, and nothing else.

use std::time::{Duration, Instant};

/// A mean in which a value counts less the older it is: after one window, 1/e of a new one.
#[derive(Debug, Clone, Copy)]
struct Mean {
    window: Duration,
    /// What all values come to, each with its weight, at `at`.
    sum: f64,
    /// Their weights. Invariant: it is above 0 if any value came at `at`.
    weight: f64,
    at: Option<Instant>,
}

/// The means of one quantity over two windows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trend {
    recent: Mean,
    baseline: Mean,
}

/// Values, each with its weight, that make a mean worth telling: a few unusual ones at night are
/// no trend.
const LEAST: f64 = 20.0;

impl Mean {
    const fn over(window: Duration) -> Self {
        Self { window, sum: 0.0, weight: 0.0, at: None }
    }

    fn add(&mut self, value: f64, now: Instant) {
        let kept = self.kept(now);
        self.sum = self.sum * kept + value;
        self.weight = self.weight * kept + 1.0;
        // Those who tell of two answers at once may do so in any order.
        self.at = self.at.max(Some(now));
    }

    fn at(&self, now: Instant) -> Option<f64> {
        let is_enough = self.weight * self.kept(now) >= LEAST;
        is_enough.then(|| self.sum / self.weight)
    }

    /// What is left of a weight.
    fn kept(&self, now: Instant) -> f64 {
        let age = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        (-age.as_secs_f64() / self.window.as_secs_f64()).exp()
    }
}

impl Trend {
    /// Nothing has come.
    pub(super) const fn over(recent: Duration, baseline: Duration) -> Self {
        Self { recent: Mean::over(recent), baseline: Mean::over(baseline) }
    }

    /// A value came.
    pub(super) fn add(&mut self, value: f64, now: Instant) {
        self.recent.add(value, now);
        self.baseline.add(value, now);
    }

    /// The recent mean and the one that it is compared to. `None`: too little has come to tell.
    pub(super) fn means(&self, now: Instant) -> [Option<f64>; 2] {
        [self.recent.at(now), self.baseline.at(now)]
    }

    /// The recent mean over the one that it is compared to: 1 is no drift.
    pub(super) fn drift(&self, now: Instant) -> Option<f64> {
        let [recent, baseline] = self.means(now);
        Some(recent? / baseline.filter(|baseline| *baseline > 0.0)?)
    }

    /// When the last value came.
    pub(super) const fn last(&self) -> Option<Instant> {
        self.baseline.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::iter::repeat_n;

    const HOUR: Duration = Duration::from_hours(1);
    const DAY: Duration = Duration::from_hours(24);

    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    fn start() -> Instant {
        Instant::now()
    }

    /// Each value, one a minute.
    fn fed(trend: &mut Trend, from: Instant, values: impl IntoIterator<Item = f64>) -> Instant {
        let mut now = from;
        for value in values {
            now += Duration::from_mins(1);
            trend.add(value, now);
        }
        now
    }

    #[test]
    fn lengths_that_stay_do_not_drift_and_lengths_that_double_drift_towards_two() {
        let mut trend = Trend::over(HOUR, DAY);
        let steady = (0..3_000).map(|number| if number % 2 == 0 { 90.0 } else { 110.0 });
        let now = fed(&mut trend, start(), steady);
        let drift = trend.drift(now).unwrap();
        assert!((drift - 1.0).abs() < 0.01, "{drift}");
        let now = fed(&mut trend, now, [200.0; 60]);
        let after_an_hour = trend.drift(now).unwrap();
        assert!((1.5..1.65).contains(&after_an_hour), "{after_an_hour}");
        let now = fed(&mut trend, now, [200.0; 60]);
        assert!(trend.drift(now).unwrap() > after_an_hour, "and goes on");
        let now = fed(&mut trend, now, repeat_n(200.0, 24 * 60 * 6));
        let drift = trend.drift(now).unwrap();
        assert!((drift - 1.0).abs() < 0.01, "what stays becomes what is usual: {drift}");
    }

    #[test]
    fn lengths_that_halve_drift_below_one() {
        let mut trend = Trend::over(HOUR, DAY);
        let now = fed(&mut trend, start(), repeat_n(100.0, 3_000));
        let now = fed(&mut trend, now, [50.0; 120]);
        assert!((0.5..0.65).contains(&trend.drift(now).unwrap()));
    }

    #[test]
    fn a_few_answers_and_answers_of_long_ago_are_no_trend() {
        let mut trend = Trend::over(HOUR, DAY);
        assert_eq!((trend.drift(start()), trend.means(start())), (None, [None, None]));
        let now = fed(&mut trend, start(), [100.0; 19]);
        assert_eq!(trend.drift(now), None);
        let now = fed(&mut trend, now, [100.0; 60]);
        assert!(trend.drift(now).is_some());
        let later = now + 3 * HOUR;
        assert_eq!(trend.drift(later), None, "nothing came for three hours");
        assert!(trend.means(later)[1].is_some(), "of a day they are still a part");
    }

    #[test]
    fn answers_of_no_tokens_have_no_drift_and_no_time_is_too_long() {
        let mut trend = Trend::over(HOUR, DAY);
        let now = fed(&mut trend, start(), [0.0; 100]);
        assert_eq!(trend.drift(now), None);
        let now = fed(&mut trend, now + 24 * 365 * HOUR, [7.0; 100]);
        assert!((trend.drift(now).unwrap() - 1.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn a_mean_is_between_the_least_and_the_most_whatever_the_times(
            values in proptest::collection::vec((0_u32..100_000, 0_u64..100_000), 1..200),
        ) {
            let (mut trend, mut now) = (Trend::over(HOUR, DAY), start());
            let first = now;
            for (value, pause) in &values {
                // Some are told of late.
                let at = if pause % 7 == 0 { first } else { now };
                trend.add(f64::from(*value), at);
                now += Duration::from_millis(pause % 20_000);
            }
            let of = |pick: fn(u32, u32) -> u32| {
                values.iter().map(|(value, _)| *value).reduce(pick).map(f64::from).unwrap()
            };
            let (least, most) = (of(u32::min) - 1e-6, of(u32::max) + 1e-6);
            for mean in trend.means(now).into_iter().flatten() {
                prop_assert!((least..=most).contains(&mean), "{mean} of {least} to {most}");
            }
        }

        #[test]
        fn what_is_always_the_same_never_drifts(
            value in 1_u32..1_000_000,
            pauses in proptest::collection::vec(0_u64..200_000_000, 20..200),
        ) {
            let (mut trend, mut now) = (Trend::over(HOUR, DAY), start());
            for pause in pauses {
                now += Duration::from_millis(pause);
                trend.add(f64::from(value), now);
                if let Some(drift) = trend.drift(now) {
                    prop_assert!((drift - 1.0).abs() < 1e-9, "{drift}");
                }
            }
        }
    }
}
