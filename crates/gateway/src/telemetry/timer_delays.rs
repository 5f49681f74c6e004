//! The delays with which timers of the async runtime fire. They show whether the gateway gets enough CPU time.

use std::time::Duration;
use tokenweir_protocol::atomic::AtomicCounter;

/// The sums of the delays since the start.
#[derive(Debug, Default)]
pub struct TimerDelays {
    timers: AtomicCounter,
    late_micros: AtomicCounter,
    pauses: AtomicCounter,
    pause_micros: AtomicCounter,
    longest_micros: AtomicCounter,
}

/// Delay of a timer above which the whole process must have been stopped.
const PAUSE: Duration = Duration::from_millis(700);

impl TimerDelays {
    pub(super) fn record(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.timers.add(1);
        self.late_micros.add(micros);
        if delay >= PAUSE {
            self.pauses.add(1);
            self.pause_micros.add(micros);
            self.longest_micros.raise_to(micros);
        }
    }

    /// Number of timers that were late by 0.7 s or more.
    pub fn pauses(&self) -> u64 {
        self.pauses.get()
    }

    /// Sum of the delays of timers that were late by 0.7 s or more.
    pub fn paused(&self) -> Duration {
        Duration::from_micros(self.pause_micros.get())
    }

    /// The longest delay of 0.7 s or more since the last call.
    pub fn take_longest_pause(&self) -> Duration {
        Duration::from_micros(self.longest_micros.take())
    }

    /// Number of timers whose delay was measured.
    pub fn timers(&self) -> u64 {
        self.timers.get()
    }

    /// Total time by which timers have fired late.
    pub fn late(&self) -> Duration {
        Duration::from_micros(self.late_micros.get())
    }
}
