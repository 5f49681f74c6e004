//! Rate of events per second in which the weight of an event decays exponentially with its age. The divisor
//! grows with the time since the start, because with a constant divisor the rate would be too low at first.
//!
//! ```text
//! rate = Σ e^(−age ÷ τ) ÷ (τ · (1 − e^(−elapsed ÷ τ)))
//! ```

use std::time::{Duration, Instant};

/// Rate of events whose weights decay with their ages.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecayingRate {
    /// Time at which counting began.
    started_at: Instant,
    /// Time of the last event, or `started_at` without events.
    updated_at: Instant,
    /// Sum of the weights of all events at `updated_at`.
    weight: f64,
}

/// τ: age in seconds at which the weight of an event has fallen to 37 %.
const TIME_CONSTANT_SECONDS: f64 = 10.0;
/// Minimum time since the start for the computation of a rate.
const MIN_ELAPSED: Duration = Duration::from_millis(1);

impl DecayingRate {
    /// A rate without events. Counting begins at `now`.
    pub(super) fn begin(now: Instant) -> Self {
        Self {
            started_at: now,
            updated_at: now,
            weight: 0.0,
        }
    }

    pub(super) fn add(&mut self, now: Instant) {
        self.weight = self.weight_at(now) + 1.0;
        self.updated_at = now;
    }

    /// Events per second at `now`. Without a recorded event, one event at `now` is assumed.
    pub(super) fn per_second(&self, now: Instant) -> f64 {
        let elapsed = now
            .saturating_duration_since(self.started_at)
            .max(MIN_ELAPSED)
            .as_secs_f64();
        let weight = if self.weight > 0.0 {
            self.weight_at(now)
        } else {
            1.0
        };
        weight / (TIME_CONSTANT_SECONDS * -(-elapsed / TIME_CONSTANT_SECONDS).exp_m1())
    }

    /// Events per second at `now`. `None`: no recorded event.
    pub(super) fn measured_per_second(&self, now: Instant) -> Option<f64> {
        (self.weight > 0.0).then(|| self.per_second(now))
    }

    fn weight_at(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.updated_at).as_secs_f64();
        self.weight * (-age / TIME_CONSTANT_SECONDS).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    #[test]
    fn a_steady_rate_is_correct_from_the_start() {
        let start = clock::epoch();
        let mut rate = DecayingRate::begin(start);
        let mut now = start;
        for tick in 1..=400 {
            now += Duration::from_millis(250);
            rate.add(now);
            if tick >= 8 {
                let measured = rate.per_second(now);
                assert!((3.9..4.8).contains(&measured), "{measured} after {tick}");
            }
        }
        now += Duration::from_secs(20);
        assert!(
            rate.per_second(now) < 0.7,
            "no event for two time constants"
        );
    }

    #[test]
    fn the_rate_falls_before_the_first_event() {
        let start = clock::epoch();
        let rate = DecayingRate::begin(start);
        assert!(rate.per_second(start) > 100.0);
        let after = rate.per_second(start + Duration::from_secs(5));
        assert!((0.2..0.3).contains(&after), "{after}");
    }
}
