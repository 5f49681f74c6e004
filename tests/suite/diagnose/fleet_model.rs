//! A model of a fleet. In steps of five seconds it computes the metrics of engines and of a gateway. Arrivals
//! are random. All other values follow from the number of requests, and a fault changes the values of a step.

use std::time::Instant;
use tokenweir_diagnose::{
    BackendRequestCounts, Diagnoser, DiagnosisSample, EVERY, GatewayObservations,
};
use tokenweir_diagnose::{Diagnosis, FleetObservation, SLOW_START};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::EngineLoad;

/// The properties of a backend and of its traffic that stay constant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Number of requests per second to the backend.
    pub(super) rate: f64,
    /// Mean prompt and output lengths of the requests in tokens.
    pub(super) prompt: f64,
    pub(super) output: f64,
    /// Seconds that the engine takes per token if it runs a single sequence.
    pub(super) gap: f64,
    /// Number of prompt tokens that the engine computes per second.
    pub(super) prefill: f64,
    /// Share of prompt tokens that are in the prefix cache.
    pub(super) hit: f64,
    /// Size of the KV cache in tokens.
    pub(super) capacity: f64,
    /// Seconds by which the gateway sees a first token later than the engine.
    pub(super) lag: f64,
    /// Share of clients that disconnect early.
    pub(super) cancel: f64,
}

/// The values of one step of a backend. A fault can change them before the metrics are computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tick {
    pub(super) requests: f64,
    pub(super) running: f64,
    pub(super) waiting: f64,
    pub(super) kv: f64,
    pub(super) preemptions: f64,
    pub(super) queue: f64,
    pub(super) ttft: f64,
    pub(super) gap: f64,
    pub(super) gap_p99: f64,
    pub(super) hit: f64,
    pub(super) lag: f64,
    /// Number of requests that the engine gets from other sources than the gateway.
    pub(super) foreign: f64,
    /// Requests in flight at the gateway beyond those at the engine. Negative: the engine has more.
    pub(super) beyond: f64,
    pub(super) stalled: f64,
    pub(super) stalls: f64,
    pub(super) cancelled: f64,
    pub(super) cancel_wait: f64,
    pub(super) cancel_spread: f64,
    pub(super) longest: f64,
    pub(super) reusable: f64,
    pub(super) reusable_here: f64,
    /// Share of the responses that have no answer.
    pub(super) empty: f64,
    /// Share of the responses that end at the limit of their tokens.
    pub(super) cut: f64,
    /// Seconds for which the oldest request without output is overdue.
    pub(super) overdue: f64,
    /// Share of the output tokens of its requests that the engine generates, from 0 to 1. At 0, the engine
    /// also starts no request.
    pub(super) made: f64,
    pub(super) has_page: bool,
    pub(super) is_up: bool,
    /// Whether the engine process restarts before this step, so that its counters begin at zero.
    pub(super) restarts: bool,
}

#[derive(Debug, Clone)]
pub(super) struct FleetBackend {
    pub(super) shape: Shape,
    id: BackendId,
    load: EngineLoad,
    stalls: u64,
}

/// A simulated fleet, whose backends advance step by step, with its diagnosis.
pub(super) struct Plant {
    pub(super) backends: Vec<FleetBackend>,
    pub(super) random: fastrand::Rng,
    /// The observations about the fleet as a whole that the diagnosis gets. If they list no backends, the
    /// diagnosis gets `None` instead.
    pub(super) fleet: FleetObservation,
    watch: Diagnoser,
    now: Instant,
}

/// Number of healthy steps before a fault: eight minutes, in which the diagnosis learns the baselines.
pub(super) const BASELINE_STEPS: u64 = 96;
pub(super) const MINUTE_STEPS: u64 = 60 / EVERY.as_secs();

/// Diagnoses the backends `gpu-0`, `gpu-1`, … in `steps` steps, and returns the last diagnosis. `samples`
/// makes the samples of a step from the step's number and time.
pub(super) fn last_diagnosis(
    steps: u64,
    samples: impl Fn(u64, Instant) -> Vec<DiagnosisSample>,
) -> Diagnosis {
    let (mut diagnoser, start) = (Diagnoser::default(), Instant::now());
    let diagnoses = (0..steps).map(|step| {
        let at = start + EVERY * step as u32;
        let named = samples(step, at).into_iter().enumerate();
        let named = named.map(|(place, it)| (BackendId::new(&format!("gpu-{place}")), it));
        diagnoser.diagnose(named.collect(), at)
    });
    diagnoses.last().unwrap_or_default()
}

/// Builds the metrics page of an engine with this number of cache blocks. All its counters are zero.
fn empty_page(block_size: f64, blocks: f64) -> EngineLoad {
    let zero = Some(0.0);
    EngineLoad {
        block_size: Some(block_size),
        blocks: Some(blocks),
        preemptions: zero,
        prefix_queries: zero,
        prefix_hits: zero,
        prompt_tokens: zero,
        generation_tokens: zero,
        queue_seconds: zero,
        queued: zero,
        prefill_seconds: zero,
        prefilled: zero,
        first_token_seconds: zero,
        first_tokens: zero,
        gap_seconds: zero,
        gaps: zero,
        ..EngineLoad::default()
    }
}

