//! One backend: the struct that combines its identity, its health and its load.

use super::drain::{Drain, DrainInitiator};
use super::facets::{BackendFacets, LoadChange};
use super::health::BackendHealth;
use super::identity::{BackendIdentity, BackendSettings};
use super::load::BackendLoad;
use super::pool_membership::PoolMembership;
use super::state::{BackendState, DownCause, Health};
use http::HeaderValue;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendAddress;
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::EngineKind;
use tokenweir_net::client;
use tokenweir_net::idle_pool::IdlePool;
use tokenweir_net::resource_exhaustion;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::Api;
use tokenweir_request::record::BackendCondition;
use tokenweir_routing::PromptFingerprint;
use tokenweir_routing::resilience::{Availability, BreakerAction, FailureKind};

/// One backend. A change of its health or its load is published to its pool.
///
/// In a large pool most backends are not in the CPU caches, and each cache line that routing reads costs
/// a cache miss. So the fields that routing reads are adjacent: the last fields of the identity, and the
/// first fields of the health and of the load.
#[derive(Debug)]
#[repr(C)]
pub struct Backend {
    /// The name, the address and the settings.
    pub identity: BackendIdentity,
    /// The state from health checks and scrapes, the circuit breaker, and whether an operator
    /// drained the backend.
    pub health: BackendHealth,
    /// The state of the options for this backend, such as its KV events.
    pub facets: BackendFacets,
    /// The requests in flight, the estimates of load and speed, and the stalls and gaps of streams.
    pub load: BackendLoad,
    /// Publishes changes of health and load to the pool. Has no effect before the backend is in a pool.
    pub(super) membership: PoolMembership,
    /// The idle connections, which requests and health checks reuse.
    pub idle_pool: IdlePool,
}

/// Time after an output during which a backend counts as working, even if a connection attempt or a metrics
/// page suggests a fault.
pub(super) const BUSY_TIME: Duration = Duration::from_secs(5);

impl Backend {
    /// A backend whose health is unknown. It gets no requests before its first health check has
    /// passed.
    pub fn new(id: BackendId, address: BackendAddress, authorization: Option<HeaderValue>) -> Self {
        let now = clock::now();
        Self {
            identity: BackendIdentity::new(id, address, authorization),
            health: BackendHealth::new(now),
            facets: BackendFacets::default(),
            load: BackendLoad::new(now),
            membership: PoolMembership::none(now),
            idle_pool: IdlePool::default(),
        }
    }

    /// Sets the settings that a reload can change.
    #[must_use]
    pub fn with_settings(self, settings: BackendSettings) -> Self {
        if settings.is_drained {
            let drain = Drain::begin(DrainInitiator::Configuration, None, None);
            self.health.update_drain(|_| Some(Arc::new(drain)));
        }
        self.identity.replace_settings(Arc::new(settings));
        self
    }

    /// Whether a reload that builds `other` can keep this backend in the pool: name, addresses and credentials
    /// are equal. The other settings may differ.
    pub(super) fn is_same_endpoint(&self, other: &Self) -> bool {
        self.identity.is_same_endpoint(&other.identity)
            && self.facets.is_same_endpoint(&other.facets)
    }

    /// Copies the settings of `other` that can change while the backend stays in the pool: weight, usage
    /// injection, circuit breaker, load horizon and drain. The drain setting of the configuration is
    /// applied only if the setting has changed. So a reload neither ends a drain by an operator nor
    /// repeats a drain that an operator has ended.
    pub(super) fn adopt_settings(&self, other: &Self) {
        self.health.breaker.set(other.health.breaker.settings());
        let horizon = other.load.estimator.horizon();
        self.load.set_horizon(horizon);
        self.facets.targets.set_horizon(horizon);
        self.facets.adopt_settings(&other.facets);
        let settings = other.identity.settings();
        let previous = self.identity.replace_settings(settings.clone());
        if previous.is_drained == settings.is_drained {
            return;
        }
        if settings.is_drained {
            self.drain(Drain::begin(DrainInitiator::Configuration, None, None));
        } else {
            let by = DrainInitiator::Configuration;
            self.end_drain_if(by, |drain| drain.initiator == DrainInitiator::Configuration);
        }
    }

    /// Whether the backend is only suspected to be down: its engine seems stuck, or it does not answer. A
    /// suspected backend gets the requests that no other backend can serve.
    pub fn is_last_resort(&self) -> bool {
        self.health.is_suspected.get() && self.weight() > 0
    }

    /// The current weight: the share of the requests relative to other backends. 0 while the
    /// backend is drained.
    pub fn weight(&self) -> u32 {
        if self.health.is_drained() {
            0
        } else {
            self.identity.weight()
        }
    }

    /// Returns whether the backend may get new requests, and if not, why.
    pub fn availability(&self, now: Instant) -> Availability {
        self.health.availability(self.identity.weight(), now)
    }

