//! One backend: its address and settings, its state, and the load of its requests.

use super::capacity_notifier::CapacityNotifier;
use super::recent_times::RollingGapHistogram;
use super::state::{Availability, BackendState, Health};
use super::stream_profile::StreamProfile;
use arc_swap::ArcSwap;
use http::HeaderValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokenweir_core::address::BackendAddress;
use tokenweir_core::clock;
use tokenweir_core::dialect::EngineKind;
use tokenweir_core::model::ServedModel;
use tokenweir_core::record::BackendId;
use tokenweir_core::resilience::{self, BreakerAction, CircuitBreaker, FailureKind};
use tokenweir_core::routing::{Candidate, CandidateSampler, LoadEstimator, PromptFingerprint, mix};
use tokenweir_net::idle_pool::IdlePool;
use tokenweir_net::resource_exhaustion;
use tokio::sync::{Notify, SetOnce, watch};

/// One backend.
///
/// The fields that routing reads of each candidate come first, so that they share cache lines: in a
/// large fleet they are not in the CPU caches, and each further cache line costs a miss.
#[derive(Debug)]
#[repr(C)]
pub struct Backend {
    /// Copy of [`BackendState::is_serving`]: routing reads it for many backends per request.
    pub(super) is_serving: AtomicBool,
    /// Whether an operator has drained the backend.
    pub(super) is_drained: AtomicBool,
    pub(super) may_inject_usage: AtomicBool,
    /// The backend rejected a model that it had listed, so the known list may be out of date.
    pub(super) is_model_list_stale: AtomicBool,
    pub(super) weight: AtomicU32,
    pub(super) id_hash: u64,
    /// `first_request` was signalled, and the health checker has not received the signal yet.
    pub(super) is_first_request_notified: AtomicBool,
    /// Ejects the backend when it fails requests.
    pub breaker: CircuitBreaker,
    /// Estimates the load and the speed of the backend.
    pub load_estimator: LoadEstimator,
    pub(super) state: ArcSwap<BackendState>,
    pub(super) idle_pool: IdlePool,
    /// Receives the load hint of this backend.
    pub(super) candidate_sampler: Arc<CandidateSampler>,
    /// Index in the pool. `usize::MAX` outside a pool.
    pub(super) position: AtomicUsize,
    /// The name of the backend.
    pub id: BackendId,
    /// Host, port and scheme.
    pub address: BackendAddress,
    /// The `Authorization` header to send instead of the client's.
    pub authorization: Option<HeaderValue>,
    pub(super) recent_gaps: RollingGapHistogram,
    pub(super) stream_profile: StreamProfile,
    pub(super) stall_count: AtomicU64,
    /// Requests a health check before the interval is over.
    pub(super) health_check_requested: Notify,
    /// Signals the health checker that an idle backend got a request.
    pub(super) first_request: Notify,
    pub(super) first_check_completed: SetOnce<()>,
    /// Whether the health checker declared the backend down. A failed connection alone does not.
    pub(super) declared_down: watch::Sender<bool>,
    /// Notified of every change that may free capacity here.
    pub(super) capacity_notifier: Arc<CapacityNotifier>,
}

/// Default age at which reported load has half its weight.
const DEFAULT_LOAD_HORIZON: Duration = Duration::from_secs(5);

// === impl Backend ===

impl Backend {
    /// A backend of unknown health: it gets no requests before its first health check.
    pub fn new(id: BackendId, address: BackendAddress, authorization: Option<HeaderValue>) -> Self {
        let hash = id.as_str().bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
        Self {
            weight: AtomicU32::new(1),
            is_drained: AtomicBool::new(false),
            load_estimator: LoadEstimator::new(clock::now(), DEFAULT_LOAD_HORIZON),
            breaker: CircuitBreaker::new(
                resilience::CircuitBreakerSettings::default(),
                clock::now(),
            ),
            id_hash: hash,
            id,
            address,
            authorization,
            may_inject_usage: AtomicBool::new(true),
            recent_gaps: RollingGapHistogram::default(),
            stream_profile: StreamProfile::default(),
            stall_count: AtomicU64::new(0),
            state: ArcSwap::default(),
            is_serving: AtomicBool::new(false),
            idle_pool: IdlePool::default(),
            candidate_sampler: Arc::new(CandidateSampler::new(clock::now(), 0)),
            position: AtomicUsize::new(usize::MAX),
            is_model_list_stale: AtomicBool::new(false),
            is_first_request_notified: AtomicBool::new(false),
            health_check_requested: Notify::new(),
            first_request: Notify::new(),
            first_check_completed: SetOnce::new(),
            declared_down: watch::Sender::new(false),
            capacity_notifier: Arc::default(),
        }
    }

    /// Sets whether the gateway may request usage that the client did not request.
    pub fn with_usage_injection(self, may_inject_usage: bool) -> Self {
        Self { may_inject_usage: AtomicBool::new(may_inject_usage), ..self }
    }

    /// Sets the share of the requests relative to other backends. 0: no new requests.
    pub fn with_weight(self, weight: u32) -> Self {
        Self { weight: AtomicU32::new(weight), ..self }
    }

