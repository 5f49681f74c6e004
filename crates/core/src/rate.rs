//! How many of something a second may have: the generic cell rate algorithm on one atomic.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A limit that a burst of one second may use up at once.
#[derive(Debug)]
pub struct Rate {
    epoch: Instant,
    /// Nanoseconds between two of an even flow. `None`: there is none at all.
    pause: Option<u64>,
    /// Nanoseconds after the epoch at which an even flow would have its next one.
    due: AtomicU64,
}

/// The burst, in nanoseconds.
const BURST: u64 = 1_000_000_000;

impl Rate {
    /// So many a second, from `epoch` on.
    pub fn new(per_second: u32, epoch: Instant) -> Self {
        let pause = BURST.checked_div(u64::from(per_second));
        Self { epoch, pause, due: AtomicU64::new(0) }
    }

    /// Whether there is room for one more at `now`, which then is taken.
    pub fn take(&self, now: Instant) -> bool {
        let Some(pause) = self.pause else { return false };
        let now = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        let next = |due: u64| Some(due.max(now) + pause).filter(|next| *next <= now + BURST);
        self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

impl PartialEq for Rate {
    /// Whether both allow the same.
    fn eq(&self, other: &Self) -> bool {
        self.pause == other.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_gets_a_burst_of_a_second_and_then_its_rate() {
        let epoch = crate::clock::now();
        let rate = Rate::new(100, epoch);
        let mut taken = Vec::new();
        // Ten thousand a second, for three seconds.
        for tick in 0..30_000 {
            let second = tick / 10_000;
            taken.resize(second + 1, 0);
            let now = epoch + Duration::from_micros(100) * tick as u32;
            taken[second] += u32::from(rate.take(now));
        }
        assert_eq!(taken, [199, 100, 100]);
    }

    #[test]
    fn what_was_saved_up_is_at_most_a_second() {
        let epoch = crate::clock::now();
        let rate = Rate::new(10, epoch);
        let later = epoch + Duration::from_hours(1);
        assert_eq!((0..50).filter(|_| rate.take(later)).count(), 10);
    }

    #[test]
    fn a_flow_within_the_rate_loses_nothing_and_none_lets_nothing_pass() {
        let epoch = crate::clock::now();
        let (rate, none) = (Rate::new(1_000, epoch), Rate::new(0, epoch));
        let moments = (0..5_000).map(|tick| epoch + Duration::from_millis(1) * tick);
        assert!(moments.clone().all(|now| rate.take(now)));
        assert!(!moments.clone().any(|now| none.take(now)));
    }
}
