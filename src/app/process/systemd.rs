//! Notifies systemd (`sd_notify`) when the gateway is ready, reloads or stops, and sends watchdog
//! notifications. Does nothing if `NOTIFY_SOCKET` is not set.

use sd_notify::NotifyState;
use std::time::Duration;

/// Notifies systemd that the gateway serves requests.
pub(crate) fn notify_ready() {
    notify(&[NotifyState::Ready]);
}

/// Notifies systemd of the start of a reload. Call [`notify_ready`] at the end of the reload.
pub(crate) fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "cannot notify systemd of the reload"),
    }
}

/// Notifies systemd that the gateway shuts down.
pub(crate) fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Sends watchdog notifications at half the interval of `WATCHDOG_USEC`, until the future is dropped. The
/// future runs on the threads of the Tokio runtime. So if they hang, the notifications stop, and systemd
/// restarts the gateway. Sends nothing if the watchdog is not enabled.
pub(crate) async fn run_watchdog() {
    let Some(timeout) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut ticks = tokio::time::interval((timeout / 2).max(Duration::from_millis(1)));
    loop {
        ticks.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}
