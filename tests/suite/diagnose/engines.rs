//! The same rules on pages of the simulator's engine, in virtual time: what it does of itself when
//! its cache is too small, or prompts come faster than it computes them.

use super::plant::poisson;
use std::borrow::Cow;
use std::time::{Duration, Instant};
use tokenweir_core::dialect::Load;
use tokenweir_core::record::BackendId;
use tokenweir_diagnose::{Diagnosis, EVERY, Sample, Watch, safe_max_num_seqs};
use tokenweir_sim::engine::{Engine, Request, SequenceId, Spec, Token};

/// What is sent: requests in a second, and ranges of lengths in tokens.
#[derive(Debug, Clone, Copy)]
struct Traffic {
    rate: f64,
    prompt: (u32, u32),
    output: (u32, u32),
}

/// An engine, its counters as vLLM has them, and a watch that sees nothing but its page.
struct Bench {
    engine: Engine,
    now: Duration,
    page: Load,
    random: fastrand::Rng,
    sent: u64,
    watch: Watch,
    start: Instant,
}

impl Bench {
    fn new(spec: Spec, seed: u64) -> Self {
        let zero = Some(0.0);
        let page = Load {
            block_size: Some(f64::from(spec.block_size)),
            blocks: Some(f64::from(spec.blocks)),
            queue_seconds: zero,
            queued: zero,
            first_token_seconds: zero,
            first_tokens: zero,
            gap_seconds: zero,
            gaps: zero,
            ..Load::default()
        };
        Self {
            engine: Engine::new(spec),
            now: Duration::ZERO,
            page,
            random: fastrand::Rng::with_seed(seed),
            sent: 0,
            watch: Watch::default(),
            start: Instant::now(),
        }
    }

    /// Five seconds of this traffic, and a look.
    fn step(&mut self, traffic: Traffic) -> Diagnosis {
        let end = self.now + EVERY;
        let count = poisson(traffic.rate * EVERY.as_secs_f64(), &mut self.random) as usize;
        let random = &mut self.random;
        let mut arrivals: Vec<Duration> =
            (0..count).map(|_| self.now + EVERY.mul_f64(random.f64())).collect();
        arrivals.sort_unstable_by(|a, b| b.cmp(a));
        while self.now < end {
            while arrivals.last().is_some_and(|at| *at <= self.now) {
                let at = arrivals.pop().unwrap();
                self.submit(traffic, at);
            }
            match self.engine.step(self.now) {
                Some(step) => {
                    self.now += step.duration;
                    step.tokens.iter().for_each(|token| self.on_token(token));
                    for story in &step.finished {
                        let queue = story.scheduled.saturating_sub(story.arrived);
                        add(&mut self.page.queue_seconds, queue.as_secs_f64());
                        add(&mut self.page.queued, 1.0);
                    }
                }
                None => self.now = arrivals.last().copied().unwrap_or(end).min(end),
            }
        }
        // A batch that was longer than the step.
        arrivals.into_iter().rev().for_each(|at| self.submit(traffic, at));
        self.look()
    }

    fn submit(&mut self, traffic: Traffic, at: Duration) {
        self.sent += 1;
        let request = Request {
            prompt_tokens: self.random.u32(traffic.prompt.0..=traffic.prompt.1),
            output_tokens: self.random.u32(traffic.output.0..=traffic.output.1),
            block_hashes: Vec::new(),
        };
        self.engine.submit(SequenceId(self.sent), request, at).unwrap();
    }

    fn on_token(&mut self, token: &Token) {
        let (sum, count) = match token.nth {
            1 => (&mut self.page.first_token_seconds, &mut self.page.first_tokens),
            _ => (&mut self.page.gap_seconds, &mut self.page.gaps),
        };
        add(sum, token.gap.as_secs_f64());
        add(count, 1.0);
    }

    fn look(&mut self) -> Diagnosis {
        let load = self.engine.load();
        let page = Load {
            kv_usage: Some(load.kv_usage),
            running: Some(load.running as f64),
            waiting: Some(load.waiting as f64),
            preemptions: Some(load.preemptions as f64),
            prefix_queries: Some(load.prefix_queries as f64),
            prefix_hits: Some(load.prefix_hits as f64),
            prompt_tokens: Some(load.prompt_tokens as f64),
            generation_tokens: Some(load.generation_tokens as f64),
            ..self.page
        };
        let at = self.start + self.now;
        let sample = Sample { at, is_up: true, page: Some(page), seen: None };
        self.watch.look(vec![(BackendId::new("gpu-0"), sample)], at)
    }