impl Shape {
    /// Returns the properties of a healthy backend with normal load. All backends of a fleet have them.
    pub(super) fn healthy(random: &mut fastrand::Rng) -> Self {
        let (rate, output) = (between(random, 1.0, 4.0), between(random, 100.0, 300.0));
        Self {
            rate,
            output,
            prompt: between(random, 300.0, 1_500.0),
            gap: between(random, 0.008, 0.03),
            prefill: between(random, 8_000.0, 20_000.0),
            hit: between(random, 0.3, 0.7),
            capacity: between(random, 60_000.0, 200_000.0),
            lag: between(random, 0.002, 0.01),
            cancel: between(random, 0.0, 0.03),
        }
    }

    /// Draws the values of a random healthy step of the backend.
    fn tick(&self, random: &mut fastrand::Rng) -> Tick {
        let requests = poisson(self.rate * EVERY.as_secs_f64(), random);
        let noise = |random: &mut fastrand::Rng| 0.9 + 0.2 * random.f64();
        let lone = self.output * self.gap;
        let running = (self.rate * lone * noise(random) + random.f64() - 0.5)
            .round()
            .max(0.0);
        let gap = self.gap * (1.0 + running / 100.0) * noise(random);
        let held = running * (self.prompt + self.output / 2.0) / self.capacity;
        let queue = 0.005 * noise(random);
        let prefill = self.prompt * (1.0 - self.hit) / self.prefill;
        Tick {
            requests,
            running,
            waiting: f64::from(u8::from(random.f64() < 0.1)),
            kv: held.min(0.95),
            preemptions: 0.0,
            queue,
            ttft: queue + 0.02 + prefill * noise(random),
            gap,
            gap_p99: gap * (1.5 + random.f64()),
            hit: (self.hit * noise(random)).min(0.95),
            lag: self.lag * noise(random),
            foreign: 0.0,
            beyond: 0.0,
            stalled: 0.0,
            stalls: f64::from(u8::from(random.f64() < 0.01)),
            cancelled: (0..requests as u32)
                .filter(|_| random.f64() < self.cancel)
                .count() as f64,
            cancel_wait: 5.0,
            cancel_spread: 4.0,
            longest: self.prompt * (2.0 + 2.0 * random.f64()),
            reusable: (self.hit + 0.1).min(0.95),
            reusable_here: self.hit,
            empty: 0.02,
            cut: 0.1,
            overdue: 0.0,
            made: 1.0,
            has_page: true,
            is_up: true,
            restarts: false,
        }
    }
}

pub(super) fn between(random: &mut fastrand::Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * random.f64()
}

/// Adds a value to a counter of a metrics page, if the page has the counter.
fn add(counter: &mut Option<f64>, value: f64) {
    *counter = counter.map(|total| total + value);
}

/// Draws a random number of arrivals from the Poisson distribution with this mean.
pub(super) fn poisson(mean: f64, random: &mut fastrand::Rng) -> f64 {
    let (limit, mut product, mut count) = ((-mean).exp(), random.f64(), 0.0);
    while product > limit {
        product *= random.f64();
        count += 1.0;
    }
    count
}

impl FleetBackend {
    fn new(name: usize, shape: Shape) -> Self {
        let mut load = empty_page(16.0, (shape.capacity / 16.0).floor());
        Self::start(&mut load);
        Self {
            shape,
            id: BackendId::new(&format!("gpu-{name}")),
            load,
            stalls: 0,
        }
    }

    fn start(load: &mut EngineLoad) {
        let started = Some(load.started.unwrap_or(1_000.0) + 100.0);
        *load = EngineLoad {
            started,
            ..empty_page(load.block_size.unwrap(), load.blocks.unwrap())
        };
    }

    /// Adds the values of a step to the counters of the engine. Returns the sample that the diagnosis gets.
    fn sample(&mut self, tick: &Tick, at: Instant) -> DiagnosisSample {
        if tick.restarts {
            Self::start(&mut self.load);
        }
        let requests = tick.requests + tick.foreign;
        let tokens = requests * self.shape.output * tick.made;
        let begun = requests * f64::from(u8::from(tick.made > 0.0));
        let load = &mut self.load;
        load.kv_usage = Some(tick.kv);
        load.running = Some(tick.running);
        load.waiting = Some(tick.waiting);
        add(&mut load.preemptions, tick.preemptions);
        add(&mut load.prefix_queries, requests * self.shape.prompt);
        add(
            &mut load.prefix_hits,
            requests * self.shape.prompt * tick.hit,
        );
        add(&mut load.prompt_tokens, begun * self.shape.prompt);
        add(&mut load.generation_tokens, tokens);
        add(&mut load.queue_seconds, begun * tick.queue);
        add(&mut load.queued, begun);
        add(&mut load.prefill_seconds, begun * (tick.ttft - tick.queue));
        add(&mut load.prefilled, begun);
        add(&mut load.first_token_seconds, begun * tick.ttft);
        add(&mut load.first_tokens, begun);
        add(&mut load.gap_seconds, tokens * tick.gap);
        add(&mut load.gaps, tokens);
        self.stalls += tick.stalls as u64;
        let seen = self.seen(tick, begun - tick.foreign);
        let page = Some(self.load).filter(|_| tick.has_page);
        DiagnosisSample {
            at,
            is_up: tick.is_up,
            page,
            gateway: Some(seen),
            gpus: None,
        }
    }

