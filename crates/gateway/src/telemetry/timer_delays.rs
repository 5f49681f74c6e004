//! The delays with which timers of the async runtime fire: whether the gateway gets enough CPU time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The sum of the delays since the start.
#[derive(Debug, Default)]
pub struct TimerDelays {
    timers: AtomicU64,
    late_micros: AtomicU64,
}

impl TimerDelays {
    pub(super) fn record(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.timers.fetch_add(1, Ordering::Relaxed);
        self.late_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Number of timers that fired.
    pub fn timers(&self) -> u64 {
        self.timers.load(Ordering::Relaxed)
    }

    /// Sum of the times by which they were late.
    pub fn late(&self) -> Duration {
        Duration::from_micros(self.late_micros.load(Ordering::Relaxed))
    }
}