    /// Sets when the circuit breaker ejects and re-admits the backend.
    pub fn with_circuit_breaker(self, settings: resilience::CircuitBreakerSettings) -> Self {
        Self { breaker: CircuitBreaker::new(settings, clock::now()), ..self }
    }

    /// Sets the age at which reported load has half its weight.
    pub fn with_load_horizon(self, horizon: Duration) -> Self {
        self.load_estimator.set_horizon(horizon);
        self
    }

    /// Sets the share of streams, 0 to 1, for which the gateway requests usage in every event.
    pub fn with_continuous_usage(self, share: f64) -> Self {
        self.stream_profile.set_continuous_usage_share(share);
        self
    }

    /// The share of the requests relative to other backends. 0 while the backend is drained.
    pub fn weight(&self) -> u32 {
        if self.is_drained() { 0 } else { self.weight.load(Ordering::Relaxed) }
    }

    /// Whether an operator has drained the backend.
    pub fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    /// Drains or undrains the backend. A drained backend finishes its requests and gets no new
    /// ones. Returns whether the state changed.
    pub(super) fn set_drained(&self, is_drained: bool) -> bool {
        let is_change = self.is_drained.swap(is_drained, Ordering::Relaxed) != is_drained;
        if is_change {
            tracing::info!(backend = %self.id, is_drained, "operator drained or undrained backend");
            self.on_change(clock::now());
        }
        is_change
    }

    /// Whether both have the same name, address and credentials.
    pub(super) fn is_same_endpoint(&self, other: &Self) -> bool {
        self.id == other.id
            && self.address == other.address
            && self.authorization == other.authorization
    }

    /// Copies the settings that can change without a new backend.
    pub(super) fn adopt_settings(&self, other: &Self) {
        self.breaker.set(other.breaker.settings());
        self.weight.store(other.weight.load(Ordering::Relaxed), Ordering::Relaxed);
        let may_inject_usage = other.may_inject_usage.load(Ordering::Relaxed);
        self.may_inject_usage.store(may_inject_usage, Ordering::Relaxed);
        self.stream_profile
            .set_continuous_usage_share(other.stream_profile.continuous_usage_share());
        self.load_estimator.set_horizon(other.load_estimator.horizon());
    }

    /// Whether the gateway adds `include_usage` to requests without it. True only for servers that
    /// are known to send usage in a separate event, which the gateway can remove.
    pub fn should_inject_usage(&self) -> bool {
        self.may_inject_usage.load(Ordering::Relaxed)
            && self.server_kind().is_some_and(EngineKind::sends_usage_event)
    }

    /// The share of streams, among those with requested usage, for which the gateway requests usage
    /// in every event. 0 for servers other than vLLM. 0 also until a stream has shown that the
    /// server sends usage only on request: before that the gateway cannot tell which usage to
    /// remove from the response.
    pub fn continuous_usage_share(&self) -> f64 {
        let is_known = self.stream_profile.has_usage_on_request_only();
        let is_vllm = || self.server_kind() == Some(EngineKind::Vllm);
        if is_known && is_vllm() { self.stream_profile.continuous_usage_share() } else { 0.0 }
    }

    /// The kind of the inference server, if known.
    pub fn server_kind(&self) -> Option<EngineKind> {
        self.state.load().server_kind()
    }

    /// Whether it is up and awake.
    pub(super) fn is_serving(&self) -> bool {
        self.is_serving.load(Ordering::Acquire)
    }

    /// Number of streams of the backend that are stalled now.
    pub fn stalled_streams(&self) -> u32 {
        self.load_estimator.silent()
    }

    /// Number of stalls since the start of the gateway.
    pub fn stall_count(&self) -> u64 {
        self.stall_count.load(Ordering::Relaxed)
    }

    /// The p99 of the recent gaps between outputs of streams, in seconds. `None`: too few gaps.
    pub fn gap_p99(&self) -> Option<f64> {
        self.recent_gaps.p99()
    }

    /// The current state.
    pub fn state(&self) -> Arc<BackendState> {
        self.state.load_full()
    }

    /// Number of requests that this gateway has in flight on the backend.
    pub fn in_flight(&self) -> u32 {
        self.load_estimator.local_load().in_flight
    }

    /// Marks the backend down after a failed connection, and requests a health check at once. The
    /// backend gets no requests until a health check passes.
    pub fn mark_down(&self, reason: &str) {
        self.update_state(|state| {
            state.health = Health::Down;
            state.reason = Some(reason.into());
        });
        self.health_check_requested.notify_one();
    }

