//! Admission control: leases a backend with capacity to a request, or queues the request until a
//! backend has capacity.
//!
//! If a backend below the saturation thresholds can serve a request, the request gets a lease at
//! once. Otherwise the request waits in the admission queue. When a backend gets capacity, the
//! first queued request that this backend can serve gets the lease, unless another backend has the
//! prompt of that request in its cache and a later request of the same tenant fits better, see
//! [`AdmissionQueue::select`].
//!
//! The lease is taken under the lock of the queue and sent to the waiting request. So no later
//! request can take the capacity first, a waiting request wakes only when it has a lease or an
//! error, and the policy picks the backend as late as possible. A client disconnect removes the
//! request from the queue, and releases a lease that was already sent to the request.

use crate::backend::Lease;
use crate::backend::pool::{BackendOffer, BackendPool, BackendRequirements};
use arc_swap::ArcSwapOption;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokenweir_core::admission::{
    AdmissionQueue, DEFAULT_CLASS, EnqueueOutcome, ExhaustedModels, PriorityClasses, QueuedRequest,
    QueuedRequestId, RejectedRequest,
};
use tokenweir_core::clock;
use tokenweir_core::error::GatewayError;
use tokenweir_core::record::{RequestRecord, RoutingDecision, Tier, Timings};
use tokenweir_core::routing::PromptFingerprint;
use tokenweir_core::routing::saturation::SaturationThresholds;
use tokio::sync::oneshot;

/// Decides which requests are sent to a backend now, and which requests wait in the queue.
pub struct AdmissionController {
    pool: Arc<BackendPool>,
    /// `None`: admission control is disabled. No further request is queued.
    settings: ArcSwapOption<AdmissionSettings>,
    /// Hashes tenants, which can be secret tokens. It has a new random key in each process.
    tenant_hasher: RandomState,
    queue: Mutex<AdmissionQueue<LeaseWaiter>>,
}

/// Settings of admission control: when requests wait, the maximum number of waiting requests, and
/// the maximum wait.
#[derive(Debug, Clone)]
pub struct AdmissionSettings {
    /// A backend above one of these thresholds gets no new requests.
    pub thresholds: SaturationThresholds,
    /// Maximum number of waiting requests.
    pub queue_capacity: usize,
    /// Maximum wait of a request. After that, the gateway rejects the request.
    pub max_wait: Duration,
    /// The priority classes: tiers in order of precedence.
    pub classes: PriorityClasses,
    /// The header with the tenant, for requests without an API key.
    pub tenant_header: Option<HeaderName>,
}

/// The flow of a request in the queue: its priority class and its tenant. Flows of the same class
/// share the queue fairly.
#[derive(Debug, Clone, Copy)]
pub struct FlowKey {
    /// Index of the priority class. 0 takes precedence over all others.
    priority_class: usize,
    tenant_hash: u64,
}

/// Assumed number of output tokens of a request. With the estimated prompt tokens, it is the cost
/// of the request in the fair queue.
const EXPECTED_OUTPUT_TOKENS: u64 = 256;
/// Assumed number of prompt bytes in the JSON body per prompt token, to estimate the prompt tokens.
const PROMPT_BYTES_PER_TOKEN: u64 = 4;

/// A lease on a backend, and the decision that picked the backend.
type LeasedBackend = (Lease, Arc<RoutingDecision>);

/// The routing properties of a queued request, and the channel for its lease.
struct LeaseWaiter {
    prompt: Arc<PromptFingerprint>,
    is_stream: bool,
    path: Option<&'static str>,
    max_tokens: Option<u64>,
    session: Option<u64>,
    seed: u64,
    result_sender: oneshot::Sender<Result<LeasedBackend, GatewayError>>,
}

/// The result of the second try to admit a request, which is made under the lock of the queue.
enum AdmitOutcome {
    /// The request got a lease.
    Leased(LeasedBackend),
    /// The request was queued.
    Queued(QueuedRequestId),
}

