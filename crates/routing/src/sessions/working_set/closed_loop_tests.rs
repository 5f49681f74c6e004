//! Agents with think time on modelled engines in virtual time, with and without the rule of the working set: what
//! it gains above the capacity of the caches, and what it costs below.

use super::*;
use std::collections::VecDeque;
use tokenweir_protocol::clock;

const TOKENS_PER_BLOCK: u64 = 128;
const STEP: Duration = Duration::from_millis(10);
/// Prompt tokens that an engine computes in a step, unless a test says otherwise: 3,000 per second.
const PREFILL_PER_STEP: f64 = 30.0;
/// Time in which an engine without prefill generates a response.
const DECODE: Duration = Duration::from_millis(360);
const OUTPUT: u64 = 24;
const GATED: Duration = Duration::from_secs(27);

/// The prefix cache of an engine. Evicts what was not used for the longest time.
#[derive(Default)]
struct Cache {
    capacity: usize,
    used_at: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

impl Cache {
    fn known_prefix(&self, blocks: &[u64]) -> usize {
        let has = |hash: &&u64| self.used_at.contains_key(*hash);
        blocks.iter().take_while(has).count()
    }

    /// Uses the blocks, so that the first ones are evicted last.
    fn touch(&mut self, blocks: &[u64]) {
        for hash in blocks.iter().rev() {
            self.uses += 1;
            if let Some(before) = self.used_at.insert(*hash, self.uses) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.uses, *hash);
        }
        while self.used_at.len() > self.capacity {
            let Some((_, hash)) = self.by_use.pop_first() else {
                return;
            };
            self.used_at.remove(&hash);
        }
    }
}

/// A turn in an engine.
struct Job {
    agent: usize,
    /// Prompt tokens that are left to compute.
    prefill: f64,
    /// Steps until the end of the response, after the prompt.
    decode: f64,
}

/// Computes one prompt after the other. Meanwhile the responses of the others are half as fast.
#[derive(Default)]
struct Engine {
    cache: Cache,
    /// Prompt tokens that it computes in a step.
    prefill: f64,
    jobs: VecDeque<Job>,
}

impl Engine {
    /// Tokens that the engine computes before the end of a new prompt.
    fn backlog(&self, blocks: &[u64]) -> f64 {
        let missing = blocks.len() - self.cache.known_prefix(blocks);
        let queued: f64 = self.jobs.iter().map(|job| job.prefill).sum();
        queued + missing as f64 * TOKENS_PER_BLOCK as f64
    }

    /// One step. Returns the agents whose prompts are computed, and those whose turns have ended.
    fn step(&mut self) -> (Vec<usize>, Vec<usize>) {
        let mut budget = self.prefill;
        let is_computing = self.jobs.iter().any(|job| job.prefill > 0.0);
        let decoded = if is_computing { 0.5 } else { 1.0 };
        let mut started = Vec::new();
        for job in &mut self.jobs {
            if job.prefill > 0.0 {
                let computed = job.prefill.min(budget);
                budget -= computed;
                job.prefill -= computed;
                if job.prefill <= 0.0 {
                    started.push(job.agent);
                }
            } else {
                job.decode -= decoded;
            }
        }
        let ended = |job: &Job| job.prefill <= 0.0 && job.decode <= 0.0;
        let agents = self
            .jobs
            .iter()
            .filter(|job| ended(job))
            .map(|job| job.agent);
        let agents = agents.collect();
        self.jobs.retain(|job| !ended(job));
        (started, agents)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Thinks { until: Instant },
    Waits,
    Runs { context: Option<ContextId> },
}

#[derive(Clone)]
struct Agent {
    state: State,
    /// Blocks of the first prompt, and of each further turn.
    first: u64,
    growth: u64,
    turns: usize,
    turn: usize,
    blocks: Vec<u64>,
    /// Tokens of the prompt that were in the cache.
    cached: u64,
    /// When the turn was sent.
    sent: Instant,
    is_live: bool,
}

impl Agent {
    /// An agent whose sessions begin with so many blocks. It thinks until `until`.
    fn of(first: u64, until: Instant) -> Self {
        Self {
            state: State::Thinks { until },
            first,
            growth: 3,
            turns: 8,
            turn: 0,
            blocks: Vec::new(),
            cached: 0,
            sent: until,
            is_live: false,
        }
    }
}

/// What the agents have seen.
#[derive(Debug, Default)]
struct Seen {
    turns: usize,
    prompt_blocks: usize,
    cached_blocks: usize,
    ttfts: Vec<f64>,
    /// Those of turns of live sessions.
    live_ttfts: Vec<f64>,
    longest_wait: f64,
}

impl Seen {
    fn hits(&self) -> f64 {
        self.cached_blocks as f64 / self.prompt_blocks as f64
    }

