//! The part of a lease that counts in the load of one data-parallel rank.

use super::rank_set::{DataParallelRanks, Rank};
use http::HeaderMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::X_DATA_PARALLEL_RANK;
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::{Candidate, LoadEstimator, PromptFingerprint, Reservation};

/// The load of one attempt on one data-parallel rank. Dropping this value releases the load.
#[derive(Debug)]
pub(crate) struct LeasedRank {
    ranks: Arc<Vec<Rank>>,
    index: usize,
    reservation: Mutex<Reservation>,
}

impl LeasedRank {
    /// Adds a request to the load of the data-parallel rank of `candidate`, which the policy
    /// picked. `None`: the backend chooses the rank, or its ranks have changed since `candidate`
    /// was computed.
    pub(crate) fn new(
        ranks: &DataParallelRanks,
        candidate: &Candidate,
        prompt: &PromptFingerprint,
        is_stream: bool,
        now: Instant,
    ) -> Option<Self> {
        let number = candidate.part?;
        let ranks = ranks.targets()?;
        let index = ranks.iter().position(|rank| rank.part.number == number)?;
        let reservation = ranks[index].estimator.reserve(candidate, prompt, is_stream, now);
        Some(Self { ranks, index, reservation: Mutex::new(reservation) })
    }

    fn rank(&self) -> &Rank {
        &self.ranks[self.index]
    }

    /// Sets the header `X-data-parallel-rank`, which sends the request to the rank.
    pub(crate) fn set_header(&self, headers: &mut HeaderMap) {
        headers.insert(X_DATA_PARALLEL_RANK, self.rank().header.clone());
    }

    /// Applies an observation of the response to the load of the rank.
    pub(crate) fn observe(&self, observe: impl FnOnce(&LoadEstimator, &mut Reservation)) {
        let mut reservation = lock(&self.reservation);
        observe(&self.rank().estimator, &mut reservation);
    }
}

impl Drop for LeasedRank {
    fn drop(&mut self) {
        self.observe(|estimator, reservation| estimator.release(*reservation, clock::now()));
    }
}