    /// Handles a failed request: applies the breaker action of the failure. `why` is for the log.
    pub fn on_failure(&self, failure: FailureKind, why: &str, now: Instant) {
        let id = &self.id;
        match failure.effect() {
            BreakerAction::Nothing => return,
            BreakerAction::MarkDown => return self.mark_down(why),
            BreakerAction::RefreshModels => return self.mark_models_stale(),
            BreakerAction::CountFailure if self.breaker.on_failure(now) => {
                tracing::warn!(backend = %id, why, "backend ejected: too many requests failed");
            }
            BreakerAction::Eject if self.breaker.on_death(now) => {
                tracing::warn!(backend = %id, why, "backend ejected: its engine is dead");
            }
            BreakerAction::Drain if self.breaker.on_drain(now) => {
                tracing::warn!(backend = %id, why, "backend ejected: it aborts its requests");
            }
            BreakerAction::BackOff => self.breaker.on_overload(now),
            BreakerAction::CountFailure | BreakerAction::Eject | BreakerAction::Drain => {}
        }
        self.health_check_requested.notify_one();
        self.on_change(now);
    }

    /// Handles the start of a response: closes a half-open circuit breaker.
    pub fn on_response_started(&self, now: Instant) {
        if self.breaker.on_answer(now) {
            tracing::info!(backend = %self.id, "backend re-admitted: slow start begins");
            self.on_change(now);
        }
    }

    /// Requests a new model list, because the backend rejected a model that it had listed.
    pub fn mark_models_stale(&self) {
        if !self.is_model_list_stale.swap(true, Ordering::Relaxed) {
            self.health_check_requested.notify_one();
        }
    }

    /// Whether the backend may be sent new requests, and if not, why.
    pub fn availability(&self, now: Instant) -> Availability {
        let state = self.state();
        match state.health {
            _ if self.is_drained() => Availability::Drained,
            Health::Unknown => Availability::Unknown,
            Health::Down => Availability::Down,
            Health::Up if state.is_asleep() => Availability::Asleep,
            Health::Up if self.weight() == 0 => Availability::ZeroWeight,
            Health::Up if self.breaker.is_ejected(now) => Availability::Ejected,
            Health::Up => Availability::Available,
        }
    }

    /// The idle connections to the backend.
    pub fn idle_pool(&self) -> &IdlePool {
        &self.idle_pool
    }

    /// Waits until the health checker declares the backend down.
    pub async fn wait_declared_down(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.declared_down.subscribe().wait_for(|is_down| *is_down).await;
    }

    /// Waits until the first health check has completed.
    pub async fn wait_first_check(&self) {
        self.first_check_completed.wait().await;
    }

    pub(super) fn update_state(&self, change: impl Fn(&mut BackendState)) {
        self.state.rcu(|state| {
            let mut next = BackendState::clone(state);
            change(&mut next);
            next.with_summary()
        });
        // Concurrent updates may store their flags out of order: repeat until the state is stable.
        loop {
            let state = self.state.load();
            self.is_serving.store(state.is_serving(), Ordering::Release);
            if Arc::ptr_eq(&state, &self.state.load()) {
                break;
            }
        }
        self.on_change(clock::now());
    }

    /// Whether a new model list differs from the known one. The known list is not stale any more.
    pub(super) fn has_new_models(&self, models: &[ServedModel]) -> bool {
        self.is_model_list_stale.store(false, Ordering::Relaxed);
        let known = self.state.load().models.clone();
        !known.is_some_and(|known| ServedModel::are_equivalent(&known, models))
    }

    /// Sets the index in the pool.
    pub(super) fn set_position(&self, position: usize) {
        self.position.store(position, Ordering::Relaxed);
        self.publish_load_hint(clock::now());
    }

    /// Publishes the load hint and wakes queued requests. Called after every change that may affect
    /// routing.
    pub(super) fn on_change(&self, now: Instant) {
        self.publish_load_hint(now);
        self.capacity_notifier.notify();
    }

    /// Publishes the load hint to the candidate sampler.
    pub(super) fn publish_load_hint(&self, now: Instant) {
        self.candidate_sampler.show(self.position.load(Ordering::Relaxed), now, || {
            let is_excluded = !self.is_serving() || self.weight() == 0 || self.breaker.is_shut(now);
            (!is_excluded).then(|| self.candidate(&PromptFingerprint::default(), now))
        });
    }

    /// The load and cost estimates of the backend for this prompt.
    pub(super) fn candidate(&self, prompt: &PromptFingerprint, now: Instant) -> Candidate {
        Candidate {
            weight: self.weight(),
            key: self.id_hash,
            ..self.load_estimator.candidate(prompt, now)
        }
    }

    /// Signals the health checker that an idle backend gets a request. The flag avoids a second
    /// signal before the first one is received: the `Notify` is usually not in the CPU caches.
    pub(super) fn on_first_request(&self) {
        if !self.is_first_request_notified.load(Ordering::Relaxed)
            && !self.is_first_request_notified.swap(true, Ordering::Relaxed)
        {
            self.first_request.notify_one();
        }
    }

    pub(super) fn on_stall(&self, is_silent: bool) {
        if is_silent {
            self.stall_count.fetch_add(1, Ordering::Relaxed);
        }
        self.load_estimator.on_stall_change(is_silent, clock::now());
    }

    /// The gateway lacked resources for a health check. The previous state stays valid.
    pub(super) fn on_check_skipped(&self, problem: &str) {
        resource_exhaustion::warn_rate_limited(problem);
        self.update_state(|state| {
            if state.health == Health::Unknown {
                state.reason = Some(problem.into());
            }
        });
    }
}
