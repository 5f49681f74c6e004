//! Why backends of a route are no candidates: because of their state or of an option. The record of the routing
//! decision contains these reasons.

use super::eligible_backends::BackendSearch;
use super::snapshot::PoolSnapshot;
use crate::backend::Backend;
use crate::backend::facets::{RequestPart, Suitability};
use crate::backend::routes::ModelRoute;
use std::sync::Arc;
use tokenweir_request::record::RoutingDecision;
use tokenweir_routing::resilience::Availability;
use tokenweir_routing::{Candidate, CandidateSampler};

impl PoolSnapshot {
    /// The positions of untried backends with a weight above 0 that are up, or suspected if `search` allows it.
    /// If the request requires one backend, only that one remains. The filter runs over all backends before
    /// other data is read, so that the CPU overlaps the cache misses of a large pool.
    pub(super) fn filter_up(&self, positions: &[usize], search: &BackendSearch<'_>) -> Vec<usize> {
        let allows_suspected = search.allows_suspected;
        let only = search.requirements.backend;
        let is_excluded = |backend: &Arc<Backend>| {
            only.is_some_and(|only| *only != backend.identity.id) || search.has_tried(backend)
        };
        let mut up = Vec::with_capacity(positions.len());
        up.extend(positions.iter().copied().filter(|position| {
            let backend = &self.backends[*position];
            let is_serving = backend.health.is_serving()
                || allows_suspected && backend.health.is_suspected.get();
            is_serving && backend.weight() > 0 && !is_excluded(backend)
        }));
        up
    }

    /// Keeps the backends of `up` whose options allow this part of a request. If only backends of last choice
    /// remain, they are kept, except in a sample: other backends may be up outside of the sample.
    pub(super) fn retain_suitable(
        &self,
        up: &mut Vec<usize>,
        search: &BackendSearch<'_>,
        is_sample: bool,
    ) {
        let model = search.requirements.model;
        let suitability = |position: &usize| {
            let facets = &self.backends[*position].facets;
            facets.suitability(search.part, model)
        };
        up.retain(|position| suitability(position) != Suitability::Unsuitable);
        let is_suitable = |position: &usize| suitability(position) == Suitability::Suitable;
        if is_sample || up.iter().any(is_suitable) {
            up.retain(is_suitable);
        }
    }

    /// The backends of the route that are no candidates, each with the reason, for the record of the decision.
    /// Empty in a large pool, where the sample omits most backends.
    pub(super) fn exclusions(
        &self,
        route: &ModelRoute,
        candidates: &[Candidate],
        search: &BackendSearch<'_>,
    ) -> Box<[(usize, &'static str)]> {
        let BackendSearch {
            requirements, now, ..
        } = *search;
        let total = route.backends.len();
        // A backend whose ranks are targets of routing has one candidate for each rank.
        let backends = candidates.chunk_by(|a, b| a.position == b.position).count();
        if backends >= total || CandidateSampler::is_large(total) {
            return Box::default();
        }
        let is_candidate = |position: &usize| {
            candidates
                .iter()
                .any(|candidate| candidate.position == *position)
        };
        let positions = route
            .backends
            .iter()
            .filter(|position| !is_candidate(position));
        let needs = self.needs(&route.backends, route, requirements, now);
        let reason = |position: &usize| {
            let backend = &self.backends[*position];
            if let Some(reason) = exclusion_reason(backend, search) {
                return (*position, reason);
            }
            let reason = match backend
                .facets
                .suitability(RequestPart::Whole, requirements.model)
            {
                _ if !needs.serves_path(backend) => "it does not serve the path",
                _ if !needs.serves_media(backend) => "it does not serve media",
                _ if needs.is_too_long_for(backend, *position) => {
                    "its context is too short for the request"
                }
                _ if backend
                    .health
                    .recent_cuts
                    .has(requirements.prompt.whole, now) =>
                {
                    "it has just cut the stream of an equal request"
                }
                Suitability::LastChoice(reason) => reason,
                _ if backend.health.breaker.is_shut(now) => "it reported overload a moment ago",
                _ => "it is full, or its share is limited after an ejection",
            };
            (*position, reason)
        };
        positions
            .take(RoutingDecision::MAX_RECORDED_CANDIDATES)
            .map(reason)
            .collect()
    }
}

/// Why a backend of the route is no candidate for any request, regardless of length, path and media. `None`:
/// the backend is available.
fn exclusion_reason(backend: &Arc<Backend>, search: &BackendSearch<'_>) -> Option<&'static str> {
    if search
        .requirements
        .backend
        .is_some_and(|only| *only != backend.identity.id)
    {
        return Some("another backend has the stored response");
    }
    if search.has_tried(backend) {
        return Some("an attempt failed there");
    }
    match backend.availability(search.now) {
        Availability::Available => None,
        Availability::ZeroWeight => Some("weight 0"),
        Availability::Unknown => Some("not checked yet"),
        state => Some(state.as_str()),
    }
}
