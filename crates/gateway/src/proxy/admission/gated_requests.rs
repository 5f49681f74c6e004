//! Requests that pass the gate of admission, at once or after a wait in the queue.

use super::controller::AdmissionController;
use super::gate::{AdmissionGate, Entrance, Standing, generates};
use super::waiter::{LeaseWaiter, LeasedBackend, queued_requirements};
use crate::backend::pool::{BackendOffer, BackendRequirements};
use std::sync::Arc;
use std::time::Instant;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::record::RequestRecord;
use tokenweir_routing::admission::QueuedRequest;

impl AdmissionController {
    /// Sets the gate. `None`: all requests, including those that wait now, wait for capacity only.
    pub fn set_gate(&self, gate: Option<Arc<dyn AdmissionGate>>) {
        self.gate.store(gate.map(Arc::new));
        self.pool.capacity_notifier.notify();
    }

    /// Number of requests that wait for the gate although backends have capacity.
    pub fn gated_requests(&self, now: Instant) -> usize {
        lock(&self.queue).gated(now)
    }

    /// Why requests wait although backends have capacity. `None`: no request waits for the gate.
    pub fn held_because(&self, now: Instant) -> Option<String> {
        let gate = self.gate.load_full()?;
        let held = self.gated_requests(now);
        (held > 0).then(|| gate.reason(held, now))
    }

    /// The gate's decision about a request. An admitted request remains admitted.
    pub(super) fn standing(
        &self,
        record: &RequestRecord,
        requirements: &BackendRequirements<'_>,
        now: Instant,
    ) -> Standing {
        let is_new = record.admission.is_none() && generates(requirements);
        match &*self.gate.load() {
            Some(gate) if is_new => gate.standing(requirements, now),
            _ => Standing::Member,
        }
    }

    pub(super) fn holds(&self, request: &QueuedRequest<LeaseWaiter>, now: Instant) -> bool {
        if !request.is_gated(now) {
            return false;
        }
        let requirements = queued_requirements(request);
        let gate = self.gate.load();
        gate.as_ref()
            .is_some_and(|gate| gate.standing(&requirements, now) == Standing::Held)
    }

    /// Leases an offered backend to a new request if the gate admits the request. `None`: the request must wait
    /// for the gate.
    pub(super) fn accept(
        &self,
        offer: BackendOffer,
        record: &RequestRecord,
        requirements: BackendRequirements<'_>,
        now: Instant,
    ) -> Option<LeasedBackend> {
        let mut admission = None;
        if record.admission.is_none()
            && generates(&requirements)
            && let Some(gate) = &*self.gate.load()
        {
            admission = Some(gate.enter(&requirements, Entrance::AtOnce, now)?);
        }
        let mut leased = offer.accept(requirements, now);
        leased.0.admission = admission;
        Some(leased)
    }

    /// Leases an offered backend to a waiting request, and passes the request through the gate.
    pub(super) fn accept_waiting(
        &self,
        offer: BackendOffer,
        request: &QueuedRequest<LeaseWaiter>,
        now: Instant,
    ) -> LeasedBackend {
        let requirements = queued_requirements(request);
        let mut leased = offer.accept(requirements, now);
        let entrance = match request.gated_until {
            Some(until) if now >= until => Entrance::Overdue,
            _ => Entrance::AfterWait,
        };
        if !request.payload.is_admitted
            && generates(&requirements)
            && let Some(gate) = &*self.gate.load()
        {
            leased.0.admission = gate.enter(&requirements, entrance, now);
        }
        leased
    }
}
