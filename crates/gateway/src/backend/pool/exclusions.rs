//! Why backends of a route are no candidates: what they lack for a request, and the reasons for the
//! record of a routing decision.

use super::eligible_backends::{BackendRequirements, BackendSearch};
use super::snapshot::PoolSnapshot;
use crate::backend::routes::ModelRoute;
use crate::backend::{Backend, MEDIA};
use std::sync::Arc;
use tokenweir_engine::prefill_leg::Role;
use tokenweir_request::record::RoutingDecision;
use tokenweir_routing::resilience::Availability;
use tokenweir_routing::{Candidate, CandidateSampler};

/// The estimated length of a request.
struct RequestLength {
    /// Tokens of the prompt and of the output that the client allows.
    tokens: f64,
    /// Whether `tokens` is computed with a number of tokens per byte that responses have shown.
    /// Otherwise the number is assumed.
    is_learned: bool,
}

/// A learned estimate of the tokens of a prompt is raised by this factor, because single prompts differ
/// from the mean: a backend whose context is too short refuses the request, and one with a longer
/// context than necessary costs nothing.
const LEARNED_MARGIN: f64 = 1.05;
/// Minimum number of tokens per byte of prompt text, which is assumed before responses have shown the number.
const LEAST_TOKENS_PER_BYTE: f64 = 1.0 / 8.0;

impl PoolSnapshot {
    /// The positions of the backends that are up, or suspected if `search` allows it, have a weight
    /// above 0 and were not tried. If the request requires one backend, others are excluded, too. This
    /// filter runs over all backends before other data of a backend is read, so that the CPU
    /// overlaps the cache misses of a large pool.
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

    /// Keeps the backends of `up` whose role allows the request: a prefill leg, or else a whole request.
    /// Prefill backends serve whole requests if no other backend is up, but not in a sample of the
    /// route, because backends with other roles may be up outside of the sample.
    pub(super) fn retain_role(&self, up: &mut Vec<usize>, is_prefill_leg: bool, is_sample: bool) {
        let backend = |position: &usize| &self.backends[*position];
        if is_prefill_leg {
            return up.retain(|position| backend(position).serves_prefill_legs());
        }
        let is_for_legs =
            |position: &usize| backend(position).identity.role() == Some(Role::Prefill);
        if is_sample || !up.iter().all(is_for_legs) {
            up.retain(|position| !is_for_legs(position));
        }
    }

    /// Keeps the backends of `up` that can serve the request. What the gateway knows of them can be
    /// wrong. So if no backend seems able, those that come nearest are kept, with two exceptions.
    /// In a sample of the route none is kept, because backends outside of the sample may be able.
    /// After a failed attempt none is kept, because the response to that attempt is more useful to
    /// the client.
    pub(super) fn retain_capable(
        &self,
        up: &mut Vec<usize>,
        route: &ModelRoute,
        search: &BackendSearch<'_>,
        is_sample: bool,
    ) {
        let BackendSearch { requirements, tried, now, .. } = *search;
        let health = |position: &usize| &self.backends[*position].health;
        let serves_path = |position: &usize| !health(position).lacks(requirements.path, now);
        let serves_media = |position: &usize| !health(position).lacks(Some(MEDIA), now);
        if up.iter().any(serves_path) {
            up.retain(serves_path);
        }
        if requirements.prompt.media > 0 && up.iter().any(serves_media) {
            up.retain(serves_media);
        }
        // A client repeats a request whose stream was cut.
        let has_cut =
            |position: &usize| health(position).recent_cuts.has(requirements.prompt.whole, now);
        if up.iter().any(|position| !has_cut(position)) {
            up.retain(|position| !has_cut(position));
        }
        let lengths = &route.lengths;
        if !lengths.is_uneven && requirements.longer_than.is_none() {
            return;
        }
        let longest = |up: &[usize]| {
            let known = if is_sample { &route.backends } else { up };
            lengths.greatest(known.iter().copied())
        };
        if requirements.longer_than.is_some() {
            let longest = longest(up).filter(|length| Some(*length) > requirements.longer_than);
            up.retain(|position| longest.is_some() && lengths.at(*position) == longest);
            return;
        }
        let Some(needed) = self.request_length(up, requirements) else { return };
        let holds = |position: &usize| needed.fits(lengths.at(*position));
        let is_strict = is_sample || !tried.is_empty() && needed.is_learned;
        if is_strict || up.iter().any(holds) {
            up.retain(holds);
        } else {
            let longest = longest(up);
            up.retain(|position| lengths.at(*position) == longest);
        }
    }

