//! The requirements of a request on its backend, the backends that may serve the request now, and how
//! far circuit breakers restrict them.

use super::panic_mode;
use crate::backend::Backend;
use crate::backend::facets::RequestPart;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_engine::address::BackendId;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_routing::saturation::SaturationThresholds;
use tokenweir_routing::{
    Candidate, Policy, PolicyChoice, PolicyKind, PromptFingerprint, RoutingContext,
};

/// How far the circuit breakers of the backends restrict the choice of a backend.
#[derive(Debug, Clone, Copy)]
pub(super) enum BreakerMode {
    /// Ejections and slow start are enforced.
    Enforced,
    /// Ejections are enforced, and slow start is ignored.
    WithoutSlowStart,
    /// Ejections and slow start are ignored, because the circuit breakers exclude too many
    /// backends.
    Ignored,
}

/// Output tokens that a request counts for while it waits, unless it states less.
const ASSUMED_OUTPUT_TOKENS: u64 = 256;

/// The properties of a request that decide which backend may serve it.
#[derive(Debug, Clone, Copy)]
pub struct BackendRequirements<'a> {
    /// The requested model. `None`: the client named no model.
    pub model: Option<&'a str>,
    /// The fingerprint of the prompt of the request.
    pub prompt: &'a Arc<PromptFingerprint>,
    /// Whether the client requested a stream.
    pub is_stream: bool,
    /// The only backend that may serve the request. `None`: any backend of its route.
    pub backend: Option<&'a BackendId>,
    /// The path of the request. Backends that do not serve it are avoided. `None`: every backend serves
    /// it.
    pub path: Option<&'static str>,
    /// Maximum number of output tokens of one choice, from the request. 0: the client states no
    /// limit. The prompt and these tokens must fit into the context of the model. `None`: the
    /// length of the request cannot be estimated.
    pub max_tokens: Option<u32>,
    /// Number of choices that the client requests.
    pub choices: u32,
    /// Only the backends with the longest context may serve the request, and only if their context is
    /// longer than this. `None`: no backend has refused the request because of its length.
    pub longer_than: Option<u32>,
    /// The backends that must not get the request, because they failed it.
    pub excluded: &'a [Arc<Backend>],
    /// A hash of the session id. `None`: the request has no session.
    pub session: Option<u64>,
    /// Random number of the request, from which the policy derives its random decisions.
    pub seed: u64,
}

/// The search for a backend that can be leased to a request.
#[derive(Clone, Copy)]
pub(super) struct BackendSearch<'a> {
    /// What the request requires of a backend.
    pub(super) requirements: &'a BackendRequirements<'a>,
    /// The backends of earlier attempts of the request. They are excluded.
    pub(super) tried: &'a [Arc<Backend>],
    /// The thresholds from which backends count as full. `None`: full backends get requests, too.
    pub(super) thresholds: Option<&'a SaturationThresholds>,
    pub(super) breaker_mode: BreakerMode,
    /// Whether backends are allowed that are down only by suspicion.
    pub(super) allows_suspected: bool,
    /// The part of the request that the lease is for.
    pub(super) part: RequestPart,
    /// The time of the search.
    pub(super) now: Instant,
}

/// The backends that may serve a request now.
#[derive(Default)]
pub(super) struct EligibleBackends {
    /// The candidates for the policy.
    pub(super) candidates: Vec<Candidate>,
    /// The greatest number of tokens of the prompt that a single backend, full or not, has cached.
    pub(super) most_cached: f64,
    /// Whether backends could serve the request, and all of them are full.
    pub(super) are_full: bool,
    /// Number of backends that are up and were not tried, whether or not their circuit breakers exclude
    /// them.
    pub(super) up_count: usize,
    /// Number of backends that are excluded because their circuit breaker is open: ejected
    /// backends, and backends that reported overload a moment ago.
    pub(super) open_breaker_count: usize,
    /// Number of backends that their slow start after an ejection excludes from this request.
    pub(super) slow_start_count: usize,
    /// Whether the circuit breakers were ignored for this result.
    pub(super) ignores_ejections: bool,
}

// === impl BackendRequirements, BackendSearch, EligibleBackends ===

