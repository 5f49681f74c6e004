//! The membership of a backend in its pool: the sampler that receives its load hint, and the notifier for free
//! capacity. A load hint is an estimate of the load for the selection of candidates in a large pool.

use super::capacity_notifier::CapacityNotifier;
use http::HeaderValue;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;
use tokenweir_routing::CandidateSampler;

/// The parts of a pool to which one of its backends reports changes.
#[derive(Debug)]
pub(super) struct PoolMembership {
    /// The sampler of the pool, which receives the load hint of the backend.
    pub(super) candidate_sampler: Arc<CandidateSampler>,
    /// Index of the backend in the pool. `usize::MAX`: the backend is not in a pool.
    pub(super) position: AtomicUsize,
    /// The notifier of the pool, which is called after every change that may free capacity.
    pub(super) capacity_notifier: Arc<CapacityNotifier>,
    /// The value of the `Via` header that names this gateway.
    pub(super) hop: HeaderValue,
}

impl PoolMembership {
    pub(super) fn none(now: Instant) -> Self {
        Self {
            candidate_sampler: Arc::new(CandidateSampler::new(now, 0)),
            position: AtomicUsize::new(usize::MAX),
            capacity_notifier: Arc::default(),
            hop: HeaderValue::from_static("1.1 tokenweir"),
        }
    }
}
