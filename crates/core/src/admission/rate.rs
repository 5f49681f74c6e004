//! How fast a line drains: a mean of events per second that forgets old ones, and that is not too
//! low when it has begun just now.
//!
//! ```text
//! rate = Σ e^(−age ÷ τ) ÷ (τ · (1 − e^(−elapsed ÷ τ)))
//! ```

use std::time::{Duration, Instant};

/// Events, each counting less as it ages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    since: Instant,
    at: Instant,
    weight: f64,
}

/// τ, the age at which an event counts for 37 %, in seconds.
const MEMORY: f64 = 10.0;
/// The least time that a rate is taken over.
const LEAST: Duration = Duration::from_millis(1);

impl Rate {
    /// No event has happened.
    pub(super) fn begin(now: Instant) -> Self {
        Self { since: now, at: now, weight: 0.0 }
    }

    /// One happens.
    pub(super) fn add(&mut self, now: Instant) {
        self.weight = self.weight_at(now) + 1.0;
        self.at = now;
    }

    /// Events per second. As long as none has happened: as if the first one did now.
    pub(super) fn per_second(&self, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.since).max(LEAST).as_secs_f64();
        let weight = if self.weight > 0.0 { self.weight_at(now) } else { 1.0 };
        weight / (MEMORY * -(-elapsed / MEMORY).exp_m1())
    }

    fn weight_at(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.at).as_secs_f64();
        self.weight * (-age / MEMORY).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_steady_rate_is_known_from_the_start_and_a_change_within_its_memory() {
        let start = start();
        let mut rate = Rate::begin(start);
        let mut now = start;
        for tick in 1..=400 {
            now += Duration::from_millis(250);
            rate.add(now);
            if tick >= 8 {
                let found = rate.per_second(now);
                assert!((3.9..4.8).contains(&found), "{found} after {tick}");
            }
        }
        now += Duration::from_secs(20);
        assert!(rate.per_second(now) < 0.7, "it has stood for two memories");
    }

    #[test]
    fn a_line_that_has_not_moved_is_as_slow_as_it_has_stood() {
        let start = start();
        let rate = Rate::begin(start);
        assert!(rate.per_second(start) > 100.0);
        let after = rate.per_second(start + Duration::from_secs(5));
        assert!((0.2..0.3).contains(&after), "{after}");
    }
}
