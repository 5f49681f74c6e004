//! Compares the phases that the gateway derives for requests without engine times with the times of a simulated
//! engine. The time is virtual.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_protocol::histogram::OutputGapHistogram;
use tokenweir_protocol::openai::Usage;
use tokenweir_request::record::fixtures::{decision, streamed};
use tokenweir_request::record::{
    BackendCondition, EngineQueues, RequestPhase, RequestPhases, RequestRecord, WaitReports,
};
use tokenweir_routing::{Candidate, LoadEstimator, LoadReport, PromptFingerprint, Reservation};
use tokenweir_sim::engine::{
    Engine, EngineSpec, EngineStep, FinishedSequence, SequenceId, SequenceRequest,
    SimulatedEngineLoad,
};

/// An engine that is about as fast as a model of 8 billion parameters on an H100 GPU.
const H100: EngineSpec = EngineSpec {
    max_num_seqs: 24,
    max_num_batched_tokens: 8192,
    step_base: Duration::from_millis(6),
    prefill_token: Duration::from_micros(30),
    decode_sequence: Duration::from_micros(40),
    ..EngineSpec::DEFAULT
};
const SCRAPE_INTERVAL: Duration = Duration::from_millis(100);
/// Length of the window over which the gateway computes the mean prefill time.
const MEAN_WINDOW: Duration = Duration::from_secs(10);
/// Time that the API server of the engine needs to read a request. The API server reads one request at a time.
const READ: Duration = Duration::from_millis(4);
/// Time from the end of a batch until its tokens leave the API server of the engine.
const AFTER: Duration = Duration::from_millis(3);

/// A sent request, and what the gateway knows about it.
struct SentRequest {
    record: RequestRecord,
    reservation: Reservation,
}

/// A simulation of a gateway with one backend, in virtual time.
struct Simulation {
    engine: Engine,
    estimator: LoadEstimator,
    queues: EngineQueues,
    epoch: Instant,
    now: Duration,
    /// Requests in the API server of the engine, with the time at which they leave it.
    front_end: VecDeque<(Duration, SequenceId, SequenceRequest)>,
    front_end_busy_until: Duration,
    batch: Option<(Duration, EngineStep)>,
    next_scrape: Duration,
    /// The load on the metrics page, which the engine updates after each batch.
    reported: SimulatedEngineLoad,
    /// Number of requests in the engine's queue after the current batch was scheduled. vLLM takes new requests
    /// into its queue only between two batches.
    waiting: usize,
    condition: BackendCondition,
    sent: BTreeMap<u64, SentRequest>,
    sequences: u64,
    random: fastrand::Rng,
    /// Sum of the prefill times, and number of finished requests, since `mean_since`.
    prefill: (Duration, u32),
    mean_prefill: Option<Duration>,
    mean_since: Duration,
    /// Absolute error of the derived queue time of each request, divided by its TTFT.
    queue_errors: Vec<f64>,
}

impl Simulation {
    fn new(spec: EngineSpec) -> Self {
        let epoch = clock::now();
        Self {
            engine: Engine::new(spec),
            estimator: LoadEstimator::new(epoch, Duration::from_secs(1)),
            queues: EngineQueues::default(),
            epoch,
            now: Duration::ZERO,
            front_end: VecDeque::new(),
            front_end_busy_until: Duration::ZERO,
            batch: None,
            next_scrape: Duration::ZERO,
            reported: SimulatedEngineLoad::default(),
            waiting: 0,
            condition: BackendCondition::default(),
            sent: BTreeMap::new(),
            sequences: 0,
            random: fastrand::Rng::with_seed(7),
            prefill: (Duration::ZERO, 0),
            mean_prefill: None,
            mean_since: Duration::ZERO,
            queue_errors: Vec::new(),
        }
    }

    fn instant(&self, at: Duration) -> Instant {
        self.epoch + at
    }

