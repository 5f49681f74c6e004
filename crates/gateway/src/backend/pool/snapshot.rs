//! An immutable snapshot of the backend pool: the backends, the routes and the policy. The snapshot finds the
//! eligible backends of a request, runs the policy and leases the picked backend. Each change of the pool makes
//! a new snapshot, so a request never sees an incomplete change.

use super::eligible_backends::{
    self, BackendRequirements, BackendSearch, BreakerMode, EligibleBackends,
};
use super::panic_mode::{self, PanicModeLog};
use super::readiness_log::ReadinessLog;
use crate::backend::Backend;
use crate::backend::facets::{BackendFacet, PoolFacets, PromptKnowledge, RequestPart};
use crate::backend::routes::{ModelRoute, RouteRule, RouteTable};
use std::sync::Arc;
use std::time::Instant;
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::clock;
use tokenweir_request::error::{self, GatewayError};
use tokenweir_routing::{
    Candidate, CandidateSampler, Policy, PolicyChoice, RoutingContext, RoutingRequest, saturation,
    shares,
};

/// The backend pool at one moment.
#[derive(Debug, Clone)]
pub(super) struct PoolSnapshot {
    /// The backends, by position. A backend usually has the same position in successive snapshots.
    pub(super) backends: Arc<[Arc<Backend>]>,
    /// The ids of the backends, by position.
    pub(super) backend_ids: Arc<[BackendId]>,
    pub(super) routes: RouteTable,
    /// The rules of the configured models, from which `routes` is built.
    pub(super) route_rules: Arc<[RouteRule]>,
    /// Selects candidates in a large pool. All snapshots of a pool share it.
    pub(super) candidate_sampler: Arc<CandidateSampler>,
    /// Logs the start and the end of panic mode. All snapshots of a pool share it.
    pub(super) panic_log: Arc<PanicModeLog>,
    /// Logs periods without an available backend. All snapshots of a pool share it.
    pub(super) readiness_log: Arc<ReadinessLog>,
    pub(super) policy: Policy,
    /// Panic mode ignores ejections if the share of backends that are not ejected, from 0 to 1, is
    /// below this value.
    pub(super) panic_threshold: f64,
    /// The state that options share between all backends.
    pub(super) facets: PoolFacets,
    /// Whether an option keeps whole requests away from any backend.
    pub(super) has_unsuitable: bool,
}

