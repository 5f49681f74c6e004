//! The only place that reads clocks. [`now`] follows tokio's paused clock, so that tests of
//! deadlines run without waiting. All other code takes the time as an argument.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime};

/// The present instant of the monotonic clock.
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the function that others must call")]
    tokio::time::Instant::now().into_std()
}

/// An instant that is constant while the process lives: a common origin of times.
pub fn epoch() -> Instant {
    static EPOCH: LazyLock<Instant> = LazyLock::new(now);
    *EPOCH
}

/// The wall-clock time, for time stamps that leave the process. Never use it to measure durations.
pub fn wall_time() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "this is the function that others must call")]
    SystemTime::now()
}
