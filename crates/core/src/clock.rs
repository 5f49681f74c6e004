//! The only place that reads time. [`now`] obeys tokio's paused clock, so every test of a
//! deadline runs at once; everything below this file takes the time as an argument.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime};

/// The monotonic clock.
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the function that others must call")]
    tokio::time::Instant::now().into_std()
}

/// A moment that stays the same while the process lives, for what is to happen in step.
pub fn origin() -> Instant {
    static ORIGIN: LazyLock<Instant> = LazyLock::new(now);
    *ORIGIN
}

/// The wall clock, for time stamps that leave the process. Never used to measure.
pub fn wall() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "this is the function that others must call")]
    SystemTime::now()
}
