//! Notifies systemd (`sd_notify`) when the gateway is ready, reloads or stops, and sends watchdog
//! notifications. Does nothing if `NOTIFY_SOCKET` is not set.

use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// Reports that the gateway serves requests.
pub(crate) fn notify_ready() {
    notify("READY=1\n");
}

/// Reports the start of a reload. Call [`notify_ready`] at its end.
pub(crate) fn notify_reloading() {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}\n", now.as_micros()));
}

/// Reports that the gateway shuts down.
pub(crate) fn notify_stopping() {
    notify("STOPPING=1\n");
}

/// Sends watchdog notifications at half the interval of `WATCHDOG_USEC`, until the future is
/// dropped. The future runs on the threads of the runtime: if they hang, the notifications stop,
/// and systemd restarts the gateway. Sends nothing if the watchdog is not enabled.
pub(crate) async fn run_watchdog() {
    let Some(timeout) = watchdog_timeout() else { return std::future::pending().await };
    let mut ticks = tokio::time::interval((timeout / 2).max(Duration::from_millis(1)));
    loop {
        ticks.tick().await;
        notify("WATCHDOG=1\n");
    }
}

/// The timeout of the watchdog. `None`: it is not enabled for this process.
fn watchdog_timeout() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_other = std::env::var_os("WATCHDOG_PID").is_some()
        && number("WATCHDOG_PID") != Some(std::process::id().into());
    number("WATCHDOG_USEC").map(Duration::from_micros).filter(|_| !is_other)
}

/// Sends lines of `NAME=VALUE` to systemd.
fn notify(lines: &str) {
    if let Err(error) = send(lines) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}

fn send(lines: &str) -> io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    UnixDatagram::unbound()?.send_to(lines.as_bytes(), path).map(drop)
}
