//! The only functions that read clocks. All other code calls these functions or takes the time as
//! an argument. [`now`] follows tokio's paused clock, so that tests of deadlines run without
//! waiting.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The monotonic time. In tests with tokio's paused clock, the paused time.
pub fn now() -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the function that others must call"
    )]
    tokio::time::Instant::now().into_std()
}

/// The time of the first call of this function in the process. Later calls return the same instant, so stored
/// times can be numbers relative to it.
pub fn epoch() -> Instant {
    static EPOCH: LazyLock<Instant> = LazyLock::new(now);
    *EPOCH
}

/// Nanoseconds from [`epoch`] to `time`, so that an atomic integer can store a time. Negative before the epoch.
pub fn nanos(time: Instant) -> i64 {
    let epoch = epoch();
    let before = || epoch.saturating_duration_since(time).as_nanos() as i64;
    time.checked_duration_since(epoch)
        .map_or_else(|| -before(), |after| after.as_nanos() as i64)
}

/// The wall-clock time, for time stamps that leave the process. Never use it to measure durations.
pub fn wall_time() -> SystemTime {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the function that others must call"
    )]
    SystemTime::now()
}

/// The wall-clock time since the Unix epoch, or 0 if the clock is set before the Unix epoch.
pub fn unix_time() -> Duration {
    wall_time().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The milliseconds since the Unix epoch.
pub fn unix_millis() -> u64 {
    u64::try_from(unix_time().as_millis()).unwrap_or(u64::MAX)
}

/// The CPU time that the current thread has used. Always 0 on systems other than Linux.
pub fn thread_cpu_time() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(time).unwrap_or_default()
    }
    #[cfg(not(target_os = "linux"))]
    Duration::ZERO
}