/// The backend that the policy picked for a request. It is not leased yet.
pub(super) struct PickedBackend {
    pub(super) context: RoutingContext,
    pub(super) choice: PolicyChoice,
    /// Maximum number of prompt tokens that any eligible backend, full or not, has cached.
    pub(super) most_cached: f64,
    /// Positions of the backends of the route that are no candidates, each with the reason.
    pub(super) excluded: Box<[(usize, &'static str)]>,
}

impl PoolSnapshot {
    /// Picks a backend for a request with the policy. `sequence`: the number of the decision. `None`: all
    /// backends that could serve the request are full. Fails if no backend could serve the request.
    pub(super) fn pick(
        &self,
        search: &BackendSearch<'_>,
        sequence: u64,
    ) -> Result<Option<PickedBackend>, GatewayError> {
        let BackendSearch {
            requirements, now, ..
        } = *search;
        let BackendRequirements { seed, session, .. } = *requirements;
        let request = RoutingRequest {
            sequence,
            seed,
            session,
        };
        let route = self.routes.lookup(requirements.model);
        let eligible = self.eligible_backends(route, &request, search);
        let EligibleBackends {
            candidates,
            most_cached,
            ..
        } = eligible;
        let is_panic = eligible.ignores_ejections && self.check_panic_mode(&route.backends, now);
        let excluded = self.exclusions(route, &candidates, search);
        let context = RoutingContext::new(self.policy, candidates, request);
        match eligible_backends::pick(&context) {
            Some(mut choice) => {
                if is_panic {
                    choice.reason = tokenweir_routing::PANIC;
                }
                Ok(Some(PickedBackend {
                    context,
                    choice,
                    most_cached,
                    excluded,
                }))
            }
            None if search.part != RequestPart::Whole => Ok(None),
            None if eligible.are_full => {
                self.request_activation(route, requirements, now);
                Ok(None)
            }
            None => {
                self.request_activation(route, requirements, now);
                // This is the first request since the last backend became unavailable. `readiness` logs the
                // loss.
                if !self.readiness_log.is_unready.get() && !self.is_ready(now) {
                    self.readiness(now);
                }
                Err(self.no_candidate_error(requirements.model, route))
            }
        }
    }

    /// Asks an option to make one unavailable backend available that may be able to serve the request, unless
    /// an earlier request for such a backend is still open.
    fn request_activation(
        &self,
        route: &ModelRoute,
        requirements: &BackendRequirements<'_>,
        now: Instant,
    ) {
        let can_activate = |position: &usize| {
            let backend = &self.backends[*position];
            backend.weight() > 0
                && self.facets.can_activate(backend.availability(now))
                && self.may_serve(*position, route, requirements, now)
        };
        let positions = route.backends.iter().copied().filter(can_activate);
        let backends: Vec<_> = positions.map(|position| &self.backends[position]).collect();
        // A random choice, because a fixed one might never become available.
        let is_requested = |backend: &&Arc<Backend>| {
            backend
                .facets
                .each()
                .any(BackendFacet::is_activation_requested)
        };
        if !backends.iter().any(is_requested)
            && let Some(backend) = fastrand::choice(backends)
        {
            backend
                .facets
                .each()
                .for_each(BackendFacet::request_activation);
            backend.health.request_check();
        }
    }

    /// The backends at these positions.
    pub(super) fn at<'a>(
        &'a self,
        positions: &'a [usize],
    ) -> impl Iterator<Item = &'a Arc<Backend>> {
        positions
            .iter()
            .filter_map(|position| self.backends.get(*position))
    }

    /// Updates the traffic shares of the candidates with the choice.
    pub(super) fn add_credits(&self, candidates: &[Candidate], chosen: usize) {
        let changes = shares::credit_changes(candidates, chosen);
        for (candidate, change) in candidates.iter().zip(changes) {
            self.backends[candidate.position]
                .load
                .estimator
                .add_credit(change);
        }
    }

    /// Whether the backends at these positions are in panic mode. Logs the start of panic mode. Call this when
    /// a request was routed without regard to ejections. Such routing alone is not panic mode: the gateway also
    /// ignores ejections after attempts on all other backends, and while backends report overload for a moment.
    fn check_panic_mode(&self, positions: &[usize], now: Instant) -> bool {
        let availabilities = positions
            .iter()
            .map(|position| self.backends[*position].availability(now));
        let (eligible, ejected) = panic_mode::count_eligible_and_ejected(availabilities);
        let is_panic = panic_mode::is_panic(eligible, ejected, self.panic_threshold);
        if is_panic {
            self.panic_log.begin(eligible, ejected, now);
        }
        is_panic
    }

