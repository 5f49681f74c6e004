//! The load that a lease adds to one part of a backend, such as a data-parallel rank.

use super::targets::{BackendTargets, PartialTarget};
use http::HeaderMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::{Candidate, LoadEstimator, PromptFingerprint, Reservation};

/// The load of one attempt on one part of a backend. Dropping this value releases the load.
#[derive(Debug)]
pub(super) struct LeasedTarget {
    parts: Arc<Vec<PartialTarget>>,
    index: usize,
    reservation: Mutex<Reservation>,
}

impl LeasedTarget {
    /// Adds a request to the load of the part of `candidate`, which the policy picked. `None`: the candidate is
    /// the whole backend, or the parts have changed since `candidate` was computed.
    pub(super) fn new(
        targets: &BackendTargets,
        candidate: &Candidate,
        prompt: &PromptFingerprint,
        is_stream: bool,
        now: Instant,
    ) -> Option<Self> {
        let number = candidate.part?;
        let parts = targets.parts()?;
        let index = parts
            .iter()
            .position(|target| target.part.number == number)?;
        let reservation = parts[index]
            .estimator
            .reserve(candidate, prompt, is_stream, now);
        Some(Self {
            parts,
            index,
            reservation: Mutex::new(reservation),
        })
    }

    fn target(&self) -> &PartialTarget {
        &self.parts[self.index]
    }

    /// Sets the header that sends the request to the part.
    pub(super) fn set_header(&self, headers: &mut HeaderMap) {
        let target = self.target();
        headers.insert(target.header.clone(), target.header_value.clone());
    }

    /// Whether a response refuses the part. `says` returns whether the response contains a text.
    pub(super) fn is_refused(&self, says: impl Fn(&[u8]) -> bool) -> bool {
        says(self.target().refusal)
    }

    /// Applies an observation of the response to the load of the part.
    pub(super) fn observe(&self, observe: impl FnOnce(&LoadEstimator, &mut Reservation)) {
        let mut reservation = lock(&self.reservation);
        observe(&self.target().estimator, &mut reservation);
    }
}

impl Drop for LeasedTarget {
    fn drop(&mut self) {
        self.observe(|estimator, reservation| estimator.release(*reservation, clock::now()));
    }
}
