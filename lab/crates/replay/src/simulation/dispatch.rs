//! The path of a request from a gateway to an engine: the choice of a backend, the reservation of its load at
//! the gateway, and the front end (API server) of the backend.

use super::engine_state::EngineState;
use super::event::SimulationEvent;
use super::gateway::{QueuedArrival, SimulatedGateway};
use super::{InFlightRequest, Simulation};
use crate::routers::RoutingInput;
use std::time::Duration;
use tokenweir_routing::{Candidate, Reservation, RoutingRequest, saturation};
use tokenweir_sim::engine::SequenceId;

/// The backend that a router picks for a request, before the request is sent.
#[derive(Clone, Copy)]
pub(super) struct Offer {
    /// The picked backend. `None`: all backends are down.
    candidate: Option<Candidate>,
    /// Prompt tokens that the picked backend must compute although another backend, saturated or not, has
    /// them in its cache. 0 for routers that are not policies of the gateway, because their state already
    /// counts the request at the picked backend.
    pub(super) lost_tokens: f64,
}

impl Simulation<'_> {
    /// The backend that the router of a gateway picks for a request. `None`: admission control keeps the
    /// request waiting, because all backends are saturated.
    pub(super) fn offer(&mut self, gateway: usize, number: usize) -> Option<Offer> {
        let job = &self.requests[number];
        let routing_request = self.gateways[gateway].decision(job, self.rng.u64(..));
        let mut candidates = self.candidates(gateway, number, &routing_request);
        if candidates.is_empty() {
            return Some(Offer {
                candidate: None,
                lost_tokens: 0.0,
            });
        }
        let most_cached = candidates
            .iter()
            .map(|candidate| candidate.cached)
            .fold(0.0, f64::max);
        if self.gateways[gateway].router.policy().is_some() {
            saturation::retain_moving(&mut candidates);
        }
        if let Some(admission) = &self.admission {
            let policy = self.gateways[gateway].router.policy().unwrap_or_default();
            admission.thresholds.retain_open(&mut candidates, policy);
            if candidates.is_empty() {
                return None;
            }
        }
        if let Some(backend) = self.session_backend(gateway, number)
            && candidates.iter().any(|it| it.position == backend)
        {
            candidates.retain(|candidate| candidate.position == backend);
        }
        let index = self.route(gateway, number, &candidates, routing_request);
        let is_shipped = self.gateways[gateway].router.policy().is_some();
        let lost_tokens = if is_shipped {
            most_cached - candidates[index].cached
        } else {
            0.0
        };
        Some(Offer {
            candidate: Some(candidates[index]),
            lost_tokens,
        })
    }

    /// Sends a request to the backend of an offer. If the offer has no backend, the gateway answers with an
    /// error.
    pub(super) fn accept(&mut self, gateway: usize, arrival: QueuedArrival, offer: Offer) {
        let QueuedArrival { number, arrived_at } = arrival;
        let Some(candidate) = &offer.candidate else {
            return self.end(number, None);
        };
        // A predicted TTFT does not include the wait in the gateway, so a request that waited has no
        // prediction.
        let is_predicted = arrived_at == self.now;
        let router = &self.gateways[gateway].router;
        let predicted_ttft = if is_predicted {
            router.predicted_ttft(candidate)
        } else {
            f64::NAN
        };
        let reservation = self.reserve(gateway, number, candidate);
        let context = self.begin_context(gateway, number);
        self.in_flight[number] = InFlightRequest {
            attempt: self.in_flight[number].attempt + 1,
            gateway,
            backend: candidate.position,
            reservation: Some(reservation),
            arrived_at,
            predicted_ttft,
            is_pending: true,
            context,
            ..InFlightRequest::default()
        };
        self.pass_to_front_end(number);
    }

    /// The backends to which a gateway can send a request, with the gateway's estimates of their loads.
    pub(super) fn candidates(
        &self,
        gateway: usize,
        number: usize,
        request: &RoutingRequest,
    ) -> Vec<Candidate> {
        let job = &self.requests[number];
        self.gateways[gateway].candidates(job, request, self.setup, &self.engines, self.now)
    }

    /// Chooses a backend for a request. Returns the index of the chosen candidate.
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
        let engine = |position: usize| {
            let EngineState { engine, spec, .. } = &self.engines[position];
            (*spec, engine.load())
        };
        let SimulatedGateway {
            router,
            reported_loads,
            decision_count,
            ..
        } = &mut self.gateways[gateway];
        *decision_count += 1;
        router.route(&RoutingInput {
            number,
            job,
            candidates,
            reports: reported_loads,
            cached_tokens: &cached_tokens,
            engine: &engine,
            routing_request,
        })
    }

    /// Records that a gateway sends a request to the backend `candidate`: in the estimates of the gateway, at
    /// the other gateways, and in the results.
    fn reserve(&mut self, gateway: usize, number: usize, candidate: &Candidate) -> Reservation {
        let job = &self.requests[number];
        let backend = candidate.position;
        let now = self.setup.epoch + self.now;
        self.skip_random_number();
        let sender = &mut self.gateways[gateway];
        let estimator = &sender.load_estimators[backend];
        let reservation = estimator.reserve(candidate, &job.prompt, true, now);
        sender.candidate_sampler.sent(&job.prompt, backend);
        sender.update_load_hint(backend, now);
        if self.setup.cache_view.has_events() {
            sender.pending_prompts[backend].add(&job.prompt.blocks);
        }
        self.tell_peers(gateway, backend, Some(number));
        self.results
            .placements
            .push((self.now.as_secs_f64(), backend));
        reservation
    }

    /// Passes a request to the front end (API server) of its backend. The front end submits the request to
    /// the engine after the requests that it received earlier.
    fn pass_to_front_end(&mut self, number: usize) {
        let InFlightRequest {
            attempt, backend, ..
        } = self.in_flight[number];
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

    /// Submits a request to the engine of its backend. Does nothing if `attempt` is not the last attempt of
    /// the request.
    pub(super) fn submit(&mut self, number: usize, attempt: u32) {
        let request = &self.in_flight[number];
        if request.attempt != attempt || request.reservation.is_none() {
            // The process of the backend ended before it passed the request to its engine.
            return;
        }
        let job = &self.requests[number];
        let backend = self.in_flight[number].backend;
        let state = &mut self.engines[backend];
        let request = job.request(state.spec.block_size);
        if state
            .engine
            .submit(SequenceId(number as u64), request, self.now)
            .is_err()
        {
            // The request is too long for this engine, so the engine rejects it at once.
            self.end(number, None);
            return;
        }
        if state.batch.is_none() {
            self.start_next_batch(backend);
        }
    }
}
