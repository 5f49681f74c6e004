//! Sleep mode of vLLM: an engine without requests gives its GPU memory to another engine of the same GPU.

pub mod rows;

use super::BackendFacet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::units;
use tokenweir_routing::resilience::Availability;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Whether the gateway wakes sleeping engines and puts idle ones to sleep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SleepSettings {
    /// Whether a request for a model without a backend with capacity wakes a sleeping one.
    pub wake: bool,
    /// Time without requests after which an engine is put to sleep. `None`: never.
    #[serde(with = "units::OptionalDuration")]
    pub idle: Option<Duration>,
}

/// The sleep mode of one backend.
#[derive(Debug, Default)]
pub struct SleepFacet {
    /// Whether requests wait until the sleeping engine is awake. Cleared when the engine is awake or
    /// cannot be woken.
    pub(crate) is_wake_requested: AtomicFlag,
    wakes: AtomicU64,
    sleeps: AtomicU64,
}

/// How often the gateway changed the sleep mode of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SleepCounts {
    /// Number of times that the gateway woke the engine.
    pub wakes: u64,
    /// Number of times that the gateway put the engine to sleep.
    pub sleeps: u64,
}

/// The permit to put an engine of the pool to sleep. There is one, so only one engine at a time falls asleep.
#[derive(Debug)]
pub(crate) struct SleepPermits(Arc<Semaphore>);

/// What the health checker of a backend knows of its sleep mode.
#[derive(Debug)]
pub(crate) struct SleepControl {
    /// The last time at which the engine had work.
    pub(crate) busy_at: Instant,
    /// The permit to put the engine to sleep. While the engine falls asleep, the permit is held and the
    /// backend gets no requests. `None`: the engine does not fall asleep now.
    pub(crate) falling_asleep: Option<OwnedSemaphorePermit>,
    /// Time of the last request that asked the engine to wake. `None`: there was none since the last start of
    /// the server.
    pub(crate) woken_at: Option<Instant>,
    /// Whether the engine has refused to sleep since the last start of the server.
    pub(crate) refuses: bool,
}

impl SleepSettings {
    /// Whether a request can make a backend with this availability available.
    pub(super) fn can_activate(&self, availability: Availability) -> bool {
        self.wake && availability == Availability::Asleep
    }
}

impl SleepFacet {
    /// How often the gateway changed the sleep mode of the engine.
    pub fn counts(&self) -> SleepCounts {
        SleepCounts {
            wakes: self.wakes.load(Ordering::Relaxed),
            sleeps: self.sleeps.load(Ordering::Relaxed),
        }
    }

    /// Records that the gateway woke the engine.
    pub(crate) fn on_woken(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the gateway put the engine to sleep.
    pub(crate) fn on_asleep(&self) {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
    }
}

impl BackendFacet for SleepFacet {
    fn request_activation(&self) {
        self.is_wake_requested.set(true);
    }

    fn is_activation_requested(&self) -> bool {
        self.is_wake_requested.get()
    }
}

impl SleepPermits {
    /// The permit to put an engine to sleep. `None`: another engine is being put to sleep.
    pub(crate) fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_owned().ok()
    }
}

impl Default for SleepPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl SleepControl {
    pub(super) fn new(now: Instant) -> Self {
        Self { busy_at: now, falling_asleep: None, woken_at: None, refuses: false }
    }

    /// Forgets what another start of the server can change.
    pub(super) fn reset(&mut self) {
        self.woken_at = None;
        self.refuses = false;
    }
}
