//! Admission control of the simulated gateways. The queue and its order are those of the real gateway. All
//! requests have the same priority class.

use super::event::SimulationEvent;
use super::gateway::QueuedArrival;
use super::{InFlightRequest, SimulatedAdmission, Simulation};
use std::time::Duration;
use tokenweir_routing::Candidate;
use tokenweir_routing::admission::{
    AdmissionQueue, CapacityGroup, EnqueueOutcome, ExhaustedGroups, QueuedRequest, longest_wait,
    retry_seconds,
};
use tokenweir_routing::sessions::TurnKind;

/// Number of times that a client repeats a refused request: the default of `OpenAI`'s SDKs.
const CLIENT_RETRIES: u32 = 2;

/// How long a request may wait in its gateway, as in the real gateway.
struct WaitLimit {
    /// The time at which the gateway refuses the request.
    deadline: Duration,
    /// The time until which the request waits for room beside the live sessions. `None`: it does not wait for
    /// room.
    gated_until: Option<Duration>,
    /// Whether the request misses its objective after this wait.
    has_objective: bool,
}

impl Simulation<'_> {
    pub(super) fn handle_arrival(&mut self, number: usize) {
        self.arrived_requests += 1;
        let gateway = self.rng.usize(0..self.gateways.len());
        if self.retries[number] == 0 {
            self.results.arrivals[number] = self.now.as_secs_f64();
        }
        self.admit_or_hold(
            gateway,
            QueuedArrival {
                number,
                arrived_at: self.now,
            },
        );
    }

    /// Sends a request to a backend, or adds it to the queue of its gateway. Refuses the request if it would
    /// wait in the queue for longer than its deadline allows.
    pub(super) fn admit(&mut self, gateway: usize, arrival: QueuedArrival) {
        let number = arrival.number;
        let now = self.setup.epoch + self.now;
        let kind = self.turn_kind(gateway, number);
        if self.gateways[gateway].queue.is_empty()
            && kind != TurnKind::Waits
            && let Some(offer) = self.offer(gateway, number)
        {
            return self.accept(gateway, arrival, offer);
        }
        let Some(admission) = self.admission else {
            return self.end(number, None);
        };
        let candidates = self.waiting_candidates(gateway, number);
        let mut request = self.queued_request(&candidates, arrival);
        let ttft = self.predicted_ttft(gateway, &candidates);
        let WaitLimit {
            deadline,
            gated_until,
            has_objective,
        } = self.wait_limit(&admission, gateway, arrival.arrived_at, kind, ttft);
        request.deadline = self.setup.epoch + deadline;
        request.gated_until = gated_until.map(|until| self.setup.epoch + until);
        if !admission.has_tenants {
            request.tenant = 0;
        }
        if self.passes_held(gateway, &request, kind)
            && let Some(offer) = self.offer(gateway, number)
        {
            return self.accept(gateway, arrival, offer);
        }
        let queue = &mut self.gateways[gateway].queue;
        let left = deadline.saturating_sub(self.now);
        if has_objective
            && let Some(wait) = queue.expected_wait(&request, now)
            && let Some(excess) = wait.checked_sub(left)
        {
            return self.refuse(number, retry_seconds(excess).into());
        }
        if !self.enqueue(gateway, number, request) {
            return;
        }
        self.in_flight[number].gateway = gateway;
        self.in_flight[number].gated_until = gated_until;
        self.schedule(deadline, SimulationEvent::QueueDeadline(number));
        if let Some(until) = gated_until {
            self.schedule(until, SimulationEvent::GateDeadline(number));
        }
        self.drain_queue(gateway);
    }

    /// How long a request may wait. `ttft`: its predicted TTFT in seconds without a wait.
    fn wait_limit(
        &self,
        admission: &SimulatedAdmission,
        gateway: usize,
        arrived_at: Duration,
        kind: TurnKind,
        ttft: f64,
    ) -> WaitLimit {
        let ends_at = self.now + admission.max_wait;
        let late_at = admission
            .objective
            .map(|limit| arrived_at + longest_wait(limit, ttft))
            .filter(|late_at| *late_at < ends_at);
        let has_objective = late_at.is_some();
        if has_objective && kind == TurnKind::Waits {
            return WaitLimit {
                deadline: ends_at,
                gated_until: Some(ends_at),
                has_objective,
            };
        }
        let deadline = late_at.unwrap_or(ends_at);
        WaitLimit {
            deadline,
            gated_until: self.gated_until(gateway, kind, deadline),
            has_objective,
        }
    }

    /// Adds a request to the queue of its gateway. Returns whether the request waits there; otherwise it is refused.
    fn enqueue(
        &mut self,
        gateway: usize,
        number: usize,
        request: QueuedRequest<QueuedArrival>,
    ) -> bool {
        let now = self.setup.epoch + self.now;
        match self.gateways[gateway].queue.enter(request, now) {
            EnqueueOutcome::Full(refused) => {
                self.refuse(number, refused.retry_after.into());
                return false;
            }
            EnqueueOutcome::Waits(id) => self.in_flight[number].queued = Some(id),
            EnqueueOutcome::QueuedDisplacing(id, displaced) => {
                self.in_flight[number].queued = Some(id);
                self.refuse(
                    displaced.ticket.payload.number,
                    displaced.retry_after.into(),
                );
            }
        }
        true
    }

    fn waiting_candidates(&self, gateway: usize, number: usize) -> Vec<Candidate> {
        let routing_request = self.gateways[gateway].decision(&self.requests[number], 0);
        self.candidates(gateway, number, &routing_request)
    }

    /// The minimum predicted TTFT of a request at any candidate in seconds. 0: the router makes no predictions.
    fn predicted_ttft(&self, gateway: usize, candidates: &[Candidate]) -> f64 {
        let router = &self.gateways[gateway].router;
        let predictions = candidates
            .iter()
            .map(|candidate| router.predicted_ttft(candidate));
        let least = predictions.fold(f64::INFINITY, f64::min);
        if least.is_finite() { least } else { 0.0 }
    }

    /// A request for the queue of a gateway. Its deadline is now.
    fn queued_request(
        &self,
        candidates: &[Candidate],
        arrival: QueuedArrival,
    ) -> QueuedRequest<QueuedArrival> {
        let job = &self.requests[arrival.number];
        let work = candidates
            .iter()
            .map(|candidate| candidate.prompt - candidate.cached + candidate.output);
        let tokens = candidates
            .first()
            .map_or(0.0, |first| first.prompt + first.output);
        QueuedRequest {
            class: 0,
            tenant: job.tenant,
            group: CapacityGroup::default(),
            tokens: tokens as u64,
            work: work.fold(f64::INFINITY, f64::min) as u64,
            is_begun: false,
            gated_until: None,
            deadline: self.setup.epoch + self.now,
            payload: arrival,
        }
    }

    /// Sends the waiting requests of a gateway, in the order of its queue, until all backends are saturated. Returns
    /// the groups of those that still wait.
    pub(super) fn drain_queue(&mut self, gateway: usize) -> ExhaustedGroups {
        let mut exhausted = ExhaustedGroups::default();
        if self.gateways[gateway].queue.is_empty() {
            return exhausted;
        }
        let now = self.setup.epoch + self.now;
        // The closure that makes an offer borrows the whole simulation, so the queue is taken out of it
        // meanwhile.
        let none = AdmissionQueue::new(0, 1);
        let mut queue = std::mem::replace(&mut self.gateways[gateway].queue, none);
        loop {
            let offer = |request: &QueuedRequest<QueuedArrival>| {
                let number = request.payload.number;
                let is_held =
                    request.is_gated(now) && self.turn_kind(gateway, number) == TurnKind::Waits;
                if is_held {
                    return None;
                }
                self.offer(gateway, number)
            };
            let Some((id, offer)) =
                queue.select(now, &mut exhausted, offer, |offer| offer.lost_tokens)
            else {
                break;
            };
            let Some(granted) = queue.grant(id, now) else {
                break;
            };
            self.accept(gateway, granted.ticket.payload, offer);
        }
        self.gateways[gateway].queue = queue;
        exhausted
    }

    /// Refuses a request that still waits in its gateway at its deadline.
    pub(super) fn refuse_late(&mut self, number: usize) {
        let InFlightRequest {
            gateway, queued, ..
        } = self.in_flight[number];
        let now = self.setup.epoch + self.now;
        let refused = queued.and_then(|id| self.gateways[gateway].queue.refuse(id, now));
        if let Some(refused) = refused {
            self.in_flight[number].queued = None;
            self.refuse(number, refused.retry_after.into());
        }
    }

    /// Refuses a request. Its client sends the request again after `retry_after` seconds, as the SDKs of
    /// `OpenAI` do, but only `CLIENT_RETRIES` times.
    fn refuse(&mut self, number: usize, retry_after: u64) {
        if self.retries[number] == CLIENT_RETRIES {
            return self.end(number, None);
        }
        self.retries[number] += 1;
        self.arrived_requests -= 1;
        let at = self.now + Duration::from_secs(retry_after);
        self.schedule(at, SimulationEvent::Arrival(number));
    }
}