    /// The backends that may serve a request on `route`, as `search` allows. In a large pool,
    /// first only a sample of the backends is checked. If no backend of the sample is eligible, all
    /// backends are checked.
    fn eligible_backends(
        &self,
        route: &ModelRoute,
        request: &RoutingRequest,
        search: &BackendSearch<'_>,
    ) -> EligibleBackends {
        let prompt = search.requirements.prompt;
        let sample =
            self.candidate_sampler
                .sample(self.policy.kind, &route.backends, prompt, request);
        let filter_positions = |positions: &[usize], breaker_mode| {
            self.filter_eligible(
                positions,
                route,
                &BackendSearch {
                    breaker_mode,
                    ..*search
                },
            )
        };
        let filter_sample_first = |breaker_mode| {
            let sampled = sample
                .as_deref()
                .map(|sample| filter_positions(sample, breaker_mode));
            let sampled = sampled.filter(|sampled| !sampled.candidates.is_empty());
            sampled.unwrap_or_else(|| filter_positions(&route.backends, breaker_mode))
        };
        let mut eligible = filter_sample_first(BreakerMode::Enforced);
        if sample.is_some() && eligible.is_panic(self.panic_threshold) {
            // A sample may by chance contain many ejected backends, so all backends decide about panic mode.
            eligible = filter_positions(&route.backends, BreakerMode::Enforced);
        }
        let eligible = match eligible.required_breaker_mode(self.panic_threshold) {
            BreakerMode::Enforced => eligible,
            breaker_mode => filter_sample_first(breaker_mode),
        };
        if search.allows_suspected || !eligible.is_empty() {
            return eligible;
        }
        // Suspected backends serve requests while all backends of the route are suspected.
        let is_suspected = |position: &usize| self.backends[*position].health.is_suspected.get();
        if !route.backends.iter().any(is_suspected) {
            return eligible;
        }
        self.request_activation(route, search.requirements, search.now);
        let search = BackendSearch {
            allows_suspected: true,
            ..*search
        };
        self.eligible_backends(route, request, &search)
    }

    /// Returns the backends at `positions` that may serve the request.
    fn filter_eligible(
        &self,
        positions: &[usize],
        route: &ModelRoute,
        search: &BackendSearch<'_>,
    ) -> EligibleBackends {
        let BackendSearch {
            requirements, now, ..
        } = *search;
        let mut up = self.filter_up(positions, search);
        let is_sample = positions.len() < route.backends.len();
        if self.has_unsuitable || search.part != RequestPart::Whole {
            self.retain_suitable(&mut up, search, is_sample);
        }
        self.retain_capable(&mut up, route, search, is_sample);
        let mut eligible = EligibleBackends {
            candidates: Vec::with_capacity(up.len()),
            up_count: up.len(),
            ignores_ejections: matches!(search.breaker_mode, BreakerMode::Ignored),
            ..EligibleBackends::default()
        };
        let mut known = PromptKnowledge::new(requirements.prompt);
        let now_nanos = clock::nanos(now);
        for position in up {
            let backend = &self.backends[position];
            let random = tokenweir_routing::unit(tokenweir_routing::mix(
                requirements.seed ^ backend.identity.id_hash,
            ));
            if !eligible.breaker_admits(backend, search.breaker_mode, random, now) {
                continue;
            }
            let may_have = |adapter| backend.health.load_state().may_have_adapter(adapter);
            let has_adapter = route.adapter_hash.is_none_or(may_have);
            // The candidate is passed by reference because it is larger than 200 bytes.
            let visit = |candidate: &mut Candidate| {
                candidate.output = requirements.bounded_output(candidate.output);
                candidate.position = position;
                candidate.has_adapter = has_adapter;
                candidate.needs_adapter = route.adapter_hash.is_some();
                eligible.most_cached = eligible.most_cached.max(candidate.cached);
                eligible.candidates.push(*candidate);
            };
            backend.visit_candidates(requirements.prompt, &mut known, now_nanos, visit);
        }
        saturation::retain_moving(&mut eligible.candidates);
        if let Some(thresholds) = search.thresholds {
            let has_candidates = !eligible.candidates.is_empty();
            thresholds.retain_open(&mut eligible.candidates, self.policy.kind);
            eligible.are_full = has_candidates && eligible.candidates.is_empty();
        }
        tokenweir_routing::impute_missing_estimates(&mut eligible.candidates);
        eligible
    }

    /// The error for a request that no backend can serve: `UnknownModel` if every backend has listed its models
    /// and no list has the requested model, and `NoBackend` in all other cases.
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

impl PickedBackend {
    /// The estimates for the request at the picked backend.
    pub(super) fn candidate(&self) -> &Candidate {
        &self.context.candidates()[self.choice.index]
    }
}
