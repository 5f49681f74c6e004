//! Which backends can serve a request, by its path, media and length, whether or not they are available
//! now. A request that only unavailable backends can serve waits for them.

use super::eligible_backends::{BackendRequirements, BackendSearch};
use super::snapshot::PoolSnapshot;
use crate::backend::facets::{RequestPart, Suitability};
use crate::backend::routes::{ModelLengths, ModelRoute};
use crate::backend::{Backend, MEDIA};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;
use tokenweir_routing::resilience::Availability;

/// What a request needs of a backend of its model.
pub(super) struct RequestNeeds<'a> {
    requirements: &'a BackendRequirements<'a>,
    lengths: &'a ModelLengths,
    /// The length of the request. `None`: the context length of the backends does not matter, or the
    /// length of the request cannot be estimated.
    length: Option<RequestLength>,
    now: Instant,
}

/// The estimated length of a request.
struct RequestLength {
    /// Tokens of the prompt and of the output that the client allows.
    tokens: f64,
    /// The part of `tokens` that the client allows for the output.
    output: f64,
    /// The least number of tokens, whatever the text of the prompt is.
    least: f64,
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
    /// Keeps the backends of `up` that can serve the request, without those that have just cut the stream of
    /// an equal request if others remain: a client repeats a request whose stream was cut.
    pub(super) fn retain_capable(
        &self,
        up: &mut Vec<usize>,
        route: &ModelRoute,
        search: &BackendSearch<'_>,
        is_sample: bool,
    ) {
        self.retain_able(up, route, search, is_sample);
        let whole = search.requirements.prompt.whole;
        let has_cut = |position: &usize| {
            self.backends[*position]
                .health
                .recent_cuts
                .has(whole, search.now)
        };
        if !up.iter().all(has_cut) {
            up.retain(|position| !has_cut(position));
        }
    }

    /// Keeps the backends of `up` that can serve the request. What the gateway knows of them can be
    /// wrong. So if none seems able, one that may be able is asked, and its refusal decides. If none may
    /// be able, the request waits for an unavailable backend that may be, so none is kept. If there is no
    /// such backend either, those that come nearest are kept: the client gets their error.
    ///
    /// In a sample of the route only able backends are kept, because others may be outside of the sample.
    /// After a failed attempt, too, because the response to that attempt is more useful to the client.
    fn retain_able(
        &self,
        up: &mut Vec<usize>,
        route: &ModelRoute,
        search: &BackendSearch<'_>,
        is_sample: bool,
    ) {
        let BackendSearch {
            requirements,
            tried,
            now,
            ..
        } = *search;
        let needs = self.needs(up, route, requirements, now);
        // A request that has waited for a longer backend has no attempt any more whose error the client could get.
        // Without such a backend, it is like any other request that no backend seems able to serve.
        let has_waited = tried.is_empty() && !is_sample;
        let is_longer = |position: &usize| needs.exceeds_refused(*position);
        if requirements.longer_than.is_some() && (!has_waited || up.iter().any(is_longer)) {
            return retain_longer(up, route, requirements, is_sample);
        }
        let is_able = |position: &usize| needs.are_met_by(&self.backends[*position], *position);
        let is_learned = needs
            .length
            .as_ref()
            .is_some_and(|length| length.is_learned);
        if is_sample || !tried.is_empty() && is_learned || up.iter().any(is_able) {
            return up.retain(is_able);
        }
        let may_be_able =
            |position: &usize| needs.may_be_met_by(&self.backends[*position], *position);
        if up.iter().any(may_be_able) {
            up.retain(may_be_able);
        } else if self.awaits(route, up, &needs, search) {
            return up.clear();
        }
        needs.retain_nearest(up, &self.backends);
    }

