//! Decides which requests are sent to a backend now and which wait in the admission queue, and gives
//! freed capacity to waiting requests.

use super::gate::{AdmissionGate, Standing, gated_until};
use super::settings::{AdmissionSettings, AskedWait, WaitLimit};
use super::waiter::{
    Flow, LeaseWaiter, LeasedBackend, WaitResult, enqueue, queue_entry, queued_requirements,
};
use crate::backend::pool::{BackendOffer, BackendPool, BackendRequirements};
use arc_swap::ArcSwapOption;
use http::HeaderMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_protocol::limits::Party;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::error::GatewayError;
use tokenweir_request::record::RequestRecord;
use tokenweir_routing::admission::{
    AdmissionQueue, DEFAULT_CLASS, DequeuedRequest, ExhaustedGroups, QueuedRequest,
    QueuedRequestId, RejectedRequest, WaitingModel, retry_seconds,
};
use tokio::sync::oneshot;

/// Decides which requests are sent to a backend now, and which requests wait in the queue.
pub struct AdmissionController {
    pub(super) pool: Arc<BackendPool>,
    /// The current settings. `None`: admission control is disabled, so no new request is queued.
    pub(super) settings: ArcSwapOption<AdmissionSettings>,
    /// Hashes the names of tenants, which clients may choose. The random key of the hash differs in each
    /// process.
    tenant_hasher: RandomState,
    /// The gate that an option sets. `None`: requests wait for capacity only.
    pub(super) gate: ArcSwapOption<Arc<dyn AdmissionGate>>,
    pub(super) queue: Mutex<AdmissionQueue<LeaseWaiter>>,
}

/// The result of the search for a backend with capacity for a request.
enum Capacity {
    Backend(BackendOffer),
    /// Every backend that can serve the request is full.
    Full,
    /// No backend can serve the request now, so the request waits.
    NoBackend,
}

/// The result of the second attempt to admit a request, under the lock of the queue.
enum AdmitOutcome {
    /// The request got a lease.
    Leased(LeasedBackend),
    Queued(QueuedRequestId, WaitLimit),
}

/// The entry of a waiting request in the queue. Dropping the guard removes the entry.
pub(super) struct QueueGuard<'a> {
    pub controller: &'a AdmissionController,
    pub key: QueuedRequestId,
    pub result_receiver: oneshot::Receiver<WaitResult>,
}

impl AdmissionController {
    /// Admission control for the backends of a pool. `None`: admission control is disabled, so no
    /// request waits.
    pub fn new(pool: Arc<BackendPool>, settings: Option<AdmissionSettings>) -> Self {
        let (capacity, classes) = settings.as_ref().map_or((0, 1), |settings| {
            (settings.queue_capacity, settings.classes.names().len())
        });
        let queue = Mutex::new(AdmissionQueue::new(capacity, classes));
        let settings = ArcSwapOption::from_pointee(settings);
        let gate = ArcSwapOption::empty();
        Self {
            pool,
            settings,
            tenant_hasher: RandomState::new(),
            gate,
            queue,
        }
    }

    /// Replaces the settings. Waiting requests stay in the queue, in the new class of the same name, or in the
    /// default class. `None` disables admission control: each waiting request gets a lease on any available
    /// backend, full or not.
    pub fn update_settings(&self, settings: Option<AdmissionSettings>) {
        self.with_queue(|queue| {
            let previous = self.settings.load_full();
            if let Some(new) = &settings {
                let names = previous.as_ref().map(|previous| previous.classes.names());
                let new_class = |class: usize| {
                    let name = names.and_then(|names| names.get(class));
                    new.classes
                        .class_of_tier(name.map_or(DEFAULT_CLASS, |name| name))
                };
                queue.change(new.queue_capacity, new.classes.names().len(), new_class);
            }
            self.settings.store(settings.map(Arc::new));
        });
        // The new thresholds may give a full backend capacity.
        self.pool.capacity_notifier.notify();
    }

    /// The name of each priority class and the number of its waiting requests, in order of
    /// precedence. Empty if admission control is disabled.
    pub fn waiting_by_class(&self) -> Vec<(Arc<str>, usize)> {
        let Some(settings) = self.settings.load_full() else {
            return Vec::new();
        };
        let names = settings.classes.names().iter().cloned();
        names.zip(lock(&self.queue).waiting()).collect()
    }