    /// The estimated length of a request, from what the responses of these backends have shown. `None`:
    /// the length cannot be estimated.
    fn request_length(
        &self,
        positions: &[usize],
        requirements: &BackendRequirements<'_>,
    ) -> Option<RequestLength> {
        let max_tokens = f64::from(requirements.max_tokens?);
        let texts = positions
            .iter()
            .map(|position| self.backends[*position].load.estimator.learned().text());
        let [bytes, tokens] =
            texts.fold([0.0, 0.0], |[bytes, tokens], text| [bytes + text[0], tokens + text[1]]);
        let is_learned = bytes > 0.0;
        let tokens_per_byte =
            if is_learned { tokens / bytes * LEARNED_MARGIN } else { LEAST_TOKENS_PER_BYTE };
        let prompt = requirements.prompt.tokens(tokens_per_byte);
        Some(RequestLength { tokens: prompt + max_tokens, is_learned })
    }

    /// The backends of the route that are no candidates, each with the reason, for the record of
    /// the decision. Empty in a large pool, where most backends are not in the sample.
    pub(super) fn exclusions(
        &self,
        route: &ModelRoute,
        candidates: &[Candidate],
        search: &BackendSearch<'_>,
    ) -> Box<[(usize, &'static str)]> {
        let BackendSearch { requirements, now, .. } = *search;
        let total = route.backends.len();
        // A backend whose ranks are targets of routing has one candidate for each rank.
        let backends = candidates.chunk_by(|a, b| a.position == b.position).count();
        if backends >= total || CandidateSampler::is_large(total) {
            return Box::default();
        }
        let is_candidate =
            |position: &usize| candidates.iter().any(|candidate| candidate.position == *position);
        let positions = route.backends.iter().filter(|position| !is_candidate(position));
        let is_uneven = route.lengths.is_uneven;
        let needed =
            is_uneven.then(|| self.request_length(&route.backends, requirements)).flatten();
        let reason = |position: &usize| {
            let backend = &self.backends[*position];
            let length = route.lengths.at(*position);
            let is_too_short = needed.as_ref().is_some_and(|needed| !needed.fits(length));
            let reason = match exclusion_reason(backend, search) {
                None if backend.health.lacks(requirements.path, now) => {
                    "it does not serve the path"
                }
                None if requirements.prompt.media > 0 && backend.health.lacks(Some(MEDIA), now) => {
                    "it does not serve media"
                }
                None if backend.health.recent_cuts.has(requirements.prompt.whole, now) => {
                    "it has just cut the stream of an equal request"
                }
                None if is_too_short => "its context is too short for the request",
                None if self.has_prefill_backends
                    && backend.identity.role() == Some(Role::Prefill) =>
                {
                    "its role is prefill"
                }
                None if backend.health.breaker.is_shut(now) => "it reported overload a moment ago",
                None => "it is full, or its share is limited after an ejection",
                Some(reason) => reason,
            };
            (*position, reason)
        };
        positions.take(RoutingDecision::MAX_RECORDED_CANDIDATES).map(reason).collect()
    }
}

impl RequestLength {
    /// Whether a context of this length can hold the request.
    fn fits(&self, length: Option<u32>) -> bool {
        length.is_none_or(|length| self.tokens <= f64::from(length))
    }
}

/// Why a backend of the route is no candidate, whatever the length, path and media of the request are.
/// `None`: the backend is available.
fn exclusion_reason(backend: &Arc<Backend>, search: &BackendSearch<'_>) -> Option<&'static str> {
    if search.requirements.backend.is_some_and(|only| *only != backend.identity.id) {
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