/// The entry of a waiting request in the queue. Dropping the guard removes the entry.
struct QueueGuard<'a> {
    controller: &'a AdmissionController,
    /// The id of the entry.
    key: QueuedRequestId,
    result_receiver: oneshot::Receiver<Result<LeasedBackend, GatewayError>>,
}

// === impl AdmissionController ===

impl AdmissionController {
    /// Admission control for the backends of a pool. `None`: admission control is disabled, so no
    /// request waits.
    pub fn new(pool: Arc<BackendPool>, settings: Option<AdmissionSettings>) -> Self {
        let (capacity, classes) = settings
            .as_ref()
            .map_or((0, 1), |settings| (settings.queue_capacity, settings.classes.names().len()));
        let queue = Mutex::new(AdmissionQueue::new(capacity, classes));
        let settings = ArcSwapOption::from_pointee(settings);
        Self { pool, settings, tenant_hasher: RandomState::new(), queue }
    }

    /// Replaces the settings. Waiting requests stay in the queue, in the new class with the name of
    /// their class, or else in the default class. `None` disables admission control: waiting
    /// requests get a lease on any available backend without regard to saturation.
    pub fn update_settings(&self, settings: Option<AdmissionSettings>) {
        self.with_queue(|queue| {
            let previous = self.settings.load_full();
            if let Some(new) = &settings {
                let names = previous.as_ref().map(|previous| previous.classes.names());
                let new_class = |class: usize| {
                    let name = names.and_then(|names| names.get(class));
                    new.classes.class_of_tier(name.map_or(DEFAULT_CLASS, |name| name))
                };
                queue.change(new.queue_capacity, new.classes.names().len(), new_class);
            }
            self.settings.store(settings.map(Arc::new));
        });
        // A backend that was saturated may have capacity under the new thresholds.
        self.pool.capacity_notifier().notify();
    }

    /// The name of each priority class and the number of its waiting requests, in order of
    /// precedence. Empty if admission control is disabled.
    pub fn waiting_by_class(&self) -> Vec<(Arc<str>, usize)> {
        let Some(settings) = self.settings.load_full() else { return Vec::new() };
        let names = settings.classes.names().iter().cloned();
        names.zip(self.lock_queue().waiting()).collect()
    }

    /// When the request entered the queue that has waited longest. `None`: no request waits.
    pub fn oldest_waiting(&self) -> Option<Instant> {
        self.lock_queue().oldest()
    }

    /// The flow of a request. `tenant` is the tenant of its API key. If `tenant` is `None`, the
    /// value of the configured tenant header identifies the tenant, otherwise the `Authorization`
    /// header, otherwise the address of the client.
    pub fn flow_key(
        &self,
        headers: &HeaderMap,
        client: IpAddr,
        tier: &Tier,
        tenant: Option<&str>,
    ) -> FlowKey {
        let settings = self.settings.load();
        let Some(settings) = &*settings else {
            return FlowKey { priority_class: 0, tenant_hash: 0 };
        };
        let priority_class = settings.classes.class_of_tier(tier.as_str());
        if let Some(tenant) = tenant {
            return FlowKey { priority_class, tenant_hash: self.tenant_hasher.hash_one(tenant) };
        }
        let header = settings.tenant_header.as_ref().and_then(|name| headers.get(name));
        let tenant_hash = match header.or_else(|| headers.get(AUTHORIZATION)) {
            Some(value) => self.tenant_hasher.hash_one(value.as_bytes()),
            None => self.tenant_hasher.hash_one(client),
        };
        FlowKey { priority_class, tenant_hash }
    }

    /// Leases a backend to the request of a record. A request that continues a stored response does
    /// not wait in the queue: no other backend can serve it, so it would hold up others. Fails as
    /// [`Self::admit`] does.
    pub(super) async fn lease(
        &self,
        record: &mut RequestRecord,
        headers: &HeaderMap,
        requirements: BackendRequirements<'_>,
    ) -> Result<LeasedBackend, GatewayError> {
        if requirements.backend.is_some() {
            return self.pool.lease(requirements, &[], clock::now());
        }
        let tenant = record.caller.as_ref().map(|identity| &*identity.tenant);
        let flow_key = self.flow_key(headers, record.client, &record.tier, tenant);
        self.admit(requirements, flow_key, &mut record.timings).await
    }