    fn seen(&self, tick: &Tick, begun: f64) -> GatewayObservations {
        let ttft = tick.ttft + tick.lag;
        let prompts = tick.requests * self.shape.prompt;
        let square = tick.cancel_wait.powi(2) + tick.cancel_spread.powi(2);
        let responses = (tick.requests - tick.cancelled).max(0.0);
        let counts = BackendRequestCounts {
            first_outputs: begun as u64,
            first_output_seconds: begun * ttft,
            // The TTFTs of a step vary around their mean. Some are twice as long, so a part is slow even
            // below the threshold.
            slow_first_outputs: if ttft >= SLOW_START {
                (begun * 0.6) as u64
            } else if ttft >= SLOW_START / 2.0 {
                (begun * 0.2) as u64
            } else {
                0
            },
            finished: tick.requests as u64,
            streams: tick.requests as u64,
            cancelled: tick.cancelled as u64,
            cancel_seconds: tick.cancelled * tick.cancel_wait,
            cancel_squares: tick.cancelled * square,
            prompt_tokens: prompts,
            reusable_tokens: prompts * tick.reusable,
            reusable_here_tokens: prompts * tick.reusable_here,
            longest_prompt: if tick.requests > 0.0 {
                tick.longest
            } else {
                0.0
            },
            generated: begun as u64,
            served: responses as u64,
            served_seconds: responses * (ttft + self.shape.output * tick.gap),
            served_tokens: (responses * self.shape.output) as u64,
            responses: responses as u64,
            empty_responses: (responses * tick.empty).round() as u64,
            cut_responses: (responses * tick.cut).round() as u64,
            ..BackendRequestCounts::default()
        };
        GatewayObservations {
            in_flight: (tick.running + tick.waiting + tick.beyond).max(0.0) as u32,
            stalled: tick.stalled as u32,
            stalls: self.stalls,
            models: 0,
            gap_p99: Some(tick.gap_p99),
            overdue_seconds: tick.overdue,
            weight: 1,
            counts,
            ..GatewayObservations::default()
        }
    }
}

impl Plant {
    /// Builds a fleet of healthy backends with equal traffic, whose diagnosis has already learned its
    /// baselines.
    pub(super) fn with_baselines(backend_count: usize, seed: u64) -> Self {
        let mut plant = Self::new(backend_count, seed);
        plant.play(BASELINE_STEPS, |_, _, _| {});
        plant
    }

    /// Builds a fleet of healthy backends with equal traffic, before its first step.
    pub(super) fn new(backend_count: usize, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let shape = Shape::healthy(&mut random);
        let backends = (0..backend_count)
            .map(|name| FleetBackend::new(name, shape))
            .collect();
        Self {
            backends,
            random,
            fleet: FleetObservation::default(),
            watch: Diagnoser::default(),
            now: Instant::now(),
        }
    }

    /// Computes this number of steps. Returns the diagnosis after each step. `change` modifies the values of
    /// each backend in each step.
    pub(super) fn play(
        &mut self,
        steps: u64,
        change: impl Fn(u64, usize, &mut Tick),
    ) -> Vec<Diagnosis> {
        let step = |step| self.step(|place, _, tick, _| change(step, place, tick));
        (0..steps).map(step).collect()
    }

    /// Computes one step of all backends, and then the diagnosis. `change` modifies the values of each
    /// backend in this step.
    pub(super) fn step(
        &mut self,
        mut change: impl FnMut(usize, &Shape, &mut Tick, &mut fastrand::Rng),
    ) -> Diagnosis {
        self.now += EVERY;
        let mut samples = Vec::with_capacity(self.backends.len());
        for (place, backend) in self.backends.iter_mut().enumerate() {
            let mut tick = backend.shape.tick(&mut self.random);
            change(place, &backend.shape, &mut tick, &mut self.random);
            samples.push((backend.id.clone(), backend.sample(&tick, self.now)));
        }
        if self.fleet.backends.is_empty() {
            return self.watch.diagnose(samples, self.now);
        }
        self.watch.diagnose_gateway(samples, &self.fleet, self.now)
    }
}
