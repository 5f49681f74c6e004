//! What the service manager is told, if there is one: when the gateway is ready, reads its
//! configuration again or ends, and that it lives. Where there is none, this does nothing.

use sd_notify::NotifyState;
use std::time::Duration;

/// It serves.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// It reads its configuration. To be followed by [`ready`].
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "the service manager is not told of a reload"),
    }
}

/// It ends.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says that it lives, for as long as its threads do, twice as often as the manager wants to hear it.
pub(crate) async fn alive() {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut ticks = tokio::time::interval((limit / 2).max(Duration::from_millis(1)));
    loop {
        ticks.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}
