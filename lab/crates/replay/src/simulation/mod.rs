//! Discrete-event simulation in virtual time. Clients send the requests of a trace, gateways route them, and
//! engines serve them.
//!
//! The gateways use the load estimators and policies of the real gateway. The engines are those of
//! `tokenweir_sim`. All random numbers come from one seed, so a run can be repeated exactly.

mod admission;
mod dispatch;
mod engine_state;
mod event;
mod gateway;
mod live_sessions;
mod peers;
mod restarts;
mod scrapes;
mod sessions;
mod setup;

pub use setup::{RestartSettings, SimulatedAdmission, SimulationSetup};

use super::cache_view::{EVENT_DELAY, TEXT_DELAY};
use super::results::{RunResults, ServedRequest};
use super::routers::{self, RouterKind, SessionTurn};
use super::trace::{self, TraceRequest};
use engine_state::EngineState;
use event::SimulationEvent;
use gateway::SimulatedGateway;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use tokenweir_protocol::openai::Usage;
use tokenweir_routing::admission::QueuedRequestId;
use tokenweir_routing::sessions::ContextId;
use tokenweir_routing::{Reservation, mix};
use tokenweir_sim::engine::EngineSpec;

/// One simulation run.
pub struct Simulation<'a> {
    setup: &'a SimulationSetup,
    requests: &'a [TraceRequest],
    /// Pending events, ordered by time. The event number makes the order of simultaneous events unique.
    events: BinaryHeap<Reverse<(Duration, u64, SimulationEvent)>>,
    event_count: u64,
    now: Duration,
    engines: Vec<EngineState>,
    gateways: Vec<SimulatedGateway>,
    scrape_interval: Duration,
    /// Admission control of the gateways. `None`: they send each request at once.
    admission: Option<SimulatedAdmission>,
    /// For each request, by its number in the trace: the requests that the client sends after its end.
    followers: Vec<Vec<usize>>,
    /// The place of each request in its session, by its number in the trace. Empty: the gateways hold no turns of
    /// sessions.
    turns: Vec<Option<SessionTurn>>,
    /// The state of each request, by its number in the trace.
    in_flight: Vec<InFlightRequest>,
    rng: fastrand::Rng,
    /// Random generator that decides which messages between gateways are lost.
    loss_rng: fastrand::Rng,
    /// Number of requests that have arrived, without those that were refused and will be sent again.
    arrived_requests: usize,
    /// Number of times that the client has repeated each request, by its number in the trace.
    retries: Vec<u32>,
    results: RunResults,
}

/// State of a request that waits in its gateway or was sent to a backend.
#[derive(Debug, Clone, Copy, Default)]
struct InFlightRequest {
    /// Number of times that the request was sent to a backend.
    attempt: u32,
    gateway: usize,
    backend: usize,
    reservation: Option<Reservation>,
    arrived_at: Duration,
    first_output_at: Duration,
    cached_tokens: u32,
    /// Predicted time to first output in seconds. NaN: the router does not predict.
    predicted_ttft: f64,
    /// Whether the request has no output yet.
    is_pending: bool,
    /// The id of the request in the queue of its gateway, if it waits there.
    queued: Option<QueuedRequestId>,
    /// The context of the request among the live sessions. `None`: the request has no context yet, or contexts
    /// are not counted.
    context: Option<ContextId>,
    /// The time until which the request waits for room beside the live sessions. `None`: it does not wait for
    /// room.
    gated_until: Option<Duration>,
}

/// A number that is combined with the seed of a run to draw the lost messages. So losses do not change the
/// other random numbers of the run.
const LOSS_SEED: u64 = 0x6c6f_7373;

