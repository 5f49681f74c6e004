//! Admission of streams that have begun and whose backend failed. Another backend continues such a stream.
//!
//! All streams of a failed backend need another backend at the same moment. They wait in the admission queue
//! until the other backends have capacity, so that no backend gets more than it can serve. A begun stream is
//! queued even if the queue is full, because the number of open streams bounds the number of such entries.

use super::controller::{AdmissionController, QueueGuard};
use super::settings::{AdmissionSettings, WaitLimit};
use super::waiter::{Flow, LeasedBackend, OwnedRequirements, enqueue, queue_entry};
use crate::backend::Backend;
use crate::backend::pool::BackendRequirements;
use http::HeaderMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_request::error::GatewayError;
use tokenweir_request::record::RequestRecord;

/// The requirements of a stream on the backend that continues it.
#[derive(Debug, Clone)]
pub struct BegunStream {
    model: Option<String>,
    /// The requirements except the model.
    pub requirements: OwnedRequirements,
}

/// The wait of an interrupted stream for a backend that continues it.
pub struct BegunWait {
    /// The requirements of the stream on the other backend.
    pub stream: Arc<BegunStream>,
    /// Backends that have failed this stream.
    pub excluded: Vec<Arc<Backend>>,
    /// Pause before the first try, to spare a busy backend.
    pub pause: Duration,
    /// The end of the wait. `None`: the stream does not wait, because its backend still works.
    pub ends_at: Option<Instant>,
}

impl AdmissionController {
    /// The time until which a stream that is interrupted at `now` waits for another backend.
    pub fn begun_deadline(&self, now: Instant) -> Instant {
        let settings = self.settings.load();
        let max_wait = settings.as_ref().map(|settings| settings.max_wait);
        now + max_wait.unwrap_or(AdmissionSettings::DEFAULT_MAX_WAIT)
    }

    /// Leases a backend that continues the stream of a request, at once or when a backend has capacity.
    /// Dropping the future leaves the queue. Fails if no other backend is up, or at the end of the wait.
    pub fn lease_begun(
        self: &Arc<Self>,
        record: &RequestRecord,
        headers: &HeaderMap,
        wait: BegunWait,
    ) -> impl Future<Output = Result<LeasedBackend, GatewayError>> + Send + use<> {
        let controller = self.clone();
        let settings = self.settings.load_full();
        let settings = settings.map(|settings| {
            let flow = self.flow(&settings, headers, record);
            (settings, flow)
        });
        async move {
            if !wait.pause.is_zero() {
                tokio::time::sleep(wait.pause).await;
            }
            let requirements = wait.stream.requirements(&wait.excluded);
            let now = clock::now();
            let Some((settings, flow)) = settings else {
                return controller.pool.lease(requirements, &[], now);
            };
            let is_first = controller.pool.capacity_notifier.waiting_requests() == 0;
            let thresholds = settings.thresholds_of(requirements.model);
            let offer = match controller.pool.offer(Some(&thresholds), requirements, now) {
                // The stream waits for another backend of the model to come back, as a new request would.
                Err(_) if controller.pool.has_other(requirements) => {
                    let backend_wait = now + settings.max_backend_wait;
                    let ends_at = wait.ends_at.map(|ends_at| ends_at.min(backend_wait));
                    let ends_at = ends_at.filter(|ends_at| *ends_at > now);
                    let ends_at = ends_at.ok_or(GatewayError::NoBackend)?;
                    return controller
                        .wait_begun(&settings, requirements, flow, ends_at)
                        .await;
                }
                offer => offer?,
            };
            match (offer, wait.ends_at) {
                (Some(offer), ends_at) if is_first || ends_at.is_none() => {
                    Ok(offer.accept(requirements, now))
                }
                (_, Some(ends_at)) => {
                    controller
                        .wait_begun(&settings, requirements, flow, ends_at)
                        .await
                }
                (_, None) => Err(GatewayError::Saturated { retry_after: 1 }),
            }
        }
    }

    /// Waits in the queue for a lease.
    async fn wait_begun(
        &self,
        settings: &AdmissionSettings,
        requirements: BackendRequirements<'_>,
        flow: Flow,
        ends_at: Instant,
    ) -> Result<LeasedBackend, GatewayError> {
        let now = clock::now();
        let group = self.pool.capacity_group(&requirements, now);
        let (mut request, result_receiver) = queue_entry(requirements, group, flow, None, ends_at);
        request.is_begun = true;
        request.payload.is_admitted = true;
        let key = self.with_queue(|queue| enqueue(queue, request, now))?;
        let mut guard = QueueGuard {
            controller: self,
            key,
            result_receiver,
        };
        // As for a new request, capacity may have become free before the request was queued.
        self.with_queue(|queue| self.dispatch_queued(queue, Some(settings), now));
        let limit = WaitLimit {
            ends_at,
            gated_until: None,
            objective: None,
        };
        guard.wait_for_lease(settings, requirements, limit).await.0
    }
}

impl BegunStream {
    /// A stream with the requirements of its request. Any backend with the model may continue the stream.
    pub fn new(requirements: BackendRequirements<'_>) -> Self {
        let any = BackendRequirements {
            backend: None,
            longer_than: None,
            ..requirements
        };
        let requirements = OwnedRequirements::new(any);
        Self {
            model: any.model.map(Into::into),
            requirements,
        }
    }

    fn requirements<'a>(&'a self, excluded: &'a [Arc<Backend>]) -> BackendRequirements<'a> {
        let seed = fastrand::u64(..);
        BackendRequirements {
            excluded,
            seed,
            ..self.requirements.of_model(self.model.as_deref())
        }
    }
}
