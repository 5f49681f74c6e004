//! Why backends of a route are no candidates: because of their state or of an option. The record of the routing
//! decision contains these reasons.

use super::capability::RequestNeeds;
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
        positions
            .take(RoutingDecision::MAX_RECORDED_CANDIDATES)
            .map(|position| (*position, self.exclusion_reason(*position, &needs, search)))
            .collect()
    }

    /// The reason, for the record of the decision, why the backend at `position` is no candidate.
    fn exclusion_reason(
        &self,
        position: usize,
        needs: &RequestNeeds<'_>,
        search: &BackendSearch<'_>,
    ) -> &'static str {
        let backend = &self.backends[position];
        let BackendSearch {
            requirements, now, ..
        } = *search;
        if requirements
            .backend
            .is_some_and(|only| *only != backend.identity.id)
        {
            return "another backend has the stored response";
        }
        if search.has_tried(backend) {
            return "an attempt failed there";
        }
        match backend.availability(now) {
            Availability::Available => {}
            Availability::ZeroWeight => return "weight 0",
            Availability::Unknown => return "not checked yet",
            state => return state.as_str(),
        }
        if !needs.serves_path(backend) {
            return "it does not serve the path";
        }
        if !needs.serves_media(backend) {
            return "it does not serve media";
        }
        if needs.is_too_long_for(backend, position) {
            return "its context is too short for the request";
        }
        let health = &backend.health;
        if health.recent_cuts.has(requirements.prompt.whole, now) {
            return "it has just cut the stream of an equal request";
        }
        let whole = RequestPart::Whole;
        if let Suitability::LastChoice(reason) =
            backend.facets.suitability(whole, requirements.model)
        {
            return reason;
        }
        if health.breaker.is_shut(now) {
            return "it reported overload a moment ago";
        }
        "it is full, or its share is limited after an ejection"
    }
}