    /// Whether the gateway adds `include_usage` to requests without it. True only if the kind of the server is
    /// known to send usage in a separate event, and if the gateway could so far remove that event from all
    /// streams of this API.
    pub fn should_inject_usage(&self, api: Option<Api>) -> bool {
        self.identity.settings().may_inject_usage
            && self
                .health
                .server_kind()
                .is_some_and(EngineKind::sends_usage_event)
            && self.load.stream_profile.can_remove_usage(api)
    }

    /// The share, from 0 to 1, of the streams for which the gateway requests usage in every event. The share is
    /// 0 for servers other than vLLM. It is also 0 until a stream of this API has shown that the server writes
    /// usage into events only on request. Before that, the gateway does not know which usage to remove from the
    /// response.
    pub fn continuous_usage_share(&self, api: Option<Api>) -> f64 {
        let has_usage_on_request_only = self.load.stream_profile.has_usage_on_request_only(api);
        let is_vllm = || self.health.server_kind() == Some(EngineKind::Vllm);
        if has_usage_on_request_only && is_vllm() {
            self.load
                .stream_profile
                .sampled_share(self.identity.settings().continuous_usage_share)
        } else {
            0.0
        }
    }

    /// Whether the gateway may request usage in every event of one more stream, beyond the share
    /// [`Self::continuous_usage_share`]. If so, the stream counts towards the rate limit of such streams.
    /// Always false if the outputs of the backend are long.
    pub fn take_counted_stream(&self, now: Instant) -> bool {
        !self.load.stream_profile.has_long_outputs()
            && self.identity.counted_streams.try_acquire(now)
    }

    /// Whether the streams of the backend have a `system_fingerprint`, which only the Python front end of vLLM
    /// writes. The Rust front end also groups tool calls differently: with continuous usage it writes all parts
    /// of a tool call from one engine step into one event, and without it into several events.
    pub fn has_fingerprint(&self) -> bool {
        self.load
            .stream_profile
            .fingerprint()
            .is_some_and(|member| !member.is_empty())
    }

    /// Drains the backend: it finishes its requests and gets no new ones. If the backend is drained already,
    /// the function replaces initiator, reason and expiry, keeps the start, and returns `false`.
    pub(super) fn drain(&self, drain: Drain) -> bool {
        tracing::info!(
            backend = %self.identity.id,
            by = %drain.initiator,
            reason = drain.reason.as_deref(),
            seconds = drain.ends_at.map(|at| (at - drain.began_at).as_secs()),
            "backend drained: it gets no new requests, and completes those in progress"
        );
        let previous = self.health.update_drain(|current| {
            let mut drain = drain;
            if let Some(current) = current {
                drain.started = current.started;
                drain.began_at = current.began_at;
            }
            Some(Arc::new(drain))
        });
        self.on_change(clock::now());
        previous.is_none()
    }

    pub(super) fn undrain(&self, initiator: DrainInitiator) -> bool {
        self.end_drain_if(initiator, |_| true)
    }

    /// Ends the drain of the backend if its duration is over.
    pub(super) fn end_expired_drain(&self, now: Instant) {
        if self.health.is_drained() {
            self.end_drain_if(DrainInitiator::Expiry, |drain| drain.is_over(now));
        }
    }

    /// Ends the drain of the backend if `condition` holds for the drain. Returns whether a drain ended.
    fn end_drain_if(&self, initiator: DrainInitiator, condition: impl Fn(&Drain) -> bool) -> bool {
        let previous = self
            .health
            .update_drain(|current| current.filter(|drain| !condition(drain)).cloned());
        let Some(ended) = previous.filter(|drain| condition(drain)) else {
            return false;
        };
        let now = clock::now();
        tracing::info!(
            backend = %self.identity.id,
            by = %initiator,
            seconds = now.saturating_duration_since(ended.began_at).as_secs(),
            "backend undrained: it gets requests again when it is available"
        );
        self.on_change(now);
        true
    }

    /// Marks the backend down after the connection of a request failed, and requests a health check at once.
    /// The backend gets no new requests until a health check passes. If the connection only timed out and the
    /// backend has just answered other requests, the backend is busy and stays up.
    pub fn mark_down(&self, reason: &str) {
        let is_busy = client::is_connect_timeout(reason) && self.has_output_since(BUSY_TIME);
        if !is_busy {
            self.set_down(DownCause::Other, reason);
        }
        self.health.request_check();
    }

    /// Whether a response of the backend had output within the last `time`.
    pub fn has_output_since(&self, time: Duration) -> bool {
        let last_output = self.load.last_output_at.get();
        last_output.is_some_and(|at| clock::now().saturating_duration_since(at) < time)
    }

    /// Marks the backend down for `cause`, and logs `reason`.
    pub(super) fn set_down(&self, cause: DownCause, reason: &str) {
        let text: Arc<str> = reason.into();
        self.update_state(|state| state.set_down(cause, &text));
        self.health.log_down(&self.identity.id, reason);
    }

