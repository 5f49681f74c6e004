//! Why backends of a route are no candidates, for the record of a routing decision.

use super::snapshot::{BackendRequirements, PoolSnapshot};
use crate::backend::Backend;
use crate::backend::routes::ModelRoute;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_core::record::{BackendId, RoutingDecision};
use tokenweir_core::resilience::Availability;
use tokenweir_core::routing::{Candidate, CandidateSampler};

impl PoolSnapshot {
    /// The backends of the route that are no candidates, for the record of the decision. Empty in a
    /// large pool, where most backends are not in the sample.
    pub(super) fn exclusions(
        &self,
        route: &ModelRoute,
        candidates: &[Candidate],
        requirements: &BackendRequirements<'_>,
        tried: &[Arc<Backend>],
        now: Instant,
    ) -> Box<[(usize, &'static str)]> {
        let total = route.backends.len();
        if candidates.len() >= total || CandidateSampler::is_large(total) {
            return Box::default();
        }
        let is_candidate =
            |position: &usize| candidates.iter().any(|candidate| candidate.position == *position);
        let positions = route.backends.iter().filter(|position| !is_candidate(position));
        let reason = |position: &usize| {
            let backend = &self.backends[*position];
            (*position, exclusion_reason(backend, requirements.backend, tried, now))
        };
        positions.take(RoutingDecision::MAX_RECORDED_CANDIDATES).map(reason).collect()
    }
}

/// Why a backend of the route is no candidate, in a few words. `only`: the only backend that may
/// serve the request.
fn exclusion_reason(
    backend: &Arc<Backend>,
    only: Option<&BackendId>,
    tried: &[Arc<Backend>],
    now: Instant,
) -> &'static str {
    if only.is_some_and(|only| *only != backend.identity.id) {
        return "another backend has the stored response";
    }
    if tried.iter().any(|tried| Arc::ptr_eq(tried, backend)) {
        return "an attempt failed there";
    }
    match backend.availability(now) {
        Availability::Available if backend.health.breaker.is_shut(now) => {
            "it reported overload a moment ago"
        }
        Availability::Available => "it is full, or its share is limited after an ejection",
        Availability::ZeroWeight => "weight 0",
        Availability::Unknown => "not checked yet",
        state => state.as_str(),
    }
}
