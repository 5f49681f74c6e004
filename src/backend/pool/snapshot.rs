//! An immutable snapshot of the backend pool: the backends, the routes and the policy. It filters
//! the eligible backends of a request, runs the policy and leases the picked backend. Each change
//! makes a new snapshot, so a request never sees a partial change.

use super::panic_mode::{self, PanicModeLog};
use crate::backend::routes::model_labels::ModelLabelTable;
use crate::backend::routes::{ModelListInterner, ModelRoute, RouteRule, RouteTable};
use crate::backend::{Backend, Lease};
use std::sync::Arc;
use std::time::Instant;
use tokenweir_core::clock;
use tokenweir_core::error::{self, GatewayError};
use tokenweir_core::model::ServedModel;
use tokenweir_core::record::{BackendId, RoutingDecision};
use tokenweir_core::routing::saturation::{self, SaturationThresholds};
use tokenweir_core::routing::{
    self, Candidate, CandidateSampler, Policy, PromptFingerprint, RoutingContext, RoutingRequest,
};

/// The backend pool at one moment.
#[derive(Debug)]
pub(super) struct PoolSnapshot {
    /// The backends by position. Usually a backend keeps its position from snapshot to snapshot.
    pub(super) backends: Arc<[Arc<Backend>]>,
    /// The ids of the backends, by position.
    pub(super) backend_ids: Arc<[BackendId]>,
    pub(super) routes: RouteTable,
    /// The configured models.
    pub(super) route_rules: Arc<[RouteRule]>,
    /// Shared by all snapshots of a registry.
    pub(super) candidate_sampler: Arc<CandidateSampler>,
    /// Shared by all snapshots of a registry.
    pub(super) panic_log: Arc<PanicModeLog>,
    pub(super) policy: Policy,
    /// Policies whose picks are recorded and not used.
    pub(super) shadow_policies: Arc<[Policy]>,
    /// Share of backends, 0 to 1, below which ejections are ignored.
    pub(super) panic_threshold: f64,
}

/// The properties of a request that decide which backend may serve it.
#[derive(Debug, Clone, Copy)]
pub struct BackendRequirements<'a> {
    /// The model, if the client named one.
    pub model: Option<&'a str>,
    /// The fingerprint of its prompt.
    pub prompt: &'a Arc<PromptFingerprint>,
    /// Whether its response is a stream.
    pub is_stream: bool,
    /// A hash of its session, if it has one.
    pub session: Option<u64>,
    /// Random seed for the policy.
    pub seed: u64,
}

/// Restrictions on the backends of a lease.
#[derive(Clone, Copy)]
pub(super) struct LeaseConstraints<'a> {
    /// Backends of earlier attempts of the request, which are excluded.
    pub(super) tried: &'a [Arc<Backend>],
    /// Backends above these thresholds are saturated and excluded. `None`: saturation is ignored.
    pub(super) thresholds: Option<&'a SaturationThresholds>,
    breaker_mode: BreakerMode,
}

/// How far the circuit breakers of the backends are enforced.
#[derive(Debug, Clone, Copy)]
enum BreakerMode {
    /// Ejections and slow start are enforced.
    Enforced,
    /// Ejections are enforced. Backends in slow start get every request.
    WithoutSlowStart,
    /// Ejections and slow start are ignored, because too many backends are ejected.
    Ignored,
}

/// The backends that may serve a request now.
struct EligibleBackends {
    /// The candidates for the policy.
    candidates: Vec<Candidate>,
    /// Whether other backends were excluded only because they are saturated.
    has_saturated: bool,
    /// Number of backends that are up, including those that their circuit breakers exclude.
    up_count: usize,
    ejected_count: usize,
    /// Number of backends that slow start excludes from this request.
    slow_start_count: usize,
    ignores_ejections: bool,
}

// === impl PoolSnapshot ===

impl PoolSnapshot {
    /// A copy with the routes rebuilt from the models that the backends list now.
    pub(super) fn rebuild_routes(&self, labels: &mut ModelLabelTable) -> Self {
        Self {
            backends: self.backends.clone(),
            backend_ids: self.backend_ids.clone(),
            routes: build_routes(&self.route_rules, &self.backends, labels),
            route_rules: self.route_rules.clone(),
            candidate_sampler: self.candidate_sampler.clone(),
            panic_log: self.panic_log.clone(),
            policy: self.policy,
            shadow_policies: self.shadow_policies.clone(),
            panic_threshold: self.panic_threshold,
        }
    }