    /// Leases a backend to a request, at once or when a backend has capacity. Writes the times at
    /// which the request enters and leaves the queue into `timings`.
    ///
    /// Fails if no backend serves the model, if no backend is available, if the queue is full, if a
    /// request with precedence displaces this request from the queue, or after the maximum wait.
    pub async fn admit(
        &self,
        requirements: BackendRequirements<'_>,
        flow_key: FlowKey,
        timings: &mut Timings,
    ) -> Result<LeasedBackend, GatewayError> {
        let now = clock::now();
        let settings = self.settings.load_full();
        let Some(settings) = settings.as_deref() else {
            return self.pool.lease(requirements, &[], now);
        };
        if self.pool.capacity_notifier().waiting_requests() == 0
            && let Some(offer) = self.pool.offer(&settings.thresholds, requirements, now)?
        {
            return Ok(offer.accept(requirements, now));
        }
        let deadline = now + settings.max_wait;
        let (queued_request, result_receiver) = queue_entry(requirements, flow_key, deadline);
        let outcome = self.with_queue(|queue| {
            // Waiting requests are served first. The new request gets a lease only if no request
            // for the same model still waits.
            if !self.dispatch_queued(queue, &settings.thresholds, now).has(requirements.model)
                && let Some(offer) = self.pool.offer(&settings.thresholds, requirements, now)?
            {
                return Ok(AdmitOutcome::Leased(offer.accept(requirements, now)));
            }
            enqueue(queue, queued_request, now).map(AdmitOutcome::Queued)
        })?;
        let key = match outcome {
            AdmitOutcome::Leased(lease) => return Ok(lease),
            AdmitOutcome::Queued(key) => key,
        };
        let mut guard = QueueGuard { controller: self, key, result_receiver };
        timings.queued = Some(now);
        // Capacity that was freed before this request was queued has woken no task, so it is
        // dispatched here.
        self.with_queue(|queue| self.dispatch_queued(queue, &settings.thresholds, now));
        let result = guard.wait_for_lease(settings, deadline).await;
        timings.dequeued = Some(clock::now());
        result
    }

    /// Leases freed capacity to waiting requests, in an endless loop.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.pool.capacity_notifier().wait_capacity_freed().await;
            let settings = self.settings.load_full();
            let thresholds = settings.map(|settings| settings.thresholds).unwrap_or_default();
            self.with_queue(|queue| self.dispatch_queued(queue, &thresholds, clock::now()));
        }
    }

    /// Leases all available capacity to waiting requests, in the order of the queue. A request
    /// whose model has no capacity is skipped. Returns the models of the skipped requests.
    fn dispatch_queued(
        &self,
        queue: &mut AdmissionQueue<LeaseWaiter>,
        thresholds: &SaturationThresholds,
        now: Instant,
    ) -> ExhaustedModels {
        let mut exhausted = ExhaustedModels::default();
        let mut offer = |request: &QueuedRequest<LeaseWaiter>| {
            self.pool.offer(thresholds, queued_requirements(request), now).transpose()
        };
        let lost_tokens = |offer: &Result<BackendOffer, GatewayError>| {
            offer.as_ref().map_or(0.0, BackendOffer::lost_tokens)
        };
        while let Some((key, offer)) = queue.select(now, &mut exhausted, &mut offer, lost_tokens) {
            let request = if offer.is_ok() { queue.grant(key, now) } else { queue.leave(key) };
            if let Some(request) = request {
                let result = offer.map(|offer| offer.accept(queued_requirements(&request), now));
                request.payload.send_result(result);
            }
        }
        exhausted
    }

    /// Runs `work` on the locked queue, and then publishes the number of waiting requests.
    fn with_queue<R>(&self, work: impl FnOnce(&mut AdmissionQueue<LeaseWaiter>) -> R) -> R {
        let mut queue = self.lock_queue();
        let result = work(&mut queue);
        self.pool.capacity_notifier().set_waiting_requests(queue.len());
        result
    }

    fn lock_queue(&self) -> MutexGuard<'_, AdmissionQueue<LeaseWaiter>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of a request in the queue, and the receiver of its lease or error.
