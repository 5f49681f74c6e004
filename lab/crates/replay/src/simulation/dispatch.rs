//! The path of a request from a gateway to an engine: the choice of a backend, the reservation at the
//! gateway, and the front end of the backend.

use super::engine_state::EngineState;
use super::event::SimulationEvent;
use super::gateway::SimulatedGateway;
use super::{InFlightRequest, Simulation};
use crate::routers::RoutingInput;
use std::time::Duration;
use tokenweir_core::routing::{self, Candidate, Reservation, RoutingRequest};
use tokenweir_sim::engine::SequenceId;

impl Simulation<'_> {
    /// Sends a request of a gateway to a backend. Returns false if admission control holds it back,
    /// because all backends are saturated.
    pub(super) fn dispatch(&mut self, gateway: usize, number: usize, arrived_at: Duration) -> bool {
        let job = &self.requests[number];
        let seed = self.rng.u64(..);
        let available = self.available_backends(gateway, seed);
        if available.is_empty() {
            // All backends are down: the gateway answers with an error.
            self.end(number, None);
            return true;
        }
        let routing_request = self.gateways[gateway].decision(job, seed);
        let knowledge = (self.setup, &self.published_caches, self.now);
        let mut candidates =
            self.gateways[gateway].candidates(job, &routing_request, available, knowledge);
        if let Some(admission) = &self.setup.admission {
            candidates.retain(|candidate| !admission.thresholds.is_saturated(candidate));
            if candidates.is_empty() {
                return false;
            }
        }
        if self.setup.cache_view.has_outlines() {
            routing::mark_rendezvous(&mut candidates, &job.prompt.blocks);
        }
        let candidate = &candidates[self.route(gateway, number, &candidates, routing_request)];
        // A prediction does not contain the wait in the gateway.
        let is_predicted = arrived_at == self.now;
        let router = &self.gateways[gateway].router;
        let predicted_ttft = if is_predicted { router.predicted_ttft(candidate) } else { f64::NAN };
        let reservation = self.reserve(gateway, number, candidate);
        self.in_flight[number] = InFlightRequest {
            attempt: self.in_flight[number].attempt + 1,
            gateway,
            backend: candidate.position,
            reservation: Some(reservation),
            arrived_at,
            predicted_ttft,
            is_pending: true,
            ..InFlightRequest::default()
        };
        self.pass_to_front_end(number);
        true
    }

    /// The backends that exist now and to which a gateway can send a request. `seed`: of the
    /// decision.
    fn available_backends(&self, gateway: usize, seed: u64) -> Vec<usize> {
        let now = self.setup.epoch + self.now;
        let joined = |position: &usize| {
            self.setup.joins.is_none_or(|(late, at)| late != *position || self.now >= at)
        };
        let all = (0..self.engines.len()).filter(joined).collect();
        self.gateways[gateway].available(all, seed, now)
    }

    /// Chooses a backend for a request. Returns the index of its candidate.
    fn route(
        &mut self,
        gateway: usize,
        number: usize,
        candidates: &[Candidate],
        routing_request: RoutingRequest,
    ) -> usize {
        let job = &self.requests[number];
        let cached_tokens = |position: usize| {
            let EngineState { engine, spec, .. } = &self.engines[position];
            engine.cached_tokens(&job.request(spec.block_size))
        };
        let SimulatedGateway { router, reported_loads, decision_count, .. } =
            &mut self.gateways[gateway];
        *decision_count += 1;
        router.route(&RoutingInput {
            number,
            job,
            candidates,
            reports: reported_loads,
            cached_tokens: &cached_tokens,
            routing_request,
        })
    }

    /// Records that a gateway sends a request to the backend of a candidate: in its estimates, at
    /// the other gateways and in the results.
    fn reserve(&mut self, gateway: usize, number: usize, candidate: &Candidate) -> Reservation {
        let (job, backend) = (&self.requests[number], candidate.position);
        let now = self.setup.epoch + self.now;
        let is_stream = self.rng.f64() >= self.setup.non_streaming;
        let sender = &mut self.gateways[gateway];
        let estimator = &sender.load_estimators[backend];
        let reservation = estimator.reserve(candidate, &job.prompt, is_stream, now);
        sender.candidate_sampler.sent(&job.prompt, backend);
        sender.update_load_hint(backend, now);
        if self.setup.cache_view.has_events() {
            sender.pending_prompts.add(backend, &job.prompt.blocks);
        }
        self.tell_peers(gateway, backend, Some(number));
        self.results.placements.push((self.now.as_secs_f64(), backend));
        reservation
    }

    /// Passes a request to the front end of its backend. The front end submits it to the engine
    /// after the requests that it received before.
    fn pass_to_front_end(&mut self, number: usize) {
        let InFlightRequest { attempt, backend, .. } = self.in_flight[number];
        let state = &mut self.engines[backend];
        let model = &state.spec.cost_model;
        let prompt_tokens = f64::from(self.requests[number].prompt_tokens);
        let front_end_seconds = model.front_end_seconds + model.tokenize_seconds * prompt_tokens;
        if front_end_seconds <= 0.0 {
            self.submit(number, attempt);
            return;
        }
        let submit_at =
            state.front_end_busy_until.max(self.now) + Duration::from_secs_f64(front_end_seconds);
        state.front_end_busy_until = submit_at;
        self.schedule(submit_at, SimulationEvent::Submit(number, attempt));
    }

    /// Submits a request to the engine of its backend. Does nothing if `attempt` is not its last
    /// attempt.
    pub(super) fn submit(&mut self, number: usize, attempt: u32) {
        let request = &self.in_flight[number];
        if request.attempt != attempt || request.reservation.is_none() {
            // The backend restarted before it passed the request to its engine.
            return;
        }
        let (job, backend) = (&self.requests[number], self.in_flight[number].backend);
        let state = &mut self.engines[backend];
        let request = job.request(state.spec.block_size);
        if state.engine.submit(SequenceId(number as u64), request, self.now).is_err() {
            // The request is too long for this engine, which rejects it at once.
            self.end(number, None);
            return;
        }
        if state.batch.is_none() {
            self.start_next_batch(backend);
        }
    }
}