    /// Sends a request of `prompt_tokens` prompt tokens now.
    fn send(&mut self, prompt_tokens: u32, output_tokens: u32) {
        let id = SequenceId(self.sequences);
        let now = self.instant(self.now);
        self.sequences += 1;
        let prompt = PromptFingerprint {
            bytes: u64::from(prompt_tokens) * 4,
            whole: id.0 + 1,
            block_bytes: 512,
            ..PromptFingerprint::default()
        };
        let candidate = self.estimator.candidate(&prompt, now);
        let reservation = self.estimator.reserve(&candidate, &prompt, true, now);
        let mut record = streamed();
        record.timings = tokenweir_request::record::Timings::begin(now);
        record.timings.sent = Some(now);
        self.front_end_busy_until = self.front_end_busy_until.max(self.now) + READ;
        record.timings.headers = Some(self.instant(self.front_end_busy_until));
        record.observed.usage.input = Some(prompt_tokens.into());
        record.observed.usage.cached = None;
        record.observed.inter_chunk_latency = OutputGapHistogram::default();
        record.observed.usage.output = Some(output_tokens.into());
        let at = |fixture: Candidate| Candidate {
            position: fixture.position,
            ..candidate
        };
        record.decision = Some(Arc::new(decision(at, self.condition)));
        let request = SequenceRequest {
            prompt_tokens,
            output_tokens,
            ..SequenceRequest::default()
        };
        self.front_end
            .push_back((self.front_end_busy_until, id, request));
        self.sent.insert(
            id.0,
            SentRequest {
                record,
                reservation,
            },
        );
    }

    fn run_until_fewer_than(&mut self, open: usize) {
        while self.sent.len() >= open {
            if self.batch.is_none() {
                self.batch = self
                    .engine
                    .step(self.now)
                    .map(|step| (self.now + step.duration, step));
                self.waiting = self.engine.load().waiting;
            }
            let batch_end = self.batch.as_ref().map_or(Duration::MAX, |(end, _)| *end);
            let arrival = self.front_end.front().map_or(Duration::MAX, |(at, ..)| *at);
            self.now = batch_end.min(arrival).min(self.next_scrape);
            if self.now == arrival {
                if let Some((at, id, request)) = self.front_end.pop_front() {
                    self.engine.submit(id, request, at).unwrap();
                }
            } else if self.now == batch_end {
                self.publish_batch();
            } else {
                self.scrape();
            }
        }
    }

    fn scrape(&mut self) {
        self.next_scrape = self.now + SCRAPE_INTERVAL;
        let load = self.reported;
        let report = LoadReport {
            token_gaps: None,
            kv_usage: Some(load.kv_usage),
            waiting: load.waiting as f64,
            running: load.running as f64,
            capacity: None,
            tokens: Some((load.prompt_tokens + load.generation_tokens) as f64),
        };
        let local_load = self.estimator.local_load();
        let now = self.instant(self.now);
        self.estimator.on_report(&report, &local_load, now);
        self.queues.on_report(&report, now);
        self.condition.waiting = Some(load.waiting as u32);
        self.condition.running = Some(load.running as u32);
        if let Some(mean) = self.prefill.0.checked_div(self.prefill.1) {
            self.mean_prefill = Some(mean);
            if self.now > self.mean_since + MEAN_WINDOW {
                self.prefill = (Duration::ZERO, 0);
                self.mean_since = self.now;
            }
        }
    }

    fn publish_batch(&mut self) {
        let Some((_, step)) = self.batch.take() else {
            return;
        };
        self.reported = SimulatedEngineLoad {
            waiting: self.waiting,
            ..self.engine.load()
        };
        let output_at = self.instant(self.now + AFTER);
        for token in &step.tokens {
            let Some(sent) = self.sent.get_mut(&token.id.0) else {
                continue;
            };
            sent.record.timings.last_output = Some(output_at);
            let gaps = &mut sent.record.observed.inter_chunk_latency;
            if token.nth > 1 {
                gaps.record_duration_n(token.gap, 1);
            } else {
                sent.record.timings.first_output = Some(output_at);
                self.estimator
                    .first_output(&mut sent.reservation, output_at);
                let answering = self.estimator.local_load().answering();
                self.queues.on_first_output(answering);
            }
        }
        for finished in &step.finished {
            self.end(finished, output_at);
        }
    }

