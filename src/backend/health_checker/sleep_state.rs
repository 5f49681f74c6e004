//! What the health checker knows about the sleep of one engine.

use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

/// What the health checker knows about the sleep of one engine.
pub(super) struct SleepState {
    /// The last time at which the engine had work.
    pub(super) busy_at: Instant,
    /// When the engine was last told to wake. `None`: never since its last start.
    pub(super) woken_at: Option<Instant>,
    /// Whether the engine has refused to sleep since its last start.
    pub(super) refuses_sleep: bool,
    /// The permit that is held while the engine falls asleep, in which time the backend gets no
    /// requests. `None`: the engine does not fall asleep now.
    pub(super) falling_asleep: Option<OwnedSemaphorePermit>,
}

impl SleepState {
    pub(super) fn new(now: Instant) -> Self {
        Self { busy_at: now, woken_at: None, refuses_sleep: false, falling_asleep: None }
    }
}