    /// Leases the backend that the policy picks. `None`: some backends could serve the request, and
    /// all of them are saturated.
    pub(super) fn lease(
        &self,
        requirements: &BackendRequirements<'_>,
        request: &RoutingRequest,
        constraints: &LeaseConstraints<'_>,
        now: Instant,
    ) -> Result<Option<(Lease, Arc<RoutingDecision>)>, GatewayError> {
        let route = self.routes.lookup(requirements.model);
        let eligible = self.eligible_backends(route, requirements, request, constraints, now);
        let has_saturated = eligible.has_saturated;
        let is_panic = eligible.ignores_ejections && self.check_panic_mode(&route.backends, now);
        match self.pick_backend(requirements, request, eligible.candidates, is_panic, now) {
            None if !has_saturated => Err(self.no_candidate_error(requirements.model, route)),
            leased => Ok(leased),
        }
    }

    /// Whether a set of backends is in panic mode when a request is routed. Logs the start of panic
    /// mode. A request may ignore ejections in other cases too, which are not panic mode: after
    /// attempts on the other backends, or while backends are overloaded for a moment.
    fn check_panic_mode(&self, set: &[usize], now: Instant) -> bool {
        let each = set.iter().map(|position| self.backends[*position].availability(now));
        let (eligible, ejected) = panic_mode::count_eligible_and_ejected(each);
        let is_panic = panic_mode::is_panic(eligible, ejected, self.panic_threshold);
        if is_panic {
            self.panic_log.begin(eligible, ejected, now);
        }
        is_panic
    }

    fn pick_backend(
        &self,
        requirements: &BackendRequirements<'_>,
        request: &RoutingRequest,
        candidates: Vec<Candidate>,
        is_panic: bool,
        now: Instant,
    ) -> Option<(Lease, Arc<RoutingDecision>)> {
        let context = RoutingContext::new(self.policy, candidates, *request);
        let mut choice = context.pick()?;
        if is_panic {
            choice.reason = routing::PANIC;
        }
        let candidate = &context.candidates()[choice.index];
        let backend = &self.backends[candidate.position];
        backend.health.breaker.on_pick(now);
        let BackendRequirements { prompt, is_stream, .. } = *requirements;
        let lease = Lease::new(backend.clone(), candidate, prompt, is_stream, now);
        self.candidate_sampler.sent(prompt, candidate.position);
        let condition = backend.health.load_state().condition(now);
        let decision = RoutingDecision::new(
            context,
            choice,
            condition,
            &self.backend_ids,
            &self.shadow_policies,
        );
        Some((lease, Arc::new(decision)))
    }

    /// The backends that may serve a request for a model within the constraints. In a large fleet
    /// only a sample is checked first, and all backends if no backend of the sample is eligible.
    fn eligible_backends(
        &self,
        route: &ModelRoute,
        requirements: &BackendRequirements<'_>,
        request: &RoutingRequest,
        constraints: &LeaseConstraints<'_>,
        now: Instant,
    ) -> EligibleBackends {
        let (sampler, prompt) = (&self.candidate_sampler, requirements.prompt);
        let sample = sampler.sample(self.policy.kind, &route.backends, prompt, request);
        let filter = |positions: &[usize], breaker_mode| {
            let constraints = LeaseConstraints { breaker_mode, ..*constraints };
            self.filter_eligible(positions, route.adapter_hash, requirements, &constraints, now)
        };
        let filter_sample_first = |breaker_mode| {
            let sampled = sample.as_deref().map(|sample| filter(sample, breaker_mode));
            let sampled = sampled.filter(|sampled| !sampled.candidates.is_empty());
            sampled.unwrap_or_else(|| filter(&route.backends, breaker_mode))
        };
        let mut eligible = filter_sample_first(BreakerMode::Enforced);
        if sample.is_some() && eligible.is_panic(self.panic_threshold) {
            // The sample may contain most ejected backends by chance, so all backends are counted.
            eligible = filter(&route.backends, BreakerMode::Enforced);
        }
        match eligible.required_breaker_mode(self.panic_threshold) {
            BreakerMode::Enforced => eligible,
            breaker_mode => filter_sample_first(breaker_mode),
        }
    }

    /// The backends that are up and not tried. All backends pass this filter before any other data
    /// of them is read, so that the CPU overlaps the cache misses of a large fleet.
    fn filter_up(&self, positions: &[usize], tried: &[Arc<Backend>]) -> Vec<usize> {
        let is_tried = |backend| tried.iter().any(|tried| Arc::ptr_eq(tried, backend));
        let mut up = Vec::with_capacity(positions.len());
        up.extend(positions.iter().copied().filter(|position| {
            let backend = &self.backends[*position];
            backend.health.is_serving() && backend.weight() > 0 && !is_tried(backend)
        }));
        up
    }