    /// Whether a backend that is not in `up`, such as one that is down, asleep or drained, may be able to
    /// serve the request when it is available again.
    fn awaits(
        &self,
        route: &ModelRoute,
        up: &[usize],
        needs: &RequestNeeds<'_>,
        search: &BackendSearch<'_>,
    ) -> bool {
        let only = needs.requirements.backend;
        let is_suitable = |backend: &Backend| {
            let model = needs.requirements.model;
            backend.facets.suitability(RequestPart::Whole, model) == Suitability::Suitable
        };
        route.backends.iter().any(|position| {
            let backend = &self.backends[*position];
            !up.contains(position)
                && only.is_none_or(|only| *only == backend.identity.id)
                && (search.part != RequestPart::Whole || is_suitable(backend))
                && may_return(backend, needs.now)
                && needs.may_be_met_by(backend, *position)
        })
    }

    /// Whether a backend of the model, available or not, may be able to serve the request. `false`: the
    /// request is too long for all of them.
    pub(super) fn has_able_backend(
        &self,
        requirements: &BackendRequirements<'_>,
        now: Instant,
    ) -> bool {
        let route = self.routes.lookup(requirements.model);
        let needs = self.needs(&route.backends, route, requirements, now);
        route.backends.iter().any(|position| {
            let backend = &self.backends[*position];
            may_return(backend, now) && needs.may_be_met_by(backend, *position)
        })
    }

    /// Returns `false` if the request names another backend, or if the backend at `position` is known not to
    /// serve the path, the media or the length of the request.
    pub(super) fn may_serve(
        &self,
        position: usize,
        route: &ModelRoute,
        requirements: &BackendRequirements<'_>,
        now: Instant,
    ) -> bool {
        let backend = &self.backends[position];
        requirements
            .backend
            .is_none_or(|only| *only == backend.identity.id)
            && self
                .needs(&[], route, requirements, now)
                .may_be_met_by(backend, position)
    }

    /// A hash of the backends of the route that can serve the request when they are available. 0: all of
    /// them, or none.
    pub(super) fn able_backends(
        &self,
        requirements: &BackendRequirements<'_>,
        now: Instant,
    ) -> u64 {
        let route = self.routes.lookup(requirements.model);
        if let Some(only) = requirements.backend {
            return hash_of(only);
        }
        let needs = self.needs(&route.backends, route, requirements, now);
        let is_able = |position: &usize| needs.are_met_by(&self.backends[*position], *position);
        let able: Vec<usize> = route.backends.iter().copied().filter(is_able).collect();
        let is_part = !able.is_empty() && able.len() < route.backends.len();
        if is_part { hash_of(&able) } else { 0 }
    }

    /// What a request needs. The tokens per byte of its prompt are those that the responses of the
    /// backends at `positions` have shown.
    pub(super) fn needs<'a>(
        &self,
        positions: &[usize],
        route: &'a ModelRoute,
        requirements: &'a BackendRequirements<'a>,
        now: Instant,
    ) -> RequestNeeds<'a> {
        let length = route
            .lengths
            .is_uneven
            .then(|| self.request_length(positions, requirements));
        RequestNeeds {
            requirements,
            lengths: &route.lengths,
            length: length.flatten(),
            now,
        }
    }

    /// The estimated length of a request. `None`: it cannot be estimated.
    fn request_length(
        &self,
        positions: &[usize],
        requirements: &BackendRequirements<'_>,
    ) -> Option<RequestLength> {
        let max_tokens = f64::from(requirements.max_tokens?);
        let prompt = requirements.prompt;
        let mut bytes = 0.0;
        let mut tokens = 0.0;
        for position in positions {
            let text = self.backends[*position].load.estimator.learned().text();
            bytes += text.bytes;
            tokens += text.tokens;
        }
        let is_learned = bytes > 0.0;
        let tokens_per_byte = if is_learned {
            tokens / bytes * LEARNED_MARGIN
        } else {
            LEAST_TOKENS_PER_BYTE
        };
        let text_bytes = prompt.bytes.saturating_sub(prompt.media) as f64;
        Some(RequestLength {
            tokens: prompt.tokens(tokens_per_byte) + max_tokens,
            output: max_tokens,
            least: text_bytes * LEAST_TOKENS_PER_BYTE + max_tokens,
            is_learned,
        })
    }
}