impl<'a> Simulation<'a> {
    /// Creates a simulation at time 0.
    pub fn new(
        setup: &'a SimulationSetup,
        requests: &'a [TraceRequest],
        kind: RouterKind,
        seed: u64,
    ) -> Self {
        let publishes = setup.cache_view.has_events();
        let engine = |(position, spec): (usize, &EngineSpec)| {
            EngineState::new(*spec, seed ^ position as u64, publishes)
        };
        let mut simulation = Self {
            setup,
            requests,
            events: BinaryHeap::new(),
            event_count: 0,
            now: Duration::ZERO,
            engines: setup.specs.iter().enumerate().map(engine).collect(),
            scrape_interval: kind.scrape_interval(setup.scrape),
            admission: if kind.has_admission() {
                setup.admission
            } else {
                None
            },
            followers: trace::followers(requests),
            turns: match kind.gate_rule() {
                Some(_) => routers::session_turns(requests),
                None => Vec::new(),
            },
            gateways: (0..setup.gateways.max(1))
                .map(|_| SimulatedGateway::new(setup, kind))
                .collect(),
            in_flight: vec![InFlightRequest::default(); requests.len()],
            rng: fastrand::Rng::with_seed(seed),
            loss_rng: fastrand::Rng::with_seed(mix(seed ^ LOSS_SEED)),
            arrived_requests: 0,
            retries: vec![0; requests.len()],
            results: RunResults {
                arrivals: vec![f64::NAN; requests.len()],
                ..RunResults::default()
            },
        };
        simulation.schedule_initial_events();
        simulation
    }