    fn filter_eligible(
        &self,
        positions: &[usize],
        adapter: Option<u64>,
        requirements: &BackendRequirements<'_>,
        constraints: &LeaseConstraints<'_>,
        now: Instant,
    ) -> EligibleBackends {
        let up = self.filter_up(positions, constraints.tried);
        let mut eligible = EligibleBackends {
            candidates: Vec::with_capacity(up.len()),
            has_saturated: false,
            up_count: up.len(),
            ejected_count: 0,
            slow_start_count: 0,
            ignores_ejections: matches!(constraints.breaker_mode, BreakerMode::Ignored),
        };
        let mut is_capacity_expected = false;
        for position in up {
            let backend = &self.backends[position];
            let random = routing::unit(routing::mix(requirements.seed ^ backend.identity.id_hash));
            match constraints.breaker_mode {
                BreakerMode::Ignored => {}
                _ if backend.health.breaker.is_shut(now) => {
                    eligible.ejected_count += 1;
                    continue;
                }
                BreakerMode::Enforced if backend.health.breaker.spares(now, random) => {
                    eligible.slow_start_count += 1;
                    continue;
                }
                BreakerMode::Enforced | BreakerMode::WithoutSlowStart => {}
            }
            let may_have = |adapter| backend.health.load_state().may_have_adapter(adapter);
            let has_adapter = adapter.is_none_or(may_have);
            let candidate = backend.candidate(requirements.prompt, now);
            let candidate = Candidate { position, has_adapter, ..candidate };
            let is_saturated = |limits: &SaturationThresholds| limits.is_saturated(&candidate);
            if constraints.thresholds.is_some_and(is_saturated) {
                eligible.has_saturated = true;
                is_capacity_expected |= !saturation::is_stuck(&candidate);
            } else {
                eligible.candidates.push(candidate);
            }
        }
        // A request waits for a saturated backend that works rather than go to a stuck one.
        if is_capacity_expected {
            eligible.candidates.retain(|candidate| !saturation::is_stuck(candidate));
        }
        routing::impute_missing_estimates(&mut eligible.candidates);
        eligible
    }

    /// The error for a request without candidates. A model is unknown only if every backend has
    /// listed its models.
    fn no_candidate_error(&self, model: Option<&str>, route: &ModelRoute) -> GatewayError {
        match model {
            Some(model) if route.backends.is_empty() => GatewayError::UnknownModel {
                model: error::truncate_model_name(model),
                known: error::listed(self.routes.models().iter().map(|model| &model.id)),
            },
            _ => GatewayError::NoBackend,
        }
    }
}

// === impl LeaseConstraints, EligibleBackends ===

impl<'a> LeaseConstraints<'a> {
    pub(super) const fn new(
        tried: &'a [Arc<Backend>],
        thresholds: Option<&'a SaturationThresholds>,
    ) -> Self {
        Self { tried, thresholds, breaker_mode: BreakerMode::Enforced }
    }
}

impl EligibleBackends {
    /// Whether too few backends are not ejected, so that ejections are ignored.
    fn is_panic(&self, panic_threshold: f64) -> bool {
        panic_mode::is_panic(self.up_count, self.ejected_count, panic_threshold)
    }

    /// The breaker mode for the request, given the result with [`BreakerMode::Enforced`].
    fn required_breaker_mode(&self, panic_threshold: f64) -> BreakerMode {
        let is_empty = self.candidates.is_empty() && !self.has_saturated;
        if self.is_panic(panic_threshold) {
            BreakerMode::Ignored
        } else if is_empty && self.slow_start_count > 0 {
            BreakerMode::WithoutSlowStart
        } else {
            BreakerMode::Enforced
        }
    }
}

/// Builds the routes to these backends from the models that each lists, and assigns model labels.
pub(super) fn build_routes(
    rules: &[RouteRule],
    backends: &[Arc<Backend>],
    labels: &mut ModelLabelTable,
) -> RouteTable {
    let advertised = backends.iter().map(|backend| backend.health.load_state().models.clone());
    let advertised: Vec<Option<Arc<[ServedModel]>>> = advertised.collect();
    labels.update(
        rules.iter().map(RouteRule::name),
        ModelListInterner::distinct_models(&advertised),
        clock::now(),
    );
    RouteTable::new(rules, &advertised, labels)
}
