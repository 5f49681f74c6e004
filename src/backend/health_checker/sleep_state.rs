//! What the health checker knows about the sleep of one engine.

use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

/// What the health checker knows about the sleep of one engine.
pub(super) struct SleepState {
    /// The last time at which the engine had work.
    pub(super) busy_at: Instant,
    /// When the engine was last told to wake.
    pub(super) woken_at: Option<Instant>,
    /// Whether the engine has refused to sleep since its last start.
    pub(super) refuses_sleep: bool,
    /// Held while the engine falls asleep. The backend gets no requests in this time.
    pub(super) falling_asleep: Option<OwnedSemaphorePermit>,
}

impl SleepState {
    pub(super) fn new(now: Instant) -> Self {
        Self { busy_at: now, woken_at: None, refuses_sleep: false, falling_asleep: None }
    }
}