    /// Runs the simulation to its end. `on_progress` is called after each arrival.
    pub fn run(mut self, mut on_progress: impl FnMut()) -> RunResults {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                SimulationEvent::Arrival(number) => {
                    self.handle_arrival(number);
                    on_progress();
                }
                SimulationEvent::BatchDone(backend, process) => {
                    self.handle_batch_done(backend, process);
                }
                SimulationEvent::Scrape(gateway, backend) => self.scrape(gateway, backend),
                SimulationEvent::QueueDeadline(number) => self.refuse_late(number),
                SimulationEvent::GateDeadline(number) => self.pass_gate(number),
                SimulationEvent::GateTick(gateway) => self.tick_gate(gateway),
                SimulationEvent::Submit(number, attempt) => self.submit(number, attempt),
                SimulationEvent::KvEvents(backend) => self.engines[backend].published.receive(),
                SimulationEvent::PeerMessage(message) => self.receive_peer_message(message),
                SimulationEvent::TextLearned(number) => self.learn_text(number),
                SimulationEvent::Restart(backend) => self.restart(backend),
                SimulationEvent::Started(backend, process) => self.on_started(backend, process),
            }
        }
        for state in &self.engines {
            self.results.busy.push(state.busy_time.as_secs_f64());
            self.results.preemptions += state.preemptions();
        }
        self.results
    }

    fn schedule_initial_events(&mut self) {
        for (number, job) in self.requests.iter().enumerate() {
            if job.after.is_some() {
                continue;
            }
            let delay = self.setup.spread.mul_f64(self.rng.f64());
            let arrival = (job.at + delay).div_f64(self.setup.speed);
            self.schedule(arrival, SimulationEvent::Arrival(number));
        }
        for gateway in 0..self.gateways.len() {
            for backend in 0..self.engines.len() {
                let first = self.scrape_interval.mul_f64(self.rng.f64());
                self.schedule(first, SimulationEvent::Scrape(gateway, backend));
            }
        }
        for gateway in 0..self.gateways.len() {
            self.schedule_gate_tick(gateway);
        }
        if let Some(restarts) = self.setup.restarts {
            self.schedule(restarts.interval, SimulationEvent::Restart(0));
        }
    }

    fn schedule(&mut self, time: Duration, event: SimulationEvent) {
        self.event_count += 1;
        self.events.push(Reverse((time, self.event_count, event)));
    }

    /// Skips a number that earlier versions drew here. So the results of a seed, which documents state, stay the
    /// same.
    fn skip_random_number(&mut self) {
        let _ = self.rng.f64();
    }

    fn start_next_batch(&mut self, backend: usize) {
        let state = &mut self.engines[backend];
        state.batch = state.engine.step(self.now);
        if let Some(batch) = &state.batch {
            state.busy_time += batch.duration;
            let done = self.setup.compute_start(backend, self.now) + batch.duration;
            let process = state.process;
            self.schedule(done, SimulationEvent::BatchDone(backend, process));
        }
    }

    fn handle_batch_done(&mut self, backend: usize, process: u32) {
        let state = &mut self.engines[backend];
        if state.process != process {
            return;
        }
        state.reported_load = state.engine.load();
        state.reported_adapters = state.engine.adapters();
        if state.published.publish(state.engine.take_cache_changes()) {
            self.schedule(self.now + EVENT_DELAY, SimulationEvent::KvEvents(backend));
        }
        let state = &mut self.engines[backend];
        let Some(batch) = state.batch.take() else {
            return;
        };
        state.count_token_gaps(&batch);
        for token in &batch.tokens {
            let number = token.id.0 as usize;
            if token.nth == 1 {
                self.handle_first_output(number, token.cached_tokens);
            }
            if self.requests[number].disconnect_after_tokens == Some(token.nth) {
                self.engines[backend].engine.abort(token.id);
                self.end(number, Some(token.nth));
            }
        }
        for finished in &batch.finished {
            let number = finished.id.0 as usize;
            self.end(number, Some(self.requests[number].output_tokens));
        }
        self.start_next_batch(backend);
        // While an engine is idle, its metrics page shows its current load.
        let state = &mut self.engines[backend];
        if state.batch.is_none() {
            state.reported_load = state.engine.load();
        }
        // The queue is drained only after the next batch has begun. Otherwise, a request that is sent to an
        // idle engine would begin the batch.
        for gateway in 0..self.gateways.len() {
            self.drain_queue(gateway);
        }
    }

    fn learn_text(&mut self, number: usize) {
        let gateway = self.in_flight[number].gateway;
        self.gateways[gateway]
            .known_texts
            .learn(&self.requests[number].prompt.blocks);
    }

    fn handle_first_output(&mut self, number: usize, cached_tokens: u32) {
        let request = &mut self.in_flight[number];
        request.first_output_at = self.now;
        request.cached_tokens = cached_tokens;
        let gateway = &self.gateways[request.gateway];
        let now = self.setup.epoch + self.now;
        if let Some(reservation) = request.reservation.as_mut() {
            gateway.load_estimators[request.backend].first_output(reservation, now);
            gateway.update_load_hint(request.backend, now);
        }
        let request = &self.in_flight[number];
        let ttft = self.now.saturating_sub(request.arrived_at).as_secs_f64();
        self.gateways[request.gateway]
            .router
            .on_first_output(number, ttft);
        self.end_pending(number);
    }

    /// Ends a request. `output`: its number of output tokens. `None`: the engine rejected the request, or the
    /// request failed.
    fn end(&mut self, number: usize, output: Option<u32>) {
        self.skip_random_number();
        for next in std::mem::take(&mut self.followers[number]) {
            let think_time = self.requests[next].at;
            self.schedule(self.now + think_time, SimulationEvent::Arrival(next));
        }
        if output.is_some() && self.setup.cache_view.learns_texts() {
            self.schedule(self.now + TEXT_DELAY, SimulationEvent::TextLearned(number));
        }
        self.results.seconds = self.now.as_secs_f64();
        let request = &mut self.in_flight[number];
        let Some(mut reservation) = request.reservation.take() else {
            return;
        };
        self.end_context(number, output);
        let job = &self.requests[number];
        let request = &self.in_flight[number];
        let gateway = &self.gateways[request.gateway];
        let now = self.setup.epoch + self.now;
        let estimator = &gateway.load_estimators[request.backend];
        let decode = self
            .now
            .saturating_sub(request.first_output_at)
            .as_secs_f64();
        if let Some(output) = output {
            estimator.answered(
                &mut reservation,
                &Usage {
                    input: Some(job.prompt_tokens.into()),
                    cached: Some(request.cached_tokens.into()),
                    output: Some(output.into()),
                    ..Usage::default()
                },
            );
            self.results.served.push(ServedRequest {
                request: number,
                ttft: request.first_output_at.as_secs_f64() - self.results.arrivals[number],
                decode,
                prompt: job.prompt_tokens,
                cached: request.cached_tokens,
                output,
                predicted_ttft: request.predicted_ttft,
            });
        }
        let gaps = output.filter(|output| *output > 1);
        let tpot = gaps.map(|output| decode / f64::from(output - 1));
        estimator.release(reservation, now);
        gateway.update_load_hint(request.backend, now);
        let router = &mut self.gateways[request.gateway].router;
        router.on_end(number, tpot);
        self.end_pending(number);
        self.end_turn(number, output.unwrap_or(0));
    }
}
