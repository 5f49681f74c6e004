//! The backend pool: it holds all backends and leases one backend to each attempt. The state of a
//! backend comes from the configuration, from health checks and scrapes, and from the outcomes of
//! the requests of this gateway.

pub(super) mod backend_pool;
mod capability;
mod eligible_backends;
mod exclusions;
mod panic_mode;
pub(super) mod readiness;
mod readiness_log;
mod snapshot;

pub use backend_pool::{BackendPool, PeerPrompt};
pub use eligible_backends::BackendRequirements;

use super::facets::{PromptKnowledge, RequestPart, Suitability};
use super::routes::{ModelRoute, RouteTable};
use super::{Backend, Drain, DrainInitiator, Lease};
use arc_swap::Guard;
use arc_swap::access::Access;
use eligible_backends::BackendSearch;
use readiness::Readiness;
use snapshot::{PickedBackend, PoolSnapshot};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokenweir_engine::dialect::EngineKind;
use tokenweir_protocol::clock;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{Outcome, RequestRecord, RoutingDecision};
use tokenweir_routing::admission::CapacityGroup;
use tokenweir_routing::resilience::{Availability, FailureKind};
use tokenweir_routing::saturation::SaturationThresholds;
use tokenweir_routing::{Policy, kv_aware};

/// Maximum number of backends whose caches are compared to find the minimum work (uncached prompt and output)
/// of a request.
const MAX_COMPARED_CACHES: usize = 64;

/// The expected work of an engine for a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpectedWork {
    /// Tokens that the engine has to compute: uncached prompt and expected output.
    pub tokens: u64,
    /// Predicted TTFT in seconds.
    pub ttft: f64,
}

/// A backend that the policy picked and that is not leased yet. Dropping the offer has no effect.
pub struct BackendOffer {
    snapshot: Guard<Arc<PoolSnapshot>>,
    picked: PickedBackend,
}

impl BackendPool {
    /// All backends. Their index is their position.
    pub fn backends(&self) -> Arc<[Arc<Backend>]> {
        self.snapshot().backends.clone()
    }

    /// The availability of each backend, by position. A suspected backend counts as available, because it gets
    /// the requests that no other backend can serve.
    pub fn availabilities(&self) -> Vec<Availability> {
        let now = clock::now();
        let snapshot = self.snapshot();
        let backends = snapshot.backends.iter();
        let availability = |backend: &Arc<Backend>| match backend.availability(now) {
            Availability::Down if backend.is_last_resort() => Availability::Available,
            availability => availability,
        };
        backends.map(availability).collect()
    }

    /// Whether the engines of a model remove the attribution of Claude Code from prompts, as vLLM does. An
    /// engine of unknown kind counts as vLLM.
    pub fn drops_attribution(&self, route: &ModelRoute) -> bool {
        let snapshot = self.snapshot();
        let mut backends = snapshot.at(&route.backends);
        let keeps = |kind| !matches!(kind, EngineKind::Vllm | EngineKind::Gateway);
        !backends.any(|backend| backend.health.server_kind().is_some_and(keeps))
    }

    pub(super) fn backend_count(&self) -> usize {
        self.snapshot().backends.len()
    }

    /// The policy that picks backends, with its settings.
    pub fn policy(&self) -> Policy {
        self.snapshot().policy
    }

    /// Memory that the candidate sampler uses, in bytes.
    pub fn candidate_sampler_bytes(&self) -> usize {
        self.snapshot().candidate_sampler.bytes()
    }

    /// Closes an idle connection to any backend, to free its file descriptor. Returns `false` if there was
    /// none.
    pub fn close_idle_connection(&self) -> bool {
        let backends = self.backends();
        // The search starts at a random backend, so that no backend loses all its connections
        // first.
        let (head, tail) = backends.split_at(fastrand::usize(..=backends.len()));
        tail.iter()
            .chain(head)
            .any(|backend| backend.idle_pool.close_oldest())
    }

    /// Whether any backend may get requests: the value of [`Readiness::is_ready`] at lower cost.
    pub fn is_ready(&self) -> bool {
        self.snapshot().is_ready(clock::now())
    }

    /// Computes the availability of each backend. Logs the end of panic mode, and when no backend is
    /// available or a backend is available again. Must be called every few seconds.
    pub fn readiness(&self, now: Instant) -> Readiness {
        self.snapshot().readiness(now)
    }

    /// Drains the backend of this name. A drained backend finishes its requests and gets no new requests. The
    /// drain lasts until it is ended, its duration is over, or the backend leaves the pool. Returns `false`
    /// if the backend was drained already. `None`: the pool has no backend of this name.
    pub fn drain(&self, name: &str, drain: Drain) -> Option<bool> {
        self.find_backend(name).map(|backend| backend.drain(drain))
    }

    /// Ends the drain of the backend of this name. Returns whether the backend was drained. `None`:
    /// the pool has no backend of this name.
    pub fn undrain(&self, name: &str, initiator: DrainInitiator) -> Option<bool> {
        self.find_backend(name)
            .map(|backend| backend.undrain(initiator))
    }