    /// Preemptions for each request that was sent.
    fn preempted(&self) -> f64 {
        self.engine.load().preemptions as f64 / self.sent as f64
    }
}

fn add(counter: &mut Option<f64>, value: f64) {
    *counter = counter.map(|it| it + value);
}

/// The names that were found in so many steps.
fn names(bench: &mut Bench, traffic: Traffic, steps: u64) -> Vec<Cow<'static, str>> {
    let mut names = Vec::new();
    for _ in 0..steps {
        names.extend(bench.step(traffic).verdicts.into_iter().map(|it| it.verdict));
    }
    names.sort_unstable();
    names.dedup();
    names
}

const CALM: u64 = 84;
const MINUTE: u64 = 60 / EVERY.as_secs();

/// A cache of 6,400 tokens.
const SMALL: Spec = Spec {
    block_size: 16,
    blocks: 400,
    max_num_seqs: 64,
    max_num_batched_tokens: 2_048,
    step_base: Duration::from_millis(10),
    prefill_token: Duration::from_micros(100),
    decode_sequence: Duration::from_micros(80),
    kv_token: Duration::from_nanos(100),
};
const CHAT: Traffic = Traffic { rate: 1.5, prompt: (80, 160), output: (200, 400) };
const LONG: Traffic = Traffic { rate: 0.4, prompt: (5_000, 9_000), output: (20, 40) };

/// How many of these seeds were named, and nothing else with it.
fn named(seeds: u64, spec: Spec, traffic: Traffic, times: f64, wanted: &str) -> (u64, u64) {
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..seeds {
        let mut bench = Bench::new(spec, seed);
        let calm = names(&mut bench, traffic, CALM);
        let times = times * (1.0 + 0.5 * fastrand::Rng::with_seed(seed).f64());
        let busy = Traffic { rate: traffic.rate * times, ..traffic };
        let said = names(&mut bench, busy, MINUTE);
        right += u64::from(said == [wanted]);
        wrong += u64::from(!calm.is_empty() || said.iter().any(|name| *name != wanted));
    }
    eprintln!("{wanted}: {right} of {seeds} named in 60 s, {wrong} with another verdict");
    (right, wrong)
}

fn judge(seeds: u64) {
    let roomy = Spec { blocks: 20_000, ..SMALL };
    for (spec, traffic, times, wanted) in
        [(SMALL, CHAT, 5.0, "kv_thrashing"), (roomy, LONG, 5.0, "prefill_starvation")]
    {
        let (right, wrong) = named(seeds, spec, traffic, times, wanted);
        assert!(right * 100 >= seeds * 95 && wrong * 100 <= seeds * 5, "{wanted}");
    }
}

#[test]
fn an_engine_that_thrashes_or_queues_for_prefill_is_named_from_its_page_alone() {
    judge(8);
}

#[test]
#[ignore = "takes minutes: two hundred engines for each"]
fn engines_are_named_in_two_hundred_scenarios_each() {
    judge(200);
}

#[test]
fn the_safe_batch_ends_the_thrashing() {
    let busy = Traffic { rate: 7.0, ..CHAT };
    for seed in 0..4 {
        let mut bench = Bench::new(SMALL, seed);
        names(&mut bench, busy, 3 * MINUTE);
        let before = bench.preempted();
        assert!(before > 0.1, "{before}");
        // 120 tokens of prompt and 300 of output, on the whole.
        let safe = safe_max_num_seqs(&bench.page, 420.0).unwrap();
        let mut bench = Bench::new(Spec { max_num_seqs: safe, ..SMALL }, seed);
        names(&mut bench, busy, 3 * MINUTE);
        assert!(bench.preempted() < before / 20.0, "{} of {before}", bench.preempted());
    }
}

#[test]
fn the_verdict_says_what_the_batch_should_be() {
    let mut bench = Bench::new(SMALL, 1);
    names(&mut bench, CHAT, CALM);
    let busy = Traffic { rate: 7.0, ..CHAT };
    let said: Vec<Diagnosis> = (0..2 * MINUTE).map(|_| bench.step(busy)).collect();
    let verdict = &said.last().unwrap().verdicts[0];
    assert_eq!(verdict.verdict, "kv_thrashing");
    let safe = safe_max_num_seqs(&bench.page, 420.0).unwrap();
    let told: u32 =
        verdict.remedy.split(' ').find_map(|word| word.trim_end_matches(':').parse().ok()).unwrap();
    assert!(told.abs_diff(safe) <= 2, "{told} is not {safe}: {}", verdict.remedy);
}
