//! The backends that may serve a request now, and how far circuit breakers restrict them.

use super::panic_mode;
use crate::backend::Backend;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_routing::saturation::SaturationThresholds;
use tokenweir_routing::{Candidate, Policy, PolicyChoice, PolicyKind, RoutingContext};

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

/// Restrictions on the backends that may be leased to a request.
#[derive(Clone, Copy)]
pub(super) struct LeaseConstraints<'a> {
    /// The backends of earlier attempts of the request. They are excluded.
    pub(super) tried: &'a [Arc<Backend>],
    /// Backends above one of these thresholds are saturated and excluded. `None`: saturation is
    /// ignored.
    pub(super) thresholds: Option<&'a SaturationThresholds>,
    pub(super) breaker_mode: BreakerMode,
    /// Whether backends that are down only because their engine seems stuck are allowed.
    pub(super) allows_suspected: bool,
    /// Whether the lease is for the prefill leg of a request.
    pub(super) is_prefill_leg: bool,
}

/// The backends that may serve a request now.
pub(super) struct EligibleBackends {
    /// The candidates for the policy.
    pub(super) candidates: Vec<Candidate>,
    /// The greatest number of tokens of the prompt that a single backend, saturated or not, has cached.
    pub(super) most_cached: f64,
    /// Whether any backend was excluded only because it is saturated.
    pub(super) has_saturated: bool,
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

// === impl LeaseConstraints, EligibleBackends ===

impl<'a> LeaseConstraints<'a> {
    pub(super) const fn new(
        tried: &'a [Arc<Backend>],
        thresholds: Option<&'a SaturationThresholds>,
    ) -> Self {
        Self {
            tried,
            thresholds,
            breaker_mode: BreakerMode::Enforced,
            allows_suspected: false,
            is_prefill_leg: false,
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
        self.candidates.is_empty() && !self.has_saturated
    }

    /// Whether the share of backends with a closed circuit breaker is below the panic threshold.
    pub(super) fn is_panic(&self, panic_threshold: f64) -> bool {
        panic_mode::is_panic(self.up_count, self.open_breaker_count, panic_threshold)
    }

    /// The breaker mode in which the backends of the request must be filtered. `self` is the result of
    /// the filter with [`BreakerMode::Enforced`].
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
    supervise::catch_panic(BackgroundTask::Routing, || context.pick()).unwrap_or_else(|| {
        let kind = PolicyKind::LeastRequests;
        context.pick_with(&Policy { kind, ..*context.policy() })
    })
}
