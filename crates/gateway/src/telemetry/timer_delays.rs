//! The delays with which timers of the async runtime fire. They show whether the gateway gets enough CPU time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The sums of the delays since the start.
#[derive(Debug, Default)]
pub struct TimerDelays {
    timers: AtomicU64,
    late_micros: AtomicU64,
    pauses: AtomicU64,
    pause_micros: AtomicU64,
    longest_micros: AtomicU64,
}

/// Delay of a timer above which the whole process must have been stopped.
const PAUSE: Duration = Duration::from_millis(700);

impl TimerDelays {
    pub(super) fn record(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.timers.fetch_add(1, Ordering::Relaxed);
        self.late_micros.fetch_add(micros, Ordering::Relaxed);
        if delay >= PAUSE {
            self.pauses.fetch_add(1, Ordering::Relaxed);
            self.pause_micros.fetch_add(micros, Ordering::Relaxed);
            self.longest_micros.fetch_max(micros, Ordering::Relaxed);
        }
    }

    /// Number of timers that were late by 0.7 s or more.
    pub fn pauses(&self) -> u64 {
        self.pauses.load(Ordering::Relaxed)
    }

    /// Sum of the delays of timers that were late by 0.7 s or more.
    pub fn paused(&self) -> Duration {
        Duration::from_micros(self.pause_micros.load(Ordering::Relaxed))
    }

    /// The longest delay of 0.7 s or more since the last call.
    pub fn take_longest_pause(&self) -> Duration {
        Duration::from_micros(self.longest_micros.swap(0, Ordering::Relaxed))
    }

    /// Number of timers whose delay was measured.
    pub fn timers(&self) -> u64 {
        self.timers.load(Ordering::Relaxed)
    }

    /// Total time by which timers have fired late.
    pub fn late(&self) -> Duration {
        Duration::from_micros(self.late_micros.load(Ordering::Relaxed))
    }
}
