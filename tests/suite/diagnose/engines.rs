//! The diagnosis of simulated engines in virtual time, from their metrics alone. Two faults occur: the KV
//! cache is too small, and prompts arrive faster than the engine computes them.

use super::fleet_model::{MINUTE_STEPS, poisson};
use super::scenarios;
use std::borrow::Cow;
use std::time::{Duration, Instant};
use tokenweir_diagnose::{Diagnoser, Diagnosis, DiagnosisSample, EVERY, safe_max_num_seqs};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_sim::engine::{Engine, EngineSpec, FinishedSequence, SequenceId, SequenceRequest};
use tokenweir_sim::telemetry::{EngineTelemetry, MetricsSource, render_metrics_page};
use tokenweir_sim::text::SimulatedFinishReason;

/// The load of an engine: requests per second, and the ranges of prompt and output tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic {
    pub(super) rate: f64,
    pub(super) prompt: (u32, u32),
    pub(super) output: (u32, u32),
}

/// A simulated engine, its metrics page, and a diagnosis that reads only this metrics page.
pub(super) struct EngineFixture {
    spec: EngineSpec,
    engine: Engine,
    telemetry: EngineTelemetry,
    now: Duration,
    /// The metrics page that the diagnosis has read last.
    page: EngineLoad,
    random: fastrand::Rng,
    sent: u64,
    watch: Diagnoser,
    start: Instant,
}

impl EngineFixture {
    pub(super) fn new(spec: EngineSpec, seed: u64) -> Self {
        Self {
            spec,
            engine: Engine::new(spec),
            telemetry: EngineTelemetry::default(),
            now: Duration::ZERO,
            page: EngineLoad::default(),
            random: fastrand::Rng::with_seed(seed),
            sent: 0,
            watch: Diagnoser::default(),
            start: Instant::now(),
        }
    }

    /// Simulates the engine for five seconds with this traffic, and then diagnoses once.
    pub(super) fn step(&mut self, traffic: Traffic) -> Diagnosis {
        let end = self.now + EVERY;
        let count = poisson(traffic.rate * EVERY.as_secs_f64(), &mut self.random) as usize;
        let random = &mut self.random;
        let mut arrivals: Vec<Duration> = (0..count)
            .map(|_| self.now + EVERY.mul_f64(random.f64()))
            .collect();
        arrivals.sort_unstable_by(|a, b| b.cmp(a));
        while self.now < end {
            while arrivals.last().is_some_and(|at| *at <= self.now) {
                let at = arrivals.pop().unwrap();
                self.submit(traffic, at);
            }
            match self.engine.step(self.now) {
                Some(step) => {
                    self.now += step.duration;
                    self.telemetry.record_step(&step);
                    for times in step.finished {
                        // A request that arrived during a step was submitted after it.
                        let times = FinishedSequence {
                            queued: times.arrived,
                            ..times
                        };
                        self.telemetry
                            .record_finished(&times, SimulatedFinishReason::Length);
                    }
                }
                None => self.now = arrivals.last().copied().unwrap_or(end).min(end),
            }
        }
        // These requests arrived during the last batch, which ended after the five seconds.
        arrivals
            .into_iter()
            .rev()
            .for_each(|at| self.submit(traffic, at));
        self.look()
    }

    fn submit(&mut self, traffic: Traffic, at: Duration) {
        self.sent += 1;
        let request = SequenceRequest {
            prompt_tokens: self.random.u32(traffic.prompt.0..=traffic.prompt.1),
            output_tokens: self.random.u32(traffic.output.0..=traffic.output.1),
            ..SequenceRequest::default()
        };
        self.engine
            .submit(SequenceId(self.sent), request, at)
            .unwrap();
    }

    fn look(&mut self) -> Diagnosis {
        let (spec, load, telemetry) = (&self.spec, &self.engine.load(), &self.telemetry);
        let source = MetricsSource {
            model: "tiny",
            spec,
            load,
            telemetry,
        };
        let page = render_metrics_page(&source);
        self.page = EngineLoad::read(page.as_bytes());
        let (at, page) = (self.start + self.now, Some(self.page));
        let sample = DiagnosisSample {
            at,
            is_up: true,
            page,
            gateway: None,
            gpus: None,
        };
        self.watch
            .diagnose(vec![(BackendId::new("gpu-0"), sample)], at)
    }

    /// Number of preemptions per request since the start.
    fn preemptions_per_request(&self) -> f64 {
        self.engine.load().preemptions as f64 / self.sent as f64
    }
}