    fn row(&self, seconds: u64) -> String {
        format!(
            "turns/min {:.0} hits {:.3} TTFT p50 {:.2} p90 {:.2} of live p90 {:.2} longest wait {:.1}",
            self.turns as f64 * 60.0 / seconds as f64,
            self.hits(),
            quantile(&self.ttfts, 0.5),
            quantile(&self.ttfts, 0.9),
            quantile(&self.live_ttfts, 0.9),
            self.longest_wait
        )
    }
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (share * sorted.len() as f64) as usize;
    sorted
        .get(place.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

struct Loop {
    random: fastrand::Rng,
    now: Instant,
    engines: Vec<Engine>,
    /// `None`: no turn waits.
    set: Option<WorkingSet>,
    agents: Vec<Agent>,
    waiting: Vec<usize>,
    think: f64,
    next_block: u64,
    seen: Seen,
}

impl Loop {
    /// Two engines with caches of `blocks` blocks each.
    fn new(agents: usize, blocks: usize, has_gate: bool, seed: u64) -> Self {
        let now = clock::epoch();
        let engine = |_| Engine {
            cache: Cache {
                capacity: blocks,
                ..Cache::default()
            },
            prefill: PREFILL_PER_STEP,
            ..Engine::default()
        };
        let agent = |_| Agent::of(7, now);
        Self {
            random: fastrand::Rng::with_seed(seed),
            now,
            engines: (0..2).map(engine).collect(),
            set: has_gate.then(|| WorkingSet::new(Some(2 * blocks as u64 * TOKENS_PER_BLOCK))),
            agents: (0..agents).map(agent).collect(),
            waiting: Vec::new(),
            think: 1.0,
            next_block: 0,
            seen: Seen::default(),
        }
    }

    fn think(&mut self) -> State {
        let wait = -self.think * (1.0 - self.random.f64()).ln();
        State::Thinks {
            until: self.now + Duration::from_secs_f64(wait),
        }
    }

    /// The next turn of an agent, or the first one of a new session.
    fn send(&mut self, number: usize) {
        let agent = &mut self.agents[number];
        if agent.turn == agent.turns {
            agent.turn = 0;
        }
        let mut added = agent.growth;
        if agent.turn == 0 {
            agent.blocks.clear();
            added = agent.first;
        }
        for _ in 0..added {
            self.next_block += 1;
            agent.blocks.push(self.next_block);
        }
        agent.turn += 1;
        agent.sent = self.now;
        let prompt = self.prompt(number);
        let now = self.now;
        let has_waiting = !self.waiting.is_empty();
        let kind = self.set.as_mut().map_or(TurnKind::Unlimited, |set| {
            set.turn_kind(&turn(&prompt), now)
        });
        match kind {
            TurnKind::Unlimited | TurnKind::OfLiveSession => self.start(number, false, true),
            TurnKind::Fits if !has_waiting => self.start(number, false, false),
            TurnKind::Fits | TurnKind::Waits => {
                self.agents[number].state = State::Waits;
                self.waiting.push(number);
            }
        }
    }

    fn prompt(&self, agent: usize) -> Arc<PromptFingerprint> {
        let blocks = &self.agents[agent].blocks;
        Arc::new(PromptFingerprint {
            bytes: 512 * blocks.len() as u64,
            blocks: blocks.iter().copied().collect(),
            block_bytes: 512,
            ..PromptFingerprint::default()
        })
    }

    fn start(&mut self, number: usize, is_overdue: bool, is_live: bool) {
        let prompt = self.prompt(number);
        let now = self.now;
        let set = self.set.as_mut();
        let context = set.and_then(|set| set.begin(&turn(&prompt), is_overdue, now));
        let backlog = |engine: &&mut Engine| engine.backlog(&prompt.blocks) as u64;
        let Some(engine) = self.engines.iter_mut().min_by_key(backlog) else {
            return;
        };
        let cached = engine.cache.known_prefix(&prompt.blocks);
        engine.cache.touch(&prompt.blocks);
        engine.jobs.push_back(Job {
            agent: number,
            prefill: ((prompt.blocks.len() - cached) as u64 * TOKENS_PER_BLOCK).max(1) as f64,
            decode: DECODE.as_secs_f64() / STEP.as_secs_f64(),
        });
        self.seen.prompt_blocks += prompt.blocks.len();
        self.seen.cached_blocks += cached;
        self.agents[number].cached = cached as u64 * TOKENS_PER_BLOCK;
        let waited = (now - self.agents[number].sent).as_secs_f64();
        self.seen.longest_wait = self.seen.longest_wait.max(waited);
        self.agents[number].is_live = is_live;
        self.agents[number].state = State::Runs { context };
    }

    fn end(&mut self, number: usize) {
        let tokens = TurnTokens {
            prompt: self.agents[number].blocks.len() as u64 * TOKENS_PER_BLOCK,
            cached: Some(self.agents[number].cached),
            output: OUTPUT,
            has_missed: None,
        };
        if let State::Runs { context: Some(id) } = self.agents[number].state
            && let Some(set) = &mut self.set
        {
            set.end(id, Some(tokens), self.now);
        }
        let blocks = std::mem::take(&mut self.agents[number].blocks);
        for engine in &mut self.engines {
            if engine.cache.known_prefix(&blocks) == blocks.len() {
                engine.cache.touch(&blocks);
            }
        }
        self.agents[number].blocks = blocks;
        self.seen.turns += 1;
        self.agents[number].state = self.think();
    }

    /// Lets waiting turns in, in the order of the admission queue, until one does not fit. Smaller turns go before
    /// larger ones for a time.
    fn dispatch(&mut self) {
        loop {
            let order = |number: &usize| {
                let Agent { blocks, sent, .. } = &self.agents[*number];
                let tokens = blocks.len() as u64 * TOKENS_PER_BLOCK;
                *sent + (Duration::from_millis(2) * tokens as u32).min(GATED / 2)
            };
            let now = self.now;
            let is_overdue = |number: &usize| now - self.agents[*number].sent >= GATED;
            let waiting = || self.waiting.iter().copied();
            let next = waiting()
                .find(is_overdue)
                .or_else(|| waiting().min_by_key(order));
            let Some(number) = next else {
                return;
            };
            let prompt = self.prompt(number);
            let is_overdue = is_overdue(&number);
            let Some(set) = &mut self.set else { return };
            if !is_overdue && set.turn_kind(&turn(&prompt), now) == TurnKind::Waits {
                return;
            }
            self.waiting.retain(|waiting| *waiting != number);
            self.start(number, is_overdue, false);
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        for place in 0..self.engines.len() {
            let (started, ended) = self.engines[place].step();
            for number in started {
                let agent = &self.agents[number];
                let ttft = (self.now - agent.sent).as_secs_f64();
                self.seen.ttfts.push(ttft);
                if agent.is_live {
                    self.seen.live_ttfts.push(ttft);
                }
            }
            for number in ended {
                self.end(number);
            }
        }
        self.dispatch();
        for number in 0..self.agents.len() {
            if let State::Thinks { until } = self.agents[number].state
                && until <= self.now
            {
                self.send(number);
            }
        }
    }

    fn run(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        while self.now < until {
            self.step();
        }
    }
}

fn turn(prompt: &Arc<PromptFingerprint>) -> Turn<'_> {
    Turn {
        prompt,
        session: None,
        output: OUTPUT,
    }
}

/// What agents saw in two minutes after half a minute, of several seeds.
fn seen(agents: usize, has_gate: bool) -> Vec<Seen> {
    let run = |seed| {
        let mut agents = Loop::new(agents, 150, has_gate, seed);
        agents.run(30);
        agents.seen = Seen::default();
        agents.run(120);
        agents.seen
    };
    (0..4).map(run).collect()
}

fn turns(seen: &[Seen]) -> f64 {
    seen.iter().map(|seen| seen.turns as f64).sum()
}

#[test]
fn below_the_capacity_few_turns_are_lost() {
    // 14 agents fit.
    let gain = |agents| turns(&seen(agents, true)) / turns(&seen(agents, false));
    for agents in [8, 11] {
        let gain = gain(agents);
        assert!((0.98..1.02).contains(&gain), "{agents} agents: {gain}");
    }
}

#[test]
fn above_the_capacity_turns_double() {
    let with = seen(40, true);
    let gain = turns(&with) / turns(&seen(40, false));
    assert!(gain > 2.0, "{gain}");
    for seen in with {
        assert!(seen.hits() > 0.6, "{}", seen.row(120));
        let bound = (GATED + STEP).as_secs_f64();
        assert!(seen.longest_wait <= bound, "{}", seen.row(120));
    }
}

/// The TTFT p90 of the turns of live sessions.
struct LiveTtft {
    before: f64,
    /// While ten sessions of 50,000 tokens wait for room, or do not.
    during: f64,
}

fn live_ttft_with_cold_sessions(has_gate: bool) -> LiveTtft {
    let mut agents = Loop::new(60, 600, has_gate, 1);
    for engine in &mut agents.engines {
        engine.prefill = 200.0;
    }
    agents.run(60);
    agents.seen = Seen::default();
    agents.run(26);
    let before = quantile(&agents.seen.live_ttfts, 0.9);
    let cold = Agent::of(50_000 / TOKENS_PER_BLOCK, agents.now);
    let cold = std::iter::repeat_with(|| cold.clone());
    agents.agents.extend(cold.take(10));
    agents.seen = Seen::default();
    agents.run(26);
    LiveTtft {
        before,
        during: quantile(&agents.seen.live_ttfts, 0.9),
    }
}

#[test]
fn cold_sessions_hardly_delay_live_ones() {
    let LiveTtft { before, during } = live_ttft_with_cold_sessions(true);
    assert!(during < 0.2, "{before} {during}");
    let without = live_ttft_with_cold_sessions(false);
    assert!(without.during > 20.0 * without.before);
}
