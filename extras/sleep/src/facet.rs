//! The sleep mode of one backend.

use serde::Serialize;
use std::sync::Mutex;
use tokenweir_gateway::backend::facets::{BackendFacet, BackendTargets};
use tokenweir_gateway::status::StatusBlocks;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::mutex::lock;

/// The sleep mode of one backend: the pending wake request and the counts.
#[derive(Debug, Default)]
pub(crate) struct SleepFacet {
    /// Whether requests wait until the sleeping engine is awake. Cleared when the engine is awake or
    /// cannot be woken.
    pub(crate) is_wake_requested: AtomicFlag,
    pub(crate) counts: Mutex<SleepCounts>,
}

/// Number of changes of the sleep mode by the gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SleepCounts {
    /// Number of times that the gateway woke the engine.
    pub wakes: u64,
    /// Number of times that the gateway put the engine to sleep.
    pub sleeps: u64,
}

impl BackendFacet for SleepFacet {
    fn request_activation(&self) {
        self.is_wake_requested.set(true);
    }

    fn is_activation_requested(&self) -> bool {
        self.is_wake_requested.get()
    }

    fn add_status(&self, _: &BackendTargets, blocks: &mut StatusBlocks) {
        blocks.add(*lock(&self.counts));
    }
}
