//! The outcomes of the requests of the last minute at one backend, for the failure ratio of its circuit
//! breaker.

use std::time::{Duration, Instant};

/// Numbers of successes and failures in windows of [`WINDOW_LENGTH`].
#[derive(Debug)]
pub(super) struct RecentOutcomes {
    /// The current and the earlier windows, the newest first.
    windows: [OutcomeWindow; WINDOW_COUNT],
    /// Start of the current time window.
    began: Instant,
}

/// The numbers of requests that succeeded and failed in one window.
#[derive(Debug, Clone, Copy, Default)]
struct OutcomeWindow {
    successes: u32,
    failures: u32,
}

/// Length of one time window in which the outcomes of requests are counted.
pub(super) const WINDOW_LENGTH: Duration = Duration::from_secs(5);
/// Number of windows for the failure ratio. It is large because a backend with few requests needs a long time
/// to get enough of them.
pub(super) const WINDOW_COUNT: usize = 12;
/// Minimum number of windows for the failure ratio.
const MIN_WINDOWS: usize = 2;
/// Number of requests in the newest windows from which older windows no longer count.
const ENOUGH_REQUESTS: u32 = 20;
/// Minimum number of requests in the counted windows. Below it, the failure ratio is 0.
const MIN_REQUESTS: u32 = 10;
/// Minimum number of failures in the counted windows. Below it, the failure ratio is 0.
const MIN_FAILURES: u32 = 5;
impl RecentOutcomes {
    pub(super) const fn new(now: Instant) -> Self {
        let empty = OutcomeWindow {
            successes: 0,
            failures: 0,
        };
        Self {
            windows: [empty; WINDOW_COUNT],
            began: now,
        }
    }

    pub(super) fn record(&mut self, is_failure: bool, now: Instant) {
        let age = now.saturating_duration_since(self.began);
        if age >= WINDOW_LENGTH {
            let elapsed = (age.as_nanos() / WINDOW_LENGTH.as_nanos()).min(WINDOW_COUNT as u128);
            for _ in 0..elapsed {
                self.windows.rotate_right(1);
                self.windows[0] = OutcomeWindow::default();
            }
            self.began = now;
        }
        self.windows[0].failures += u32::from(is_failure);
        self.windows[0].successes += u32::from(!is_failure);
    }

    pub(super) fn clear(&mut self) {
        self.windows = [OutcomeWindow::default(); WINDOW_COUNT];
    }

    /// Share of failures in the newest windows that together have [`ENOUGH_REQUESTS`]. 0: these windows have
    /// too few requests or failures.
    pub(super) fn failure_ratio(&self) -> f64 {
        let mut requests = 0_u32;
        let mut failures = 0_u32;
        for (index, window) in self.windows.iter().enumerate() {
            if index >= MIN_WINDOWS && requests >= ENOUGH_REQUESTS {
                break;
            }
            failures += window.failures;
            requests += window.failures + window.successes;
        }
        if requests < MIN_REQUESTS || failures < MIN_FAILURES {
            return 0.0;
        }
        f64::from(failures) / f64::from(requests)
    }
}