    /// Applies the effect of a failed request to the backend, for example an ejection. `why` is the reason of
    /// the failure for the log and the status. `rest`: the time of `Retry-After`, for which the backend should
    /// get no requests. `None`: the response has no such header.
    pub fn on_failure(
        &self,
        failure: FailureKind,
        why: &str,
        rest: Option<Duration>,
        now: Instant,
    ) {
        match failure.effect() {
            BreakerAction::Nothing => return,
            BreakerAction::MarkDown => return self.mark_down(why),
            BreakerAction::BackOff => self.health.breaker.on_overload(rest, now),
            action => self
                .health
                .apply_to_breaker(action, &self.identity.id, why, now),
        }
        self.health.request_check();
        self.on_change(now);
    }

    /// Records that the backend refused a request with the HTTP status `status` and that another backend serves
    /// the request. The refusing backend lacks the API path `path`, or media in prompts if `path` is `MEDIA`.
    /// Such requests avoid the backend until it restarts, or for some minutes.
    pub fn on_unserved(&self, path: &'static str, status: u16, now: Instant) {
        if self.health.add_unserved(path, now) {
            tracing::warn!(
                backend = %self.identity.id,
                path,
                status,
                "the backend does not serve the path or the media of a request, which other backends serve: such requests avoid the backend"
            );
        }
    }

    /// Records a successful request when its response has begun. Closes a half-open circuit
    /// breaker, which re-admits the backend.
    pub fn on_response_started(&self, now: Instant) {
        self.load.last_output_at.set(Some(now));
        if self.health.breaker.on_answer(now) {
            tracing::info!(backend = %self.identity.id, "backend re-admitted: slow start begins");
            self.on_change(now);
        }
    }

    /// Records that a health check was skipped because the gateway lacked sockets or ports. The
    /// health does not change.
    pub(super) fn on_check_skipped(&self, problem: &str) {
        resource_exhaustion::warn_rate_limited(problem);
        self.update_state(|state| {
            if state.health == Health::Unknown {
                state.reason = Some(problem.into());
            }
        });
    }

    /// Sets the availability that an option announces when it takes the backend out of service. `None`: the
    /// option puts the backend back into service.
    pub fn withdraw(&self, availability: Option<Availability>) {
        self.update_state(|state| state.withdrawal = availability);
    }

    /// Changes the health state, and publishes the change to the pool. `change` may run more than once.
    pub(super) fn update_state(&self, change: impl Fn(&mut BackendState)) {
        self.health.update_state(change);
        self.on_change(clock::now());
    }

    /// The index of the backend in the pool.
    pub(super) fn position(&self) -> usize {
        self.membership.position.load(Ordering::Relaxed)
    }

    pub(super) fn set_position(&self, position: usize) {
        self.membership.position.store(position, Ordering::Relaxed);
        self.publish_load_hint(clock::now());
    }

    /// Publishes the load hint (an estimate of the load) of the backend, and notifies the admission
    /// queue. Must be called after every change of the backend that may affect routing.
    pub(super) fn on_change(&self, now: Instant) {
        self.publish_load_hint(now);
        self.membership.capacity_notifier.notify();
    }

    /// The value of the `Via` header for requests to a backend that is itself a gateway. The header shows this
    /// gateway that one of its own requests has come back. `None`: the backend is no gateway.
    pub fn hop(&self) -> Option<&HeaderValue> {
        self.health
            .load_state()
            .is_gateway
            .then_some(&self.membership.hop)
    }

    /// Publishes the load hint of the backend, an estimate of its load, to the sampler that selects
    /// candidates in a large pool.
    pub(super) fn publish_load_hint(&self, now: Instant) {
        let sampler = &self.membership.candidate_sampler;
        sampler.show(self.position(), now, || {
            let is_excluded =
                !self.health.is_serving() || self.weight() == 0 || self.health.breaker.is_shut(now);
            let candidate =
                || self.candidate(&PromptFingerprint::default(), None, clock::nanos(now));
            (!is_excluded).then(candidate).flatten()
        });
    }

    /// Informs the options of a change of the load that this gateway puts on the backend. `prompt`: the prompt
    /// that was sent. `None`: a prompt was computed, or a request ended.
    pub(super) fn on_load_change(&self, prompt: Option<&Arc<PromptFingerprint>>) {
        let change = LoadChange {
            backend: self.identity.id_hash,
            estimator: &self.load.estimator,
            prompt,
        };
        for facet in self.facets.each() {
            facet.on_load_change(&change);
        }
    }

    /// Records that another gateway sent a prompt to the backend.
    pub(super) fn on_peer_prompt(&self, prompt: &PromptFingerprint) {
        self.load.estimator.on_peer_prompt(prompt);
        let sampler = &self.membership.candidate_sampler;
        sampler.sent(prompt, self.position());
    }

    pub(super) fn condition(&self, now: Instant) -> BackendCondition {
        let mut condition = self.health.load_state().condition(now);
        for facet in self.facets.each() {
            facet.complete_condition(&mut condition);
        }
        condition
    }
}