    /// The time at which the oldest waiting request entered the queue. `None`: no request waits.
    pub fn oldest_waiting(&self) -> Option<Instant> {
        lock(&self.queue).oldest()
    }

    /// The configured number of requests in flight at which a backend counts as full. `None`: not configured.
    pub fn max_in_flight(&self) -> Option<u32> {
        self.settings
            .load()
            .as_ref()
            .and_then(|settings| settings.thresholds.in_flight)
    }

    /// Whether an ended request missed an objective of `slos`. `None`: none applies to it, or admission control is
    /// disabled.
    pub fn has_missed_objective(&self, record: &RequestRecord) -> Option<bool> {
        self.settings.load().as_ref()?.has_missed_objective(record)
    }

    /// Models with waiting requests, each with their number and whether a backend serves it.
    pub fn waiting_models(&self) -> Vec<WaitingModel> {
        lock(&self.queue).waiting_models().collect()
    }

    /// Whether requests wait while no backend can serve their model.
    pub(in crate::proxy) fn waits_for_backend(&self) -> bool {
        self.settings
            .load()
            .as_ref()
            .is_some_and(|settings| settings.waits_for_backend())
    }

    /// The flow of a request. Flows of one class share the queue fairly. The tenant of the API key defines the
    /// flow. Without an API key, the value of the configured tenant header or, if it is missing, the network of
    /// the client defines it. An unverified token does not define a flow, because a client could send another
    /// one with each request.
    pub(super) fn flow(
        &self,
        settings: &AdmissionSettings,
        headers: &HeaderMap,
        record: &RequestRecord,
    ) -> Flow {
        let priority_class = settings.classes.class_of_tier(record.tier.as_str());
        let tenant = record.caller.as_ref().map(|caller| &*caller.tenant);
        let header = settings
            .tenant_header
            .as_ref()
            .and_then(|name| headers.get(name));
        let tenant_hash = match (tenant, header) {
            (None, Some(value)) => self.tenant_hasher.hash_one(value.as_bytes()),
            _ => self
                .tenant_hasher
                .hash_one(Party::new(tenant, record.client)),
        };
        Flow {
            class: priority_class,
            tenant: tenant_hash,
        }
    }

    /// Leases a backend to the request of a record, at once or when a backend has capacity. Writes the times at
    /// which the request enters and leaves the queue into `record`. A request that continues a stored response
    /// waits only while the backend with this response is unavailable, and not for capacity.
    ///
    /// Fails in these cases: no backend serves the model; no backend is available and the request does not
    /// wait; the queue is full; a request with precedence displaces this one; the TTFT objective cannot be met;
    /// the maximum wait is over.
    pub(in crate::proxy) async fn lease(
        &self,
        record: &mut RequestRecord,
        headers: &HeaderMap,
        requirements: BackendRequirements<'_>,
    ) -> Result<LeasedBackend, GatewayError> {
        let now = clock::now();
        let Some(settings) = self.settings.load_full() else {
            return self.pool.lease(requirements, &[], now);
        };
        if requirements.backend.is_some()
            && let Ok(leased) = self.pool.lease(requirements, &[], now)
        {
            return Ok(leased);
        }
        if self.pool.capacity_notifier.waiting_requests() == 0
            && let Capacity::Backend(offer) = self.offer(Some(&settings), requirements, now)?
            && let Some(leased) = self.accept(offer, record, requirements, now)
        {
            return Ok(leased);
        }
        let flow = self.flow(&settings, headers, record);
        // Boxed, because few requests need the memory of this future.
        Box::pin(self.admit_in_order(&settings, record, requirements, flow, now)).await
    }

