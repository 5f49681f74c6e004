//! The place of a backend in its pool: where it publishes its load hint and freed capacity.

use super::capacity_notifier::CapacityNotifier;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokenweir_core::routing::{Candidate, CandidateSampler};

/// The place of a backend in its pool.
#[derive(Debug)]
pub(super) struct PoolMembership {
    /// Receives the load hint of the backend.
    candidate_sampler: Arc<CandidateSampler>,
    /// Index in the pool. `usize::MAX` outside a pool.
    position: AtomicUsize,
    /// Notified of every change that may free capacity.
    capacity_notifier: Arc<CapacityNotifier>,
}

impl PoolMembership {
    /// A backend that has no position yet.
    pub(super) const fn new(
        candidate_sampler: Arc<CandidateSampler>,
        capacity_notifier: Arc<CapacityNotifier>,
    ) -> Self {
        Self { candidate_sampler, position: AtomicUsize::new(usize::MAX), capacity_notifier }
    }

    /// A backend outside a pool.
    pub(super) fn none(now: Instant) -> Self {
        Self::new(Arc::new(CandidateSampler::new(now, 0)), Arc::default())
    }

    /// Sets the index in the pool.
    pub(super) fn set_position(&self, position: usize) {
        self.position.store(position, Ordering::Relaxed);
    }

    /// Publishes the load hint. `candidate` returns `None` if the backend must not get requests.
    pub(super) fn publish_load_hint(
        &self,
        now: Instant,
        candidate: impl FnOnce() -> Option<Candidate>,
    ) {
        self.candidate_sampler.show(self.position.load(Ordering::Relaxed), now, candidate);
    }

    /// Wakes queued requests.
    pub(super) fn notify_capacity(&self) {
        self.capacity_notifier.notify();
    }
}
