//! The requirements of a request on its backend, the backends that may serve the request now, and how far
//! circuit breakers restrict them.

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

/// Output tokens assumed for a waiting request, unless the request states a lower limit.
const ASSUMED_OUTPUT_TOKENS: u64 = 256;

/// The properties of a request that decide which backend may serve it.
#[derive(Debug, Clone, Copy)]
pub struct BackendRequirements<'a> {
    /// The requested model. `None`: the client named no model.
    pub model: Option<&'a str>,
    /// Length and block hashes of the prompt.
    pub prompt: &'a Arc<PromptFingerprint>,
    /// Whether the body has `"stream": true`.
    pub is_stream: bool,
    /// The only backend that may serve the request. `None`: any backend of its route.
    pub backend: Option<&'a BackendId>,
    /// The path of the request. Backends that do not serve it are avoided. `None`: every backend serves
    /// it.
    pub path: Option<&'static str>,
    /// Maximum number of output tokens of one choice, from the request. 0: the client states no limit. The
    /// prompt and these tokens must fit into the context of the model. `None`: the gateway cannot estimate the
    /// length of the request.
    pub max_tokens: Option<u32>,
    /// The number `n` of choices in the request.
    pub choices: u32,
    /// If set, only the backends with the longest context may serve the request, and that context must exceed
    /// this value. `None`: no backend has refused the request because of its length.
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
    pub(super) requirements: &'a BackendRequirements<'a>,
    /// The backends of earlier attempts of the request. They are excluded.
    pub(super) tried: &'a [Arc<Backend>],
    /// The thresholds above which a backend counts as full. `None`: full backends get requests too.
    pub(super) thresholds: Option<&'a SaturationThresholds>,
    pub(super) breaker_mode: BreakerMode,
    /// Whether the search includes backends that are down only by suspicion.
    pub(super) allows_suspected: bool,
    pub(super) part: RequestPart,
    pub(super) now: Instant,
}

/// The backends that may serve a request now.
#[derive(Default)]
pub(super) struct EligibleBackends {
    pub(super) candidates: Vec<Candidate>,
    /// The maximum number of prompt tokens that any one backend, full or not, has cached.
    pub(super) most_cached: f64,
    /// Whether all backends that could serve the request are full. False if there are none.
    pub(super) are_full: bool,
    /// Number of untried backends that are up. Backends that circuit breakers exclude count too.
    pub(super) up_count: usize,
    /// Number of backends with an open circuit breaker: ejected backends, and backends that reported overload a
    /// moment ago.
    pub(super) open_breaker_count: usize,
    /// Number of backends that slow start after an ejection keeps from this request.
    pub(super) slow_start_count: usize,
    /// Whether the circuit breakers were ignored for this result.
    pub(super) ignores_ejections: bool,
}

impl<'a> BackendRequirements<'a> {
    /// Requirements that every backend meets. `prompt` and `seed` belong to the request.
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

    /// The output tokens that a waiting request counts for: an assumed number, or the limit of the request if
    /// that is lower.
    pub fn assumed_output(&self) -> u64 {
        self.output_limit()
            .unwrap_or(u64::MAX)
            .min(ASSUMED_OUTPUT_TOKENS)
    }

    /// The expected output tokens, limited to what the request allows.
    pub(super) fn bounded_output(&self, expected: f64) -> f64 {
        self.output_limit()
            .map_or(expected, |limit| expected.min(limit as f64))
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

    /// Whether an earlier attempt of the request on this backend failed.
    pub(super) fn has_tried(&self, backend: &Arc<Backend>) -> bool {
        let mut tried = self.tried.iter().chain(self.requirements.excluded);
        tried.any(|tried| Arc::ptr_eq(tried, backend))
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

    /// Whether no backend may serve the request, either now or once it has capacity.
    pub(super) fn is_empty(&self) -> bool {
        self.candidates.is_empty() && !self.are_full
    }

    /// Whether the share of backends with a closed circuit breaker is below the panic threshold.
    pub(super) fn is_panic(&self, panic_threshold: f64) -> bool {
        panic_mode::is_panic(self.up_count, self.open_breaker_count, panic_threshold)
    }

    /// How far the circuit breakers may restrict the backends of the request. `self` must be the result of the
    /// search with [`BreakerMode::Enforced`].
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

/// The choice of the policy for this request. If the policy panics, the policy `least_requests` chooses
/// instead. It reads no estimates, so a wrong value of one backend fails no requests that other backends can
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
