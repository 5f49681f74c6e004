//! A gateway of a simulation: its load estimators, its router, and what it knows about the caches.

use super::engine_state::EngineState;
use super::setup::SimulationSetup;
use crate::cache_view::{BlockCounts, KnownTexts};
use crate::routers::{Router, RouterKind, SessionGate};
use crate::trace::TraceRequest;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokenweir_routing::admission::AdmissionQueue;
use tokenweir_routing::resilience::{CircuitBreaker, CircuitBreakerSettings};
use tokenweir_routing::sessions::WorkingSet;
use tokenweir_routing::{
    Candidate, CandidateSampler, LoadEstimator, LoadReport, PromptFingerprint, RoutingRequest,
};
use tokenweir_sim::engine::SequenceRequest;

pub(super) struct SimulatedGateway {
    pub(super) load_estimators: Vec<LoadEstimator>,
    pub(super) candidate_sampler: CandidateSampler,
    /// Last load report of each backend.
    pub(super) reported_loads: Vec<LoadReport>,
    /// The LoRA adapters of the requests at each backend at the last scrape.
    pub(super) reported_adapters: Vec<Vec<u32>>,
    pub(super) router: Router,
    /// The state of each backend, by its position.
    pub(super) health: Vec<BackendHealth>,
    /// The prompts without output that this gateway sent. Used if the gateways receive KV events.
    pub(super) pending_prompts: Vec<BlockCounts>,
    /// The texts whose cache blocks this gateway can recognize. Used if the KV events count only for texts
    /// that the gateway has sent.
    pub(super) known_texts: KnownTexts,
    /// Number of requests that were sent to a backend.
    pub(super) decision_count: u64,
    /// Turns of sessions that wait until their contexts fit into the KV caches. `None`: no turn waits.
    pub(super) gate: Option<SessionGate>,
    /// The contexts of the live sessions. `None`: admission by live sessions is off.
    pub(super) working_set: Option<WorkingSet>,
    /// Requests that wait until a backend is not saturated.
    pub(super) queue: AdmissionQueue<QueuedArrival>,
}

pub(super) struct BackendHealth {
    pub(super) is_down: bool,
    /// The circuit breaker. After a restart of the backend, it lets through a growing share of requests (slow
    /// start).
    pub(super) breaker: CircuitBreaker,
}

/// A request that waits in its gateway.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuedArrival {
    /// Number of the request in the trace.
    pub(super) number: usize,
    pub(super) arrived_at: Duration,
}

/// Maximum number of waiting requests in a gateway: the default of the real gateway.
const QUEUE_CAPACITY: usize = 1_024;

impl SimulatedGateway {
    pub(super) fn new(setup: &SimulationSetup, kind: RouterKind) -> Self {
        let backends = setup.specs.len();
        let horizon = Duration::from_secs_f64(setup.policy.kv_aware.horizon_seconds.max(0.001));
        let estimator = |_| LoadEstimator::new(setup.epoch, horizon);
        let health = |_| BackendHealth {
            is_down: false,
            breaker: CircuitBreaker::new(CircuitBreakerSettings::default(), setup.epoch),
        };
        Self {
            load_estimators: (0..backends).map(estimator).collect(),
            candidate_sampler: CandidateSampler::new(setup.epoch, backends),
            reported_loads: vec![LoadReport::default(); backends],
            reported_adapters: vec![Vec::new(); backends],
            router: kind.router(&setup.policy, setup.known_objectives, backends),
            health: (0..backends).map(health).collect(),
            pending_prompts: vec![BlockCounts::default(); backends],
            known_texts: KnownTexts::default(),
            decision_count: 0,
            gate: kind.gate_rule().map(|rule| {
                let capacities = setup.specs.iter().map(|spec| spec.capacity().into());
                SessionGate::new(rule, capacities.collect())
            }),
            working_set: working_set(setup, kind),
            queue: AdmissionQueue::new(QUEUE_CAPACITY, 1),
        }
    }

    /// The data of a request for the next routing decision of this gateway.
    pub(super) fn decision(&self, job: &TraceRequest, seed: u64) -> RoutingRequest {
        RoutingRequest {
            sequence: self.decision_count,
            seed,
            session: job.session,
        }
    }