    /// Leases a backend to a request after the waiting requests with precedence. The request waits in the queue
    /// if necessary.
    async fn admit_in_order(
        &self,
        settings: &AdmissionSettings,
        record: &mut RequestRecord,
        requirements: BackendRequirements<'_>,
        flow: Flow,
        now: Instant,
    ) -> Result<LeasedBackend, GatewayError> {
        let work = self.pool.expected_work(requirements, now);
        let group = self.pool.capacity_group(&requirements, now);
        let (queued_request, result_receiver) = queue_entry(requirements, group, flow, work, now);
        let outcome = self.with_queue(|queue| {
            self.admit_or_enqueue(queue, settings, record, requirements, queued_request, now)
        })?;
        let (key, limit) = match outcome {
            AdmitOutcome::Leased(lease) => return Ok(lease),
            AdmitOutcome::Queued(key, limit) => (key, limit),
        };
        let mut guard = QueueGuard {
            controller: self,
            key,
            result_receiver,
        };
        // Capacity freed before this request was queued has woken no task, so this call dispatches it.
        self.with_queue(|queue| self.dispatch_queued(queue, Some(settings), now));
        let (result, without_backend) = guard.wait_for_lease(settings, requirements, limit).await;
        record.timings.leave_queue(without_backend, clock::now());
        result
    }

    /// Leases a backend to a request if no waiting request has precedence. If one has, adds the request to the
    /// queue.
    fn admit_or_enqueue(
        &self,
        queue: &mut AdmissionQueue<LeaseWaiter>,
        settings: &AdmissionSettings,
        record: &mut RequestRecord,
        requirements: BackendRequirements<'_>,
        mut request: QueuedRequest<LeaseWaiter>,
        now: Instant,
    ) -> Result<AdmitOutcome, GatewayError> {
        let standing = self.standing(record, &requirements, now);
        request.payload.is_admitted = record.admission.is_some();
        request.gated_until = gated_until(standing, now, now + settings.max_wait);
        let group = &request.group;
        // Waiting requests are served first. The new request must wait behind a waiting request of its group
        // that the gate cannot hold. It waits behind requests that the gate can hold only if the gate can hold
        // the new request too.
        let must_wait = queue.precedes(group)
            && self
                .dispatch_queued(queue, Some(settings), now)
                .has_for(&request, now);
        let mut is_without_backend = queue.is_without_backend(group);
        if !must_wait && standing != Standing::Held {
            match self.offer(Some(settings), requirements, now)? {
                Capacity::Backend(offer) => {
                    if let Some(leased) = self.accept(offer, record, requirements, now) {
                        return Ok(AdmitOutcome::Leased(leased));
                    }
                }
                Capacity::Full => {}
                Capacity::NoBackend => is_without_backend = true,
            }
        }
        let predicted_ttft = request.payload.predicted_ttft;
        let wait = AskedWait {
            is_without_backend,
            predicted_ttft,
            standing,
        };
        let limit = settings.wait_limit(record, &wait, now);
        request.deadline = limit.ends_at;
        request.gated_until = limit.gated_until;
        if let Some(objective) = limit.objective
            && let Some(wait) = queue.expected_wait(&request, now)
            && let Some(excess) = wait.checked_sub(limit.ends_at.saturating_duration_since(now))
        {
            return Err(GatewayError::Late {
                objective,
                retry_after: retry_seconds(excess),
            });
        }
        let key = enqueue(queue, request, now)?;
        record.timings.enter_queue(is_without_backend, now);
        Ok(AdmitOutcome::Queued(key, limit))
    }

    /// The capacity of the backends for a request. Fails if no backend can serve the request and the request
    /// must not wait. `settings`: `None` if admission control is disabled.
    fn offer(
        &self,
        settings: Option<&AdmissionSettings>,
        requirements: BackendRequirements<'_>,
        now: Instant,
    ) -> Result<Capacity, GatewayError> {
        let thresholds = match settings {
            Some(settings) if requirements.backend.is_none() => {
                Some(settings.thresholds_of(requirements.model))
            }
            _ => None,
        };
        let error = match self.pool.offer(thresholds.as_ref(), requirements, now) {
            Ok(Some(offer)) => return Ok(Capacity::Backend(offer)),
            Ok(None) => return Ok(Capacity::Full),
            Err(error) => error,
        };
        let waits = settings.is_some_and(AdmissionSettings::waits_for_backend);
        if waits && self.pool.routes().is_expected(requirements.model) {
            return Ok(Capacity::NoBackend);
        }
        Err(error)
    }

