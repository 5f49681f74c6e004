//! The memory of runs: counted for each run, for its client and for all.

use crate::record::ResumeOutcome;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Limits in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Of one run.
    pub run: usize,
    /// Of all runs of one client.
    pub client: usize,
    /// Of all runs.
    pub total: usize,
}

/// The bytes that one run takes. Dropping it returns them.
#[derive(Debug)]
pub(super) struct Charge {
    bytes: usize,
    client: Arc<AtomicUsize>,
    total: Arc<AtomicUsize>,
}

impl Charge {
    /// A charge of nothing.
    pub(super) fn new(client: Arc<AtomicUsize>, total: Arc<AtomicUsize>) -> Self {
        Self { bytes: 0, client, total }
    }

    /// Adds bytes within the limits. Fails with the limit that they exceed, and adds nothing then.
    pub(super) fn add(&mut self, bytes: usize, limits: &MemoryLimits) -> Result<(), ResumeOutcome> {
        if self.bytes + bytes > limits.run {
            return Err(ResumeOutcome::RunMemory);
        }
        add_within(&self.client, bytes, limits.client).ok_or(ResumeOutcome::TenantMemory)?;
        if add_within(&self.total, bytes, limits.total).is_none() {
            self.client.fetch_sub(bytes, Ordering::Relaxed);
            return Err(ResumeOutcome::TotalMemory);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Adds bytes that pass through and are not kept.
    pub(super) fn add_passing(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.client.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns bytes.
    pub(super) fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.client.fetch_sub(bytes, Ordering::Relaxed);
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

fn add_within(used: &AtomicUsize, bytes: usize, limit: usize) -> Option<()> {
    let sum = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok().map(|_| ())
}