fn queue_entry(
    requirements: BackendRequirements<'_>,
    flow_key: FlowKey,
    deadline: Instant,
) -> (QueuedRequest<LeaseWaiter>, oneshot::Receiver<Result<LeasedBackend, GatewayError>>) {
    let (result_sender, result_receiver) = oneshot::channel();
    let payload = LeaseWaiter {
        prompt: requirements.prompt.clone(),
        is_stream: requirements.is_stream,
        path: requirements.path,
        max_tokens: requirements.max_tokens,
        session: requirements.session,
        seed: requirements.seed,
        result_sender,
    };
    let request = QueuedRequest {
        class: flow_key.priority_class,
        tenant: flow_key.tenant_hash,
        model: requirements.model.map(Into::into),
        tokens: EXPECTED_OUTPUT_TOKENS + requirements.prompt.bytes / PROMPT_BYTES_PER_TOKEN,
        deadline,
        payload,
    };
    (request, result_receiver)
}

/// Queues a request, and sheds the request that it displaces, if any.
fn enqueue(
    queue: &mut AdmissionQueue<LeaseWaiter>,
    request: QueuedRequest<LeaseWaiter>,
    now: Instant,
) -> Result<QueuedRequestId, GatewayError> {
    match queue.enter(request, now) {
        EnqueueOutcome::Waits(key) => Ok(key),
        EnqueueOutcome::QueuedDisplacing(key, displaced) => {
            let error = GatewayError::Shed { retry_after: displaced.retry_after };
            displaced.ticket.payload.send_result(Err(error));
            Ok(key)
        }
        EnqueueOutcome::Full(RejectedRequest { retry_after, .. }) => {
            Err(GatewayError::Saturated { retry_after })
        }
    }
}

fn queued_requirements(request: &QueuedRequest<LeaseWaiter>) -> BackendRequirements<'_> {
    let LeaseWaiter { prompt, is_stream, path, max_tokens, session, seed, .. } = &request.payload;
    BackendRequirements {
        model: request.model.as_deref(),
        prompt,
        is_stream: *is_stream,
        // A request that needs one backend does not wait in the queue.
        backend: None,
        path: *path,
        max_tokens: *max_tokens,
        longer_than: None,
        session: *session,
        seed: *seed,
    }
}

// === impl LeaseWaiter ===

impl LeaseWaiter {
    /// Sends the lease or the error to the waiting request. If the client of the request has
    /// disconnected, the lease is dropped and thereby released.
    fn send_result(self, result: Result<LeasedBackend, GatewayError>) {
        drop(self.result_sender.send(result));
    }
}

// === impl QueueGuard ===

impl QueueGuard<'_> {
    /// Waits for the lease until the deadline. Fails if the request is displaced from the queue, if
    /// no backend serves its model any more, or at the deadline.
    async fn wait_for_lease(
        &mut self,
        settings: &AdmissionSettings,
        deadline: Instant,
    ) -> Result<LeasedBackend, GatewayError> {
        if let Ok(result) =
            tokio::time::timeout_at(deadline.into(), &mut self.result_receiver).await
        {
            return result.unwrap_or(Err(GatewayError::Internal));
        }
        match self.controller.with_queue(|queue| queue.refuse(self.key, clock::now())) {
            Some(RejectedRequest { retry_after, .. }) => {
                Err(GatewayError::QueueTimeout { waited: settings.max_wait, retry_after })
            }
            // The entry is already removed: the result was sent while the timeout expired.
            None => self.result_receiver.try_recv().unwrap_or(Err(GatewayError::Internal)),
        }
    }
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        // This has no effect if a result was sent, because the entry is already removed then.
        self.controller.with_queue(|queue| queue.leave(self.key));
    }
}