    /// Leases freed capacity to waiting requests, in an endless loop.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.pool.capacity_notifier.wait_capacity_freed().await;
            let settings = self.settings.load_full();
            let settings = settings.as_deref();
            self.with_queue(|queue| self.dispatch_queued(queue, settings, clock::now()));
        }
    }

    /// Leases all free capacity to waiting requests, in the order of the queue. Skips requests whose group has
    /// no capacity, and returns these groups.
    pub(super) fn dispatch_queued(
        &self,
        queue: &mut AdmissionQueue<LeaseWaiter>,
        settings: Option<&AdmissionSettings>,
        now: Instant,
    ) -> ExhaustedGroups {
        let mut exhausted = ExhaustedGroups::default();
        let mut without_backend = Vec::new();
        let mut offer = |request: &QueuedRequest<LeaseWaiter>| {
            if self.holds(request, now) {
                return None;
            }
            match self.offer(settings, queued_requirements(request), now) {
                Ok(Capacity::Backend(offer)) => Some(Ok(offer)),
                Ok(Capacity::Full) => None,
                // The backend that failed this stream may still serve other requests of the group.
                Ok(Capacity::NoBackend) if request.is_begun => None,
                Ok(Capacity::NoBackend) => {
                    without_backend.push(request.group.clone());
                    None
                }
                Err(error) => Some(Err(error)),
            }
        };
        let lost_tokens = |offer: &Result<BackendOffer, GatewayError>| {
            offer.as_ref().map_or(0.0, BackendOffer::lost_tokens)
        };
        while let Some((key, offer)) = queue.select(now, &mut exhausted, &mut offer, lost_tokens) {
            let request = if offer.is_ok() {
                queue.grant(key, now)
            } else {
                queue.leave(key, now)
            };
            if let Some(DequeuedRequest {
                ticket,
                without_backend,
            }) = request
            {
                let result = offer.map(|offer| self.accept_waiting(offer, &ticket, now));
                ticket.payload.send_result(result, without_backend);
            }
        }
        queue.set_without_backend(&without_backend, now);
        exhausted
    }

    /// Runs `work` on the locked queue, and then publishes the number of waiting requests.
    pub(super) fn with_queue<R>(
        &self,
        work: impl FnOnce(&mut AdmissionQueue<LeaseWaiter>) -> R,
    ) -> R {
        let mut queue = lock(&self.queue);
        let result = work(&mut queue);
        self.pool
            .capacity_notifier
            .set_waiting_requests(queue.len());
        result
    }
}

impl QueueGuard<'_> {
    /// Waits for the lease until the limit of the wait. Fails if the request is displaced from the queue, if no
    /// backend serves its model any more, or at the limit.
    pub(super) async fn wait_for_lease(
        &mut self,
        settings: &AdmissionSettings,
        requirements: BackendRequirements<'_>,
        limit: WaitLimit,
    ) -> WaitResult {
        let without_result = (Err(GatewayError::Internal), Duration::ZERO);
        if let Some(until) = limit.gated_until {
            let wait = tokio::time::timeout_at(until.into(), &mut self.result_receiver);
            if let Ok(result) = wait.await {
                return result.unwrap_or(without_result);
            }
            let controller = self.controller;
            let dispatch =
                |queue: &mut _| controller.dispatch_queued(queue, Some(settings), clock::now());
            controller.with_queue(dispatch);
        }
        let ends_at = limit.ends_at.into();
        if let Ok(result) = tokio::time::timeout_at(ends_at, &mut self.result_receiver).await {
            return result.unwrap_or(without_result);
        }
        let controller = self.controller;
        let now = clock::now();
        match controller.with_queue(|queue| queue.refuse(self.key, now)) {
            Some(RejectedRequest {
                retry_after,
                without_backend,
                ..
            }) => {
                let capacity = controller.offer(Some(settings), requirements, now);
                let error = match (capacity, limit.objective) {
                    (Ok(Capacity::NoBackend), _) => GatewayError::NoBackend,
                    (_, Some(objective)) => GatewayError::Late {
                        objective,
                        retry_after,
                    },
                    _ => GatewayError::QueueTimeout {
                        waited: settings.max_wait,
                        retry_after,
                    },
                };
                (Err(error), without_backend)
            }
            // If the entry is already removed, the result was sent while the timeout expired.
            None => self.result_receiver.try_recv().unwrap_or(without_result),
        }
    }
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        // If a result was sent, the entry is already removed, and this call has no effect.
        self.controller
            .with_queue(|queue| queue.leave(self.key, clock::now()));
    }
}