    /// Ends the drains whose duration is over.
    pub fn end_expired_drains(&self, now: Instant) {
        self.snapshot()
            .backends
            .iter()
            .for_each(|backend| backend.end_expired_drain(now));
    }

    /// The backend of this name. `None`: the pool has no backend of this name.
    pub(crate) fn find_backend(&self, name: &str) -> Option<Arc<Backend>> {
        let snapshot = self.snapshot();
        snapshot
            .backends
            .iter()
            .find(|backend| backend.identity.id.as_str() == name)
            .cloned()
    }

    /// Leases the backend that the policy picks among all backends that may serve the request, except those in
    /// `tried`. Saturated backends are included. Fails if no backend is left.
    pub fn lease(
        &self,
        requirements: BackendRequirements<'_>,
        tried: &[Arc<Backend>],
        now: Instant,
    ) -> Result<(Lease, Arc<RoutingDecision>), GatewayError> {
        let offer = self.offer_within(&BackendSearch::new(&requirements, tried, None, now))?;
        Ok(offer
            .ok_or(GatewayError::NoBackend)?
            .accept(requirements, now))
    }

    /// Offers the backend that the policy picks. Without thresholds no backend counts as full. `None`: all
    /// backends that could serve the request are full. Fails if no backend could serve the request.
    pub fn offer(
        &self,
        thresholds: Option<&SaturationThresholds>,
        requirements: BackendRequirements<'_>,
        now: Instant,
    ) -> Result<Option<BackendOffer>, GatewayError> {
        self.offer_within(&BackendSearch::new(&requirements, &[], thresholds, now))
    }

    /// Offers the backend that the policy picks for a part of a request, except those in `tried`. `None`: no
    /// backend can take the part.
    pub fn offer_part(
        &self,
        part: RequestPart,
        requirements: BackendRequirements<'_>,
        tried: &[Arc<Backend>],
        now: Instant,
    ) -> Option<BackendOffer> {
        let search = BackendSearch::new(&requirements, tried, None, now);
        self.offer_within(&BackendSearch { part, ..search }).ok()?
    }

    /// Whether the model has a backend, in any state, that is not excluded from the request.
    pub(crate) fn has_other(&self, requirements: BackendRequirements<'_>) -> bool {
        let snapshot = self.snapshot();
        let route = snapshot.routes.lookup(requirements.model);
        snapshot.at(&route.backends).any(|backend| {
            let is_excluded = requirements
                .excluded
                .iter()
                .any(|it| Arc::ptr_eq(it, backend));
            backend.weight() > 0 && !is_excluded
        })
    }

    /// The minimum work and the minimum TTFT of a request at any backend. `None`: no backend is up.
    pub fn expected_work(
        &self,
        requirements: BackendRequirements<'_>,
        now: Instant,
    ) -> Option<ExpectedWork> {
        let snapshot = self.snapshot();
        let mut known = PromptKnowledge::new(requirements.prompt);
        let now = clock::nanos(now);
        let backends = snapshot.at(&snapshot.routes.lookup(requirements.model).backends);
        let serving = backends.filter(|backend| backend.health.is_serving());
        let mut least: Option<ExpectedWork> = None;
        for backend in serving.take(MAX_COMPARED_CACHES) {
            backend.visit_candidates(requirements.prompt, &mut known, now, |candidate| {
                let uncached = (candidate.prompt - candidate.cached).max(0.0);
                let tokens = (uncached + requirements.bounded_output(candidate.output)) as u64;
                let ttft = kv_aware::ttft(&snapshot.policy.kv_aware, candidate, false);
                least = Some(ExpectedWork {
                    tokens: least.map_or(tokens, |least| least.tokens.min(tokens)),
                    ttft: least.map_or(ttft, |least| least.ttft.min(ttft)),
                });
            });
        }
        least
    }

    /// The group of a request in the admission queue. The same backends can serve all requests of a group.
    pub(crate) fn capacity_group(
        &self,
        requirements: &BackendRequirements<'_>,
        now: Instant,
    ) -> CapacityGroup {
        let backends = self.snapshot().able_backends(requirements, now);
        CapacityGroup {
            model: requirements.model.map(Into::into),
            backends,
        }
    }

    fn offer_within(
        &self,
        search: &BackendSearch<'_>,
    ) -> Result<Option<BackendOffer>, GatewayError> {
        let sequence = self.request_sequence.fetch_add(1, Ordering::Relaxed);
        let snapshot = self.snapshot();
        let picked = snapshot.pick(search, sequence)?;
        Ok(picked.map(|picked| BackendOffer { snapshot, picked }))
    }

    /// The context length of a model at a backend. `None`: not known.
    pub(crate) fn model_length(&self, model: Option<&str>, backend: &Arc<Backend>) -> Option<u32> {
        let snapshot = self.snapshot();
        let is_backend = |other: &Arc<Backend>| Arc::ptr_eq(other, backend);
        let position = snapshot.backends.iter().position(is_backend)?;
        snapshot.routes.lookup(model).lengths.at(position)
    }

