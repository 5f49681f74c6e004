//! Decides which backends can serve a request by its path, media and length, whether or not they are available
//! now. A request that only unavailable backends can serve waits for them.

use super::backend_pool::BackendPool;
use super::eligible_backends::{BackendRequirements, BackendSearch};
use super::snapshot::PoolSnapshot;
use crate::backend::facets::{RequestPart, Suitability};
use crate::backend::routes::{ModelLengths, ModelRoute};
use crate::backend::{Backend, MEDIA};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;
use tokenweir_protocol::clock;
use tokenweir_routing::resilience::Availability;

/// The properties that a request needs in a backend of its model.
pub(super) struct RequestNeeds<'a> {
    requirements: &'a BackendRequirements<'a>,
    lengths: &'a ModelLengths,
    /// The length of the request. `None`: the context length of the backends does not matter, or the
    /// length of the request cannot be estimated.
    length: Option<RequestLength>,
    now: Instant,
}

struct RequestLength {
    /// Tokens of the prompt plus the output tokens that the client allows.
    tokens: f64,
    /// The part of `tokens` that the client allows for the output.
    output: f64,
    /// The lowest possible number of tokens of a text with this many bytes.
    least: f64,
    /// Whether `tokens` uses a ratio of tokens per byte learned from responses. If not, the ratio is assumed.
    is_learned: bool,
}

/// Safety factor for a learned estimate of prompt tokens, because single prompts differ from the mean. A
/// backend with too short a context refuses the request, while one with a longer context than necessary costs
/// nothing.
const LEARNED_MARGIN: f64 = 1.05;
/// Assumed minimum of tokens per byte of prompt text, until responses have shown the ratio.
const LEAST_TOKENS_PER_BYTE: f64 = 1.0 / 8.0;

impl PoolSnapshot {
    /// Keeps the backends of `up` that can serve the request. A client repeats a request whose stream was cut,
    /// so backends that have just cut the stream of an equal request are left out if others remain.
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

    /// Keeps the backends of `up` that can serve the request. The gateway's knowledge of them can be wrong, so
    /// the first of these rules that applies decides:
    ///
    /// - Backends that seem able are kept.
    /// - Backends that may be able are kept. If such a backend refuses the request, the client gets the refusal.
    /// - If an unavailable backend may be able, none is kept, and the request waits for that backend.
    /// - The backends that meet most of the needs are kept, and the client gets their error.
    ///
    /// Two cases keep only backends that seem able. In a sample of the route, other backends may exist outside
    /// of the sample. After a failed attempt with a learned length, the response to that attempt is more useful
    /// to the client.
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
        // After a wait for a backend with a longer context, the request has no failed attempt whose error the
        // client could get. If no such backend exists, the request is treated like any other that no backend
        // seems able to serve.
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

    /// Whether the backend at `position` may serve the request. `false`: the request names another backend, or
    /// the backend is known not to serve the path, the media or the length.
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

    /// Hash of the set of backends of the route that can serve the request when they are available. 0: all
    /// backends of the route, or none.
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

    /// The needs of a request. The ratio of tokens per byte is learned from the responses of the backends at
    /// `positions`.
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

    /// The estimated length of a request. `None`: the gateway cannot estimate it.
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

impl BackendPool {
    /// Whether a backend of the model, available or not, may be able to serve the request. `false`: the
    /// request is too long for all of them, or no backend lists the model.
    pub(crate) fn has_able_backend(&self, requirements: &BackendRequirements<'_>) -> bool {
        let now = clock::now();
        let snapshot = self.snapshot();
        let route = snapshot.routes.lookup(requirements.model);
        let needs = snapshot.needs(&route.backends, route, requirements, now);
        route.backends.iter().any(|position| {
            let backend = &snapshot.backends[*position];
            may_return(backend, now) && needs.may_be_met_by(backend, *position)
        })
    }
}

/// Keeps the backends with the longest context, if it is longer than the context of the backend that refused
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

/// Whether an unavailable backend is expected to serve requests again. `false` for a backend that was checked
/// and has never listed its models.
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

impl RequestNeeds<'_> {
    /// Whether the backend seems able to serve the request.
    fn are_met_by(&self, backend: &Backend, position: usize) -> bool {
        self.serves_kind(backend)
            && self.exceeds_refused(position)
            && !self.is_too_long_for(backend, position)
    }

    /// Whether the backend may be able to serve the request. `false`: it is known not to serve the path, the
    /// media or the length. For the length, only the lowest possible value of the estimate counts.
    fn may_be_met_by(&self, backend: &Backend, position: usize) -> bool {
        let context = self.lengths.at(position);
        let fits = |length: &RequestLength| {
            context.is_none_or(|context| length.least <= f64::from(context))
        };
        self.serves_kind(backend)
            && self.exceeds_refused(position)
            && self.length.as_ref().is_none_or(fits)
    }

    /// Whether the backend has a longer context than the backend that refused the request.
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

    /// Whether the estimated length of the request exceeds the context of the backend, or the backend refused a
    /// prompt of equal or lower length.
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

    /// Keeps the backends of `up` that serve the path, of these the ones that serve the media, and of these the ones
    /// with the longest context. A condition that no backend meets is skipped.
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