impl<'a> BackendRequirements<'a> {
    /// The requirements that every backend meets, for a request with this prompt and this random number.
    pub const fn none(prompt: &'a Arc<PromptFingerprint>, seed: u64) -> Self {
        Self {
            model: None,
            prompt,
            is_stream: false,
            backend: None,
            path: None,
            max_tokens: None,
            choices: 1,
            longer_than: None,
            excluded: &[],
            session: None,
            seed,
        }
    }

    /// Maximum number of output tokens of all choices together. `None`: the client states no limit.
    pub fn output_limit(&self) -> Option<u64> {
        let limit = self.max_tokens.filter(|limit| *limit > 0)?;
        Some(u64::from(limit) * u64::from(self.choices))
    }

    /// The output tokens that a request counts for while it waits: an assumed number, or the limit that the
    /// request states if that is less.
    pub fn assumed_output(&self) -> u64 {
        self.output_limit()
            .unwrap_or(u64::MAX)
            .min(ASSUMED_OUTPUT_TOKENS)
    }

    /// The expected output tokens, but at most the limit that the request states.
    pub(super) fn bounded_output(&self, expected: f64) -> f64 {
        self.output_limit()
            .map_or(expected, |limit| expected.min(limit as f64))
    }
}

impl BackendSearch<'_> {
    /// Whether the backend failed the request already.
    pub(super) fn has_tried(&self, backend: &Arc<Backend>) -> bool {
        let tried = self.tried.iter().chain(self.requirements.excluded);
        tried.into_iter().any(|tried| Arc::ptr_eq(tried, backend))
    }
}

impl<'a> BackendSearch<'a> {
    pub(super) const fn new(
        requirements: &'a BackendRequirements<'a>,
        tried: &'a [Arc<Backend>],
        thresholds: Option<&'a SaturationThresholds>,
        now: Instant,
    ) -> Self {
        Self {
            requirements,
            tried,
            thresholds,
            breaker_mode: BreakerMode::Enforced,
            allows_suspected: false,
            part: RequestPart::Whole,
            now,
        }
    }
}

impl EligibleBackends {
    /// Whether the circuit breaker of a backend lets this request through. If it does not, adds the
    /// backend to the count of open breakers or of slow starts. `random`, from 0 to 1, decides
    /// during the slow start of a backend.
    pub(super) fn breaker_admits(
        &mut self,
        backend: &Backend,
        mode: BreakerMode,
        random: f64,
        now: Instant,
    ) -> bool {
        let breaker = &backend.health.breaker;
        if matches!(mode, BreakerMode::Ignored) {
            return true;
        }
        let is_shut = breaker.is_shut(now);
        let is_spared =
            !is_shut && matches!(mode, BreakerMode::Enforced) && breaker.spares(now, random);
        self.open_breaker_count += usize::from(is_shut);
        self.slow_start_count += usize::from(is_spared);
        !is_shut && !is_spared
    }

    /// Whether no backend may serve the request, now or when it has capacity.
    pub(super) fn is_empty(&self) -> bool {
        self.candidates.is_empty() && !self.are_full
    }

    /// Whether the share of backends with a closed circuit breaker is below the panic threshold.
    pub(super) fn is_panic(&self, panic_threshold: f64) -> bool {
        panic_mode::is_panic(self.up_count, self.open_breaker_count, panic_threshold)
    }

    /// Returns how far the circuit breakers may restrict the backends of the request. `self` is the
    /// result of the search with [`BreakerMode::Enforced`].
    pub(super) fn required_breaker_mode(&self, panic_threshold: f64) -> BreakerMode {
        if self.is_panic(panic_threshold) {
            BreakerMode::Ignored
        } else if self.is_empty() && self.slow_start_count > 0 {
            BreakerMode::WithoutSlowStart
        } else {
            BreakerMode::Enforced
        }
    }
}

/// The choice of the policy for this request. If the policy panics, the policy `least_requests` chooses.
/// It reads no estimates, so a wrong value of one backend fails no requests that other backends can
/// serve.
pub(super) fn pick(context: &RoutingContext) -> Option<PolicyChoice> {
    supervise::catch_panic(BackgroundTask::ROUTING, || context.pick()).unwrap_or_else(|| {
        let kind = PolicyKind::LeastRequests;
        context.pick_with(&Policy {
            kind,
            ..*context.policy()
        })
    })
}