    /// Ends a request and compares its phases with the times of the engine.
    fn end(&mut self, truth: &FinishedSequence, now: Instant) {
        let Some(mut sent) = self.sent.remove(&truth.id.0) else {
            return;
        };
        let prefill = truth.first_token.saturating_sub(truth.scheduled);
        self.prefill = (self.prefill.0 + prefill, self.prefill.1 + 1);
        let usage = Usage {
            cached: Some(0),
            ..sent.record.observed.usage
        };
        self.estimator.answered(&mut sent.reservation, &usage);
        self.estimator.release(sent.reservation, now);
        let timings = &mut sent.record.timings;
        timings.ended = Some(now);
        let from = timings.sent.unwrap();
        let until = timings.first_output.unwrap();
        sent.record.wait_reports = WaitReports {
            mean_prefill: self.mean_prefill,
            mean_prompt_tokens: self.estimator.learned().prompt_tokens(),
            running_while_queued: self.queues.running_in(from, until),
            max_answering: self.queues.max_answering(),
            last_output_at: None,
        };
        let phases = RequestPhases::from_record(&sent.record);
        let derived = phases.get(RequestPhase::EngineQueue);
        let derived = derived.map_or(0.0, |span| span.took.as_secs_f64());
        let ttft = sent.record.upstream_ttft().unwrap().as_secs_f64();
        let queue = truth.scheduled.saturating_sub(truth.queued);
        self.queue_errors
            .push((derived - queue.as_secs_f64()).abs() / ttft);
    }

    fn closed_loop(&mut self, concurrency: usize, requests: usize, prompts: std::ops::Range<u32>) {
        for _ in 0..requests {
            self.run_until_fewer_than(concurrency);
            let prompt = self.random.u32(prompts.clone());
            let output = self.random.u32(20..120);
            self.send(prompt, output);
        }
        self.run_until_fewer_than(1);
    }

    /// Bursts of `size` requests. Each burst begins when the previous one has ended.
    fn bursts(&mut self, size: usize, bursts: usize, prompts: std::ops::Range<u32>) {
        for _ in 0..bursts {
            self.closed_loop(usize::MAX, size, prompts.clone());
        }
    }
}

fn quantiles(values: &mut [f64]) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [50, 99].map(|percent| values[(values.len() - 1) * percent / 100])
}

#[test]
fn queue_time_is_derived_without_engine_times() {
    type Load = fn(&mut Simulation);
    // Each entry has the name of a load, the greatest p99 error that the test allows, and the load. In the last
    // load, prompts wait for batches of other prompts whose size no engine reports.
    let loads: [(&str, f64, Load); 8] = [
        ("concurrency 1", 0.3, |it| it.closed_loop(1, 100, 1..300)),
        ("concurrency 8", 0.3, |it| it.closed_loop(8, 400, 1..300)),
        ("concurrency 16", 0.3, |it| it.closed_loop(16, 400, 1..300)),
        ("concurrency 32", 0.3, |it| {
            it.closed_loop(32, 1_000, 1..300);
        }),
        ("concurrency 96", 0.3, |it| {
            it.closed_loop(96, 1_000, 1..300);
        }),
        ("bursts of 40", 0.3, |it| it.bursts(40, 4, 1..300)),
        ("a burst, then concurrency 8", 0.3, |it| {
            it.bursts(40, 1, 1..300);
            it.closed_loop(8, 400, 1..300);
        }),
        ("bursts of 40 with long prompts", 0.45, |it| {
            it.bursts(40, 4, 1..1_000);
        }),
    ];
    for (name, limit, load) in loads {
        let mut simulation = Simulation::new(H100);
        load(&mut simulation);
        let queue = quantiles(&mut simulation.queue_errors);
        println!("{name}: error of the queue {queue:.3?} of TTFT");
        assert!(queue[0] <= 0.1 && queue[1] <= limit, "{name}: {queue:?}");
    }
}
