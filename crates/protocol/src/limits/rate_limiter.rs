//! A rate limiter without locks: the generic cell rate algorithm (GCRA) with one atomic number as its state.

use crate::clock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

/// Limits permits per second. A burst may take the permits of one second at once.
#[derive(Debug)]
pub struct GcraLimiter {
    /// Nanoseconds between two permits at the allowed rate. `None`: the rate is zero.
    emission_interval_nanos: Option<i64>,
    /// The theoretical arrival time of GCRA: the time at which the next permit is due at the allowed rate, as
    /// [`clock::nanos`] counts it.
    theoretical_arrival_nanos: AtomicI64,
}

/// Length of the time whose permits a burst may take at once, in nanoseconds: one second.
const BURST_NANOS: i64 = 1_000_000_000;

impl GcraLimiter {
    /// Allows `per_second` permits per second.
    pub fn new(per_second: u32) -> Self {
        Self {
            emission_interval_nanos: BURST_NANOS.checked_div(i64::from(per_second)),
            theoretical_arrival_nanos: AtomicI64::new(i64::MIN),
        }
    }

    /// Takes a permit at the time `now`. Returns whether a permit was available.
    pub fn try_acquire(&self, now: Instant) -> bool {
        let Some(interval) = self.emission_interval_nanos else {
            return false;
        };
        let now_nanos = clock::nanos(now);
        let next_arrival = |due_nanos: i64| {
            Some(due_nanos.max(now_nanos) + interval)
                .filter(|next_nanos| *next_nanos <= now_nanos + BURST_NANOS)
        };
        self.theoretical_arrival_nanos
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next_arrival)
            .is_ok()
    }
}

impl PartialEq for GcraLimiter {
    /// Whether both limiters allow the same rate.
    fn eq(&self, other: &Self) -> bool {
        self.emission_interval_nanos == other.emission_interval_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_of_one_second_precedes_the_rate() {
        let epoch = clock::now();
        let limiter = GcraLimiter::new(100);
        let mut acquired = Vec::new();
        // The requests arrive at 10,000 per second for three seconds.
        for tick in 0..30_000 {
            let second = tick / 10_000;
            acquired.resize(second + 1, 0);
            let now = epoch + Duration::from_micros(100) * tick as u32;
            acquired[second] += u32::from(limiter.try_acquire(now));
        }
        assert_eq!(acquired, [199, 100, 100]);
    }

    #[test]
    fn unused_permits_last_for_one_second() {
        let limiter = GcraLimiter::new(10);
        let now = clock::now() + Duration::from_hours(1);
        assert_eq!((0..50).filter(|_| limiter.try_acquire(now)).count(), 10);
    }

    #[test]
    fn flows_within_the_rate_pass() {
        let epoch = clock::now();
        let limiter = GcraLimiter::new(1_000);
        let blocked = GcraLimiter::new(0);
        let instants = (0..5_000).map(|tick| epoch + Duration::from_millis(1) * tick);
        assert!(instants.clone().all(|now| limiter.try_acquire(now)));
        assert!(!instants.clone().any(|now| blocked.try_acquire(now)));
    }
}