/// Keeps the backends with the longest context, if it is longer than that of the backend that refused
/// the request.
fn retain_longer(
    up: &mut Vec<usize>,
    route: &ModelRoute,
    requirements: &BackendRequirements<'_>,
    is_sample: bool,
) {
    let known = if is_sample { &route.backends } else { &**up };
    let longest = route.lengths.greatest(known.iter().copied());
    let longest = longest.filter(|length| Some(*length) > requirements.longer_than);
    up.retain(|position| longest.is_some() && route.lengths.at(*position) == longest);
}

/// Whether a backend that is not available now is expected to serve requests again. A backend that has
/// never listed its models is not, unless it was not checked yet: then nothing is known of it.
fn may_return(backend: &Arc<Backend>, now: Instant) -> bool {
    match backend.availability(now) {
        Availability::ZeroWeight | Availability::Retired => false,
        Availability::Unknown => true,
        _ => backend.health.load_state().models.is_some(),
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish().max(1)
}

// === impl RequestNeeds ===

impl RequestNeeds<'_> {
    /// Whether the backend seems able to serve the request.
    fn are_met_by(&self, backend: &Backend, position: usize) -> bool {
        self.serves_kind(backend)
            && self.exceeds_refused(position)
            && !self.is_too_long_for(backend, position)
    }

    /// Returns `false` if the backend is known not to serve the path, the media or the length of the request. Of
    /// an estimated length, only the least possible value counts.
    fn may_be_met_by(&self, backend: &Backend, position: usize) -> bool {
        let context = self.lengths.at(position);
        let fits = |length: &RequestLength| {
            context.is_none_or(|context| length.least <= f64::from(context))
        };
        self.serves_kind(backend)
            && self.exceeds_refused(position)
            && self.length.as_ref().is_none_or(fits)
    }

    /// Whether the context of the backend is longer than that of the backend that refused the request.
    fn exceeds_refused(&self, position: usize) -> bool {
        let refused = self.requirements.longer_than;
        refused.is_none() || self.lengths.at(position) > refused
    }

    /// Whether the backend serves the path and the media of the request.
    fn serves_kind(&self, backend: &Backend) -> bool {
        self.serves_path(backend) && self.serves_media(backend)
    }

    pub(super) fn serves_path(&self, backend: &Backend) -> bool {
        !backend.health.lacks(self.requirements.path, self.now)
    }

    pub(super) fn serves_media(&self, backend: &Backend) -> bool {
        self.requirements.prompt.media == 0 || !backend.health.lacks(Some(MEDIA), self.now)
    }

    /// Whether the estimated length of the request exceeds the context of the backend, or the backend
    /// refused a prompt that was not longer.
    pub(super) fn is_too_long_for(&self, backend: &Backend, position: usize) -> bool {
        let Some(context) = self.lengths.at(position).map(f64::from) else {
            return false;
        };
        let Some(length) = &self.length else {
            return false;
        };
        let prompt = self.requirements.prompt;
        let learned = backend.load.estimator.learned();
        let shown = || learned.least_tokens(prompt.bytes, self.now) + length.output;
        length.tokens > context || prompt.media == 0 && shown() > context
    }

    /// Keeps the backends of `up` that come nearest to what the request needs.
    fn retain_nearest(&self, up: &mut Vec<usize>, backends: &[Arc<Backend>]) {
        let serves_path = |position: &usize| self.serves_path(&backends[*position]);
        let serves_media = |position: &usize| self.serves_media(&backends[*position]);
        if up.iter().any(serves_path) {
            up.retain(serves_path);
        }
        if up.iter().any(serves_media) {
            up.retain(serves_media);
        }
        if self.length.is_some() {
            let longest = self.lengths.greatest(up.iter().copied());
            up.retain(|position| self.lengths.at(*position) == longest);
        }
    }
}