    /// The backends that are up. A backend that is in slow start after a restart may be left out, unless no
    /// other backend is up. `seed`: the random seed of this routing decision.
    fn available(&self, seed: u64, now: Instant) -> Vec<usize> {
        let is_up = |position: &usize| !self.health[*position].is_down;
        let up: Vec<usize> = (0..self.health.len()).filter(is_up).collect();
        let is_spared = |position: &&usize| {
            let random =
                tokenweir_routing::unit(tokenweir_routing::mix(seed ^ backend_key(**position)));
            self.health[**position].breaker.spares(now, random)
        };
        let warm: Vec<usize> = up.iter().filter(|at| !is_spared(at)).copied().collect();
        if warm.is_empty() { up } else { warm }
    }

    /// The candidates of a routing decision. None, if all backends are down.
    pub(super) fn candidates(
        &self,
        job: &TraceRequest,
        request: &RoutingRequest,
        setup: &SimulationSetup,
        engines: &[EngineState],
        now: Duration,
    ) -> Vec<Candidate> {
        let instant = setup.epoch + now;
        let all = self.available(request.seed, instant);
        if all.is_empty() {
            return Vec::new();
        }
        let sampler = &self.candidate_sampler;
        let sample = self
            .router
            .policy()
            .and_then(|kind| sampler.sample(kind, &all, &job.prompt, request));
        let candidate = |position: &usize| Candidate {
            position: *position,
            key: backend_key(*position),
            needs_adapter: job.adapter.is_some(),
            has_adapter: job
                .adapter
                .is_none_or(|adapter| self.reported_adapters[*position].contains(&adapter)),
            ..self.load_estimators[*position].candidate(&job.prompt, instant)
        };
        let mut candidates: Vec<Candidate> = sample.unwrap_or(all).iter().map(candidate).collect();
        tokenweir_routing::impute_missing_estimates(&mut candidates);
        if setup.cache_view.has_events() {
            self.set_cached_tokens(job, setup, engines, &mut candidates);
        }
        candidates
    }

    /// Replaces each candidate's number of cached tokens by the number in the published cache or in the
    /// gateway's own pending prompts. If KV events count only for texts that the gateway has sent, its
    /// estimate remains for all other texts.
    fn set_cached_tokens(
        &self,
        job: &TraceRequest,
        setup: &SimulationSetup,
        engines: &[EngineState],
        candidates: &mut [Candidate],
    ) {
        let block_tokens = job.block_tokens();
        // The request as engines with blocks of a size get it. Its hashes are computed once for each size.
        let mut requests: HashMap<u32, SequenceRequest> = HashMap::new();
        let blocks = &job.prompt.blocks;
        let known = setup
            .cache_view
            .learns_texts()
            .then(|| self.known_texts.known(blocks));
        let known_tokens = known.map_or(f64::INFINITY, |known| known as f64 * block_tokens);
        for candidate in candidates {
            let position = candidate.position;
            let EngineState {
                spec, published, ..
            } = &engines[position];
            let block_size = spec.block_size;
            let request = requests
                .entry(block_size)
                .or_insert_with(|| job.request(block_size));
            let resident = published.resident(request, block_size, known_tokens);
            let is_decided = known.is_none() || !resident.is_all;
            let other = if is_decided {
                self.pending_prompts[position].matched(blocks) as f64 * block_tokens
            } else {
                candidate.cached
            };
            let cached = resident.tokens.max(other).min(candidate.prompt);
            candidate.cached = cached;
            candidate.cached_blocks = (cached / block_tokens.max(1.0)) as u32;
        }
    }

    /// Updates the load of a backend that the candidate sampler uses.
    pub(super) fn update_load_hint(&self, backend: usize, now: Instant) {
        let estimator = &self.load_estimators[backend];
        let candidate = || estimator.candidate(&PromptFingerprint::default(), now);
        self.candidate_sampler
            .show(backend, now, || Some(candidate()));
    }
}

/// The key that identifies a backend in routing decisions.
fn backend_key(position: usize) -> u64 {
    tokenweir_routing::mix(position as u64 + 1)
}

/// The working set of a gateway. `None`: no request waits for room beside the live sessions.
fn working_set(setup: &SimulationSetup, kind: RouterKind) -> Option<WorkingSet> {
    let has_sessions = setup
        .admission
        .is_some_and(|admission| admission.has_sessions);
    if !has_sessions || !kind.has_sessions() {
        return None;
    }
    let tokens: u64 = setup
        .specs
        .iter()
        .map(|spec| u64::from(spec.capacity()))
        .sum();
    let gateways = setup.gateways.max(1) as u64;
    Some(WorkingSet::new(Some(tokens / gateways)))
}
