//! The settings of runs that clients can return to.

use std::time::Duration;
use tokenweir_protocol::limits::memory_charge::MemoryLimits;

/// How long runs wait for their clients, and how much memory they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeSettings {
    /// How long a run without a reader waits for its client to return. This includes a run that has ended.
    pub window: Duration,
    /// Maximum memory of all runs together, in bytes.
    pub memory: usize,
}

/// The runs of one party may use the total memory divided by this number.
const PARTY_DIVISOR: usize = 2;
/// One run may use the total memory divided by this number.
const RUN_DIVISOR: usize = 16;

impl ResumeSettings {
    /// The memory limits, in bytes: of one run, of the runs of one party, and of all runs.
    pub fn memory_limits(&self) -> MemoryLimits {
        let total = self.memory;
        MemoryLimits { one: total / RUN_DIVISOR, party: total / PARTY_DIVISOR, total }
    }
}