    /// Number of requests in progress at the backends of a model. For each backend, the greater of two numbers
    /// counts: the running and waiting requests on its last metrics page, which include those of other
    /// gateways, and the requests of this gateway.
    pub fn model_requests(&self, model: &str) -> u64 {
        let snapshot = self.snapshot();
        let backends = snapshot.at(&snapshot.routes.lookup(Some(model)).backends);
        let count = |backend: &Arc<Backend>| {
            let load = backend.health.state().engine_load();
            let counted = load.running.unwrap_or_default() + load.waiting.unwrap_or_default();
            (counted as u64).max(backend.load.in_flight().into())
        };
        backends.map(count).sum()
    }

    /// Positions of the backends on the route of a model. `None`: the request names no model.
    pub fn model_backends(&self, model: Option<&str>) -> Arc<[usize]> {
        self.snapshot().routes.lookup(model).backends.clone()
    }

    /// The total capacity in tokens of the KV caches of the backends at `positions` that are up. `None`: no
    /// backend is up, or one does not report its capacity.
    pub fn cache_tokens(&self, positions: &[usize]) -> Option<u64> {
        let snapshot = self.snapshot();
        let mut total = 0;
        for backend in snapshot.at(positions) {
            let suitability = backend.facets.suitability(RequestPart::Whole, None);
            let is_whole = suitability == Suitability::Suitable;
            if is_whole && backend.weight() > 0 && backend.health.is_serving() {
                total += backend.health.state().sample?.load.capacity()?;
            }
        }
        Some(total).filter(|total| *total > 0)
    }

    /// The current routes. The returned guard must be dropped soon and must not be stored.
    pub fn routes(&self) -> impl Deref<Target = RouteTable> + use<> {
        self.snapshot
            .map(|snapshot: &PoolSnapshot| &snapshot.routes)
            .load()
    }
}

impl BackendOffer {
    /// Leases the offered backend, and records the decision. `requirements`: the requirements for which the offer was made.
    pub fn accept(
        self,
        requirements: BackendRequirements<'_>,
        now: Instant,
    ) -> (Lease, Arc<RoutingDecision>) {
        let Self { snapshot, picked } = self;
        let PickedBackend {
            context,
            choice,
            excluded,
            ..
        } = picked;
        let candidate = &context.candidates()[choice.index];
        let backend = &snapshot.backends[candidate.position];
        backend.health.breaker.on_pick(now);
        snapshot.add_credits(context.candidates(), choice.index);
        let BackendRequirements {
            prompt, is_stream, ..
        } = requirements;
        let lease = Lease::new(backend.clone(), candidate, prompt, is_stream, now);
        snapshot.candidate_sampler.sent(prompt, candidate.position);
        let condition = backend.condition(now);
        let fleet = &snapshot.backend_ids;
        let mut decision = RoutingDecision::new(context, choice, condition, fleet);
        decision.excluded = excluded;
        (lease, Arc::new(decision))
    }

    /// Predicted seconds until the first output of the request at the offered backend.
    pub fn ttft(&self) -> f64 {
        self.picked.context.ttft(self.picked.candidate())
    }

    /// Predicted seconds until the first output of a request with an empty prompt at the offered
    /// backend.
    pub fn base(&self) -> f64 {
        self.picked.candidate().prefill.base
    }

    /// Number of prompt tokens that the offered backend must compute although another eligible backend, full or
    /// not, has them in its cache.
    pub fn lost_tokens(&self) -> f64 {
        self.picked.most_cached - self.picked.candidate().cached
    }
}

/// Applies the outcomes of requests to the health of backends. Without this, a backend that fails every request
/// at once would look idle to the policies.
impl Sink for BackendPool {
    /// Notifies queued requests, because the end of a prefill may free capacity.
    fn first_output(&self, _: &RequestRecord) {
        self.capacity_notifier.notify();
    }

    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            let is_fault = record.shows_backend_fault();
            let is_cut = is_fault || record.outcome == Outcome::Truncated;
            if !record.has_remote_prompt && !is_cut {
                continue;
            }
            let backend = record
                .backend()
                .and_then(|id| self.find_backend(id.as_str()));
            let Some(backend) = backend else { continue };
            if record.has_remote_prompt
                && let Some(ttft) = record.upstream_ttft()
            {
                let estimator = &backend.load.estimator;
                estimator.on_remote_prompt(ttft.as_secs_f64(), clock::now());
            }
            let has_output = record.timings.first_output.is_some();
            if is_cut
                && has_output
                && let Some(prompt) = &record.fingerprint
            {
                backend.health.on_cut(prompt.whole, clock::now());
            }
            // A failure before the first output was already counted when its attempt failed.
            if is_fault && has_output {
                let is_aborted = record.outcome == Outcome::Aborted;
                let failure = if is_aborted {
                    FailureKind::Draining
                } else {
                    FailureKind::Died
                };
                backend.on_failure(failure, failure.as_str(), None, clock::now());
            }
        }
    }
}

#[cfg(test)]
mod offer_tests;
#[cfg(test)]
mod tests;