/// Returns the names of all verdicts during `steps` steps, sorted and without repetitions.
fn names(bench: &mut EngineFixture, traffic: Traffic, steps: u64) -> Vec<Cow<'static, str>> {
    let mut names = Vec::new();
    for _ in 0..steps {
        names.extend(
            bench
                .step(traffic)
                .verdicts
                .into_iter()
                .map(|it| it.verdict),
        );
    }
    names.sort_unstable();
    names.dedup();
    names
}

const WARM_UP_STEPS: u64 = 84;

/// An engine with a cache of 6,400 tokens.
const SMALL: EngineSpec = EngineSpec {
    blocks: 400,
    ..EngineSpec::DEFAULT
};
const CHAT: Traffic = Traffic {
    rate: 1.5,
    prompt: (80, 160),
    output: (200, 400),
};
const LONG: Traffic = Traffic {
    rate: 0.4,
    prompt: (5_000, 9_000),
    output: (20, 40),
};

/// Simulates the engine with each of `seeds` seeds: first with `traffic`, then for a minute with a rate that
/// is 5 to 7.5 times as high. Returns two numbers of seeds: those with exactly the verdict `wanted`, and
/// those with another verdict.
fn named(seeds: u64, spec: EngineSpec, traffic: Traffic, wanted: &str) -> (u64, u64) {
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..seeds {
        let mut bench = EngineFixture::new(spec, seed);
        let calm = names(&mut bench, traffic, WARM_UP_STEPS);
        let times = 5.0 * (1.0 + 0.5 * fastrand::Rng::with_seed(seed).f64());
        let busy = Traffic {
            rate: traffic.rate * times,
            ..traffic
        };
        let verdict_names = names(&mut bench, busy, MINUTE_STEPS);
        right += u64::from(verdict_names == [wanted]);
        wrong += u64::from(!calm.is_empty() || verdict_names.iter().any(|name| *name != wanted));
    }
    eprintln!("{wanted}: {right} of {seeds} named in 60 s, {wrong} with another verdict");
    (right, wrong)
}

#[test]
fn thrashing_and_prefill_queues_are_named() {
    let seeds = scenarios(8);
    let roomy = EngineSpec {
        blocks: 20_000,
        ..SMALL
    };
    for (spec, traffic, wanted) in [
        (SMALL, CHAT, "kv_thrashing"),
        (roomy, LONG, "prefill_starvation"),
    ] {
        let (right, wrong) = named(seeds, spec, traffic, wanted);
        assert!(
            right * 100 >= seeds * 95 && wrong * 100 <= seeds * 5,
            "{wanted}"
        );
    }
}

#[test]
fn the_recommended_batch_size_ends_thrashing() {
    let busy = Traffic { rate: 7.0, ..CHAT };
    for seed in 0..4 {
        let mut bench = EngineFixture::new(SMALL, seed);
        names(&mut bench, busy, 3 * MINUTE_STEPS);
        let before = bench.preemptions_per_request();
        assert!(before > 0.1, "{before}");
        // A request has about 120 prompt tokens and 300 output tokens on average.
        let safe = safe_max_num_seqs(&bench.page, 420.0).unwrap();
        let mut bench = EngineFixture::new(
            EngineSpec {
                max_num_seqs: safe,
                ..SMALL
            },
            seed,
        );
        names(&mut bench, busy, 3 * MINUTE_STEPS);
        assert!(
            bench.preemptions_per_request() < before / 20.0,
            "{} of {before}",
            bench.preemptions_per_request()
        );
    }
}

#[test]
fn the_thrashing_verdict_recommends_a_size() {
    let mut bench = EngineFixture::new(SMALL, 1);
    names(&mut bench, CHAT, WARM_UP_STEPS);
    let busy = Traffic { rate: 7.0, ..CHAT };
    let diagnoses: Vec<Diagnosis> = (0..2 * MINUTE_STEPS).map(|_| bench.step(busy)).collect();
    let verdict = &diagnoses.last().unwrap().verdicts[0];
    assert_eq!(verdict.verdict, "kv_thrashing");
    let safe = safe_max_num_seqs(&bench.page, 420.0).unwrap();
    let recommended: u32 = verdict
        .remedy
        .split(' ')
        .find_map(|word| word.trim_end_matches(':').parse().ok())
        .unwrap();
    assert!(
        recommended.abs_diff(safe) <= 2,
        "{recommended} is not {safe}: {}",
        verdict.remedy
    );
}
