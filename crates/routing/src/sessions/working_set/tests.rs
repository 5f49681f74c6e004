//! Tests of the working set: its rules, and a simulation of agents.

use super::*;
use crate::admission::{AdmissionQueue, CapacityGroup, ExhaustedGroups, QueuedRequest};
use crate::admission::{EnqueueOutcome, QueuedRequestId};
use tokenweir_protocol::clock;

const SECOND: Duration = Duration::from_secs(1);

/// A prompt with these blocks, of 128 tokens each, and nothing after them.
fn prompt(blocks: impl IntoIterator<Item = u64>) -> Arc<PromptFingerprint> {
    let blocks: Box<[u64]> = blocks.into_iter().collect();
    let bytes = 512 * blocks.len() as u64;
    Arc::new(PromptFingerprint {
        bytes,
        blocks,
        block_bytes: 512,
        ..PromptFingerprint::default()
    })
}

/// A turn with this number of prompt tokens, of which so many were in the cache.
fn tokens(prompt: u64, cached: u64) -> TurnTokens {
    TurnTokens {
        prompt,
        cached: Some(cached),
        output: 0,
        has_missed: None,
    }
}

fn turn(prompt: &Arc<PromptFingerprint>) -> Turn<'_> {
    Turn {
        prompt,
        session: None,
        output: 0,
    }
}

impl WorkingSet {
    /// A set of sessions whose engines evict what they need.
    fn evicting(capacity: u64) -> Self {
        Self {
            evictions: Evictions::shown(),
            ..Self::new(Some(capacity))
        }
    }

    /// The same with sessions that do not grow.
    fn of_constant_size(capacity: u64) -> Self {
        let growth = Growth {
            observed: 0.0,
            doubt: 0.0,
        };
        Self {
            growth,
            ..Self::evicting(capacity)
        }
    }

    fn kind(&mut self, prompt: &Arc<PromptFingerprint>, now: Instant) -> TurnKind {
        self.turn_kind(&turn(prompt), now)
    }

    fn run(&mut self, prompt: &Arc<PromptFingerprint>, now: Instant) -> ContextId {
        self.begin(&turn(prompt), false, now).unwrap()
    }

    /// Checks the counts of all contexts and blocks against their definitions.
    fn check(&self) {
        let mut users: HashMap<u64, Vec<ContextId>> = HashMap::new();
        for (id, context) in &self.contexts {
            context
                .prompt
                .blocks
                .iter()
                .for_each(|hash| users.entry(*hash).or_default().push(*id));
        }
        assert_eq!(self.blocks.len(), users.len());
        let shared = users.values().filter(|users| users.len() > 1).count() as u64;
        assert_eq!(self.blocks.shared_tokens, 128 * shared);
        for (id, context) in &self.contexts {
            let is_own = |hash: &&u64| users[*hash] == [*id];
            let own = context.prompt.blocks.iter().filter(is_own).count() as u64;
            assert_eq!(context.own_tokens, 128 * own);
        }
        let running = self
            .contexts
            .values()
            .filter(|context| context.idle_since.is_none());
        assert_eq!(self.running, running.count());
        let named = self
            .contexts
            .values()
            .filter(|context| context.session.is_some());
        assert_eq!(self.sessions.values().sum::<usize>(), named.count());
    }
}

#[test]
fn live_sessions_pass_and_new_ones_wait() {
    let now = clock::epoch();
    let mut set = WorkingSet::of_constant_size(128 * 10);
    let first = prompt(0..6);
    assert_eq!(set.kind(&first, now), TurnKind::Fits);
    let id = set.run(&first, now);
    assert_eq!(set.kind(&prompt(100..104), now), TurnKind::Fits);
    assert_eq!(set.kind(&prompt(100..105), now), TurnKind::Waits);
    set.run(&prompt(200..201), now);
    set.end(
        id,
        Some(TurnTokens {
            cached: None,
            ..tokens(128 * 6, 0)
        }),
        now,
    );
    let next = prompt(0..20);
    assert_eq!(set.kind(&next, now), TurnKind::OfLiveSession);
    assert_eq!(set.run(&next, now), id);
    assert_eq!(set.kind(&prompt(300..301), now), TurnKind::Waits);
    set.check();
}

#[test]
fn new_sessions_leave_room_for_growth() {
    let mut now = clock::epoch();
    let mut set = WorkingSet::evicting(128 * 20);
    set.run(&prompt(0..6), now);
    assert_eq!(set.kind(&prompt(100..104), now), TurnKind::Fits);
    assert_eq!(
        set.kind(&prompt(100..105), now),
        TurnKind::Waits,
        "both are assumed to double"
    );
    for number in 0..100 {
        let id = set.run(&prompt([1_000 + number]), now);
        set.end(id, None, now);
        now += ReturnTimes::LONGEST;
        set.need(now);
    }
    assert_eq!(
        set.kind(&prompt(100..113), now),
        TurnKind::Fits,
        "one-time prompts do not grow"
    );
}

#[test]
fn nothing_waits_before_evictions_are_reported() {
    let mut now = clock::epoch();
    let mut set = WorkingSet::new(Some(128 * 400));
    let mut turns = 0..;
    let mut end_turn = |set: &mut WorkingSet, is_evicted: bool, now: Instant| {
        let length = 2 + turns.next().unwrap();
        let cached = if is_evicted { 0 } else { 128 * (length - 1) };
        let id = set.run(&prompt(0..length), now);
        set.end(id, Some(tokens(128 * length, cached)), now);
    };
    end_turn(&mut set, true, now);
    set.run(&prompt(1_000..1_400), now);
    assert_eq!(set.kind(&prompt(2_000..2_040), now), TurnKind::Fits);
    for _ in 0..20 {
        end_turn(&mut set, true, now);
    }
    assert_eq!(set.kind(&prompt(2_000..2_040), now), TurnKind::Waits);
    for _ in 0..100 {
        end_turn(&mut set, false, now);
    }
    assert_eq!(
        set.kind(&prompt(2_000..2_040), now),
        TurnKind::Waits,
        "the wait itself ends the evictions"
    );
    now += Duration::from_secs(31);
    set.need(now);
    assert!(!set.evictions.hold_sessions(), "{:?}", set.evictions);
}

#[test]
fn nothing_waits_where_most_turns_begin_a_session() {
    let now = clock::epoch();
    let mut set = WorkingSet::new(Some(128 * 100_000));
    let mut sessions = 0..;
    let mut end_session = |set: &mut WorkingSet, length: u64, turns: u64| {
        let first = 1_000 * sessions.next().unwrap();
        for length in length..length + turns {
            let id = set.run(&prompt(first..first + length), now);
            set.end(id, Some(tokens(128 * length, 0)), now);
        }
    };
    for _ in 0..20 {
        (0..4).for_each(|_| end_session(&mut set, 2, 1));
        end_session(&mut set, 20, 5);
    }
    assert!(!set.holds_sessions(), "{:?}", set.evictions);
    (0..20).for_each(|_| end_session(&mut set, 20, 5));
    assert!(set.holds_sessions(), "{:?}", set.evictions);
}

#[test]
fn nothing_waits_while_turns_meet_objectives() {
    let now = clock::epoch();
    let mut set = WorkingSet::new(Some(128 * 400));
    let mut turns = 0..;
    let mut end_turns = |set: &mut WorkingSet, has_missed: bool| {
        for _ in 0..30 {
            let length = 2 + turns.next().unwrap();
            let id = set.run(&prompt(0..length), now);
            let ended = TurnTokens {
                has_missed: Some(has_missed),
                ..tokens(128 * length, 0)
            };
            set.end(id, Some(ended), now);
        }
    };
    end_turns(&mut set, false);
    set.run(&prompt(1_000..1_400), now);
    let large = prompt(2_000..2_200);
    assert_eq!(set.kind(&large, now), TurnKind::Fits);
    end_turns(&mut set, true);
    assert_eq!(set.kind(&large, now), TurnKind::Waits);
    end_turns(&mut set, false);
    assert_eq!(set.kind(&large, now), TurnKind::Waits, "the wait goes on");
}

#[test]
fn sessions_that_outgrow_the_capacity_are_left_out() {
    let now = clock::epoch();
    let mut set = WorkingSet::of_constant_size(128 * 10);
    let first = set.run(&prompt(0..4), now);
    let second = set.run(&prompt(10..14), now);
    set.end(first, None, now);
    set.end(second, None, now + SECOND / 8);
    let later = now + SECOND / 4;
    assert_eq!(set.run(&prompt(10..19), later), second);
    set.need(later + SECOND / 8);
    assert_eq!(set.contexts.keys().copied().collect::<Vec<_>>(), [second]);
    assert_eq!(set.kind(&prompt(0..5), later), TurnKind::Waits);
    set.check();
}

#[test]
fn without_a_running_turn_any_fits() {
    let now = clock::epoch();
    let mut set = WorkingSet::new(Some(128));
    let id = set.run(&prompt(0..50), now);
    assert_eq!(set.kind(&prompt(100..101), now), TurnKind::Waits);
    set.end(id, None, now);
    assert_eq!(set.kind(&prompt(100..101), now), TurnKind::Fits);
}

#[test]
fn without_a_capacity_nothing_waits_or_counts() {
    let now = clock::epoch();
    let mut set = WorkingSet::new(None);
    assert_eq!(set.kind(&prompt(0..1_000), now), TurnKind::Unlimited);
    assert_eq!(set.begin(&turn(&prompt(0..1_000)), false, now), None);
    assert!(set.is_empty());
}

#[test]
fn a_shared_prefix_counts_once() {
    let now = clock::epoch();
    let mut set = WorkingSet::of_constant_size(128 * 30);
    let ids: Vec<ContextId> = (1..=10)
        .map(|agent| set.run(&prompt((0..15).chain([100 * agent])), now))
        .collect();
    set.check();
    assert_eq!(set.compute_need(now).tokens as u64, 128 * 25);
    assert_eq!(
        set.kind(&prompt((0..15).chain(5_000..5_005)), now),
        TurnKind::Fits
    );
    assert_eq!(
        set.kind(&prompt((0..15).chain(5_000..5_006)), now),
        TurnKind::Waits
    );
    for id in ids {
        set.end(id, None, now);
        set.remove(id);
        set.check();
    }
    assert_eq!((set.blocks.len(), set.blocks.shared_tokens), (0, 0));
}

#[test]
fn turns_of_other_gateways_count() {
    let now = clock::epoch();
    let mut set = WorkingSet::of_constant_size(128 * 10);
    set.count_peer(&prompt(0..6), now);
    assert_eq!(set.compute_need(now).tokens as u64, 128 * 6);
    let own = set.run(&prompt(100..103), now);
    assert_eq!(set.kind(&prompt(200..202), now), TurnKind::Waits);
    let roamed = prompt(0..7);
    assert_eq!(set.kind(&roamed, now), TurnKind::OfLiveSession);
    let roamed = set.run(&roamed, now);
    set.end(own, None, now);
    set.count_peer(&prompt(100..104), now);
    assert_eq!(set.contexts.len(), 2, "the own session has gone to another");
    set.check();
    set.end(roamed, None, now);
    set.need(now + ReturnTimes::LONGEST);
    assert!(set.is_empty());
}

#[test]
fn only_an_idle_context_is_continued() {
    let now = clock::epoch();
    let mut set = WorkingSet::new(Some(1 << 20));
    let id = set.run(&prompt(0..5), now);
    let fork = set.run(&prompt(0..8), now);
    assert_ne!(fork, id);
    set.end(id, None, now);
    assert_eq!(set.run(&prompt((0..5).chain(50..60)), now), id);
    set.check();
}

#[test]
fn another_question_about_a_document_is_no_turn() {
    let now = clock::epoch();
    let mut set = WorkingSet::new(Some(1 << 20));
    let question = |bytes| {
        Arc::new(PromptFingerprint {
            bytes: 512 * 5 + bytes,
            whole: bytes,
            ..PromptFingerprint::clone(&prompt(0..5))
        })
    };
    let answer = TurnTokens {
        output: 100,
        ..tokens(650, 0)
    };
    let first = set.run(&question(100), now);
    set.end(first, Some(answer), now);
    let second = set.run(&question(150), now);
    assert_ne!(second, first, "it does not contain the answer");
    set.end(second, Some(answer), now);
    assert_eq!(set.run(&question(100), now), first, "the same prompt again");
    set.end(first, Some(answer), now);
    let next = prompt((0..5).chain(50..52));
    assert_eq!(set.run(&next, now), second, "the longer prompt");
    assert_eq!(set.run(&next, now), first);
    set.check();
}

#[test]
fn a_named_session_passes_with_few_contexts() {
    let now = clock::epoch();
    let mut set = WorkingSet::new(Some(128));
    for agent in 0..MAX_PARALLEL as u64 {
        let prompt = prompt([1_000 + agent]);
        let named = Turn {
            session: Some(7),
            ..turn(&prompt)
        };
        let expected = if agent == 0 {
            TurnKind::Fits
        } else {
            TurnKind::OfLiveSession
        };
        assert_eq!(set.turn_kind(&named, now), expected);
        set.begin(&named, false, now).unwrap();
    }
    let further = prompt([9]);
    assert_eq!(
        set.turn_kind(
            &Turn {
                session: Some(7),
                ..turn(&further)
            },
            now
        ),
        TurnKind::Waits
    );
    set.check();
}

#[test]
fn an_overdue_turn_displaces_the_longest_idle() {
    let now = clock::epoch();
    let mut set = WorkingSet::of_constant_size(128 * 9);
    let prompts = [prompt(0..4), prompt(10..14), prompt(20..21)];
    let ids: Vec<ContextId> = prompts.iter().map(|prompt| set.run(prompt, now)).collect();
    set.end(ids[1], None, now);
    set.end(ids[0], None, now + SECOND / 8);
    let later = now + SECOND / 4;
    let overdue = prompt(30..34);
    set.begin(&turn(&overdue), true, later).unwrap();
    assert!(!set.contexts.contains_key(&ids[1]) && set.contexts.contains_key(&ids[0]));
    assert_eq!(set.kind(&prompt(10..15), later), TurnKind::Waits);
    assert_eq!(set.kind(&prompt(0..5), later), TurnKind::OfLiveSession);
    set.check();
}

#[test]
fn abandoned_sessions_stop_reserving_cache() {
    let mut now = clock::epoch();
    let mut set = WorkingSet::new(Some(128 * 100));
    for number in 0..400 {
        let id = set.run(&prompt(10 * number..10 * number + 10), now);
        set.end(id, None, now);
        now += SECOND / 2;
        set.need(now);
    }
    let need = set.need(now);
    assert!(need.contexts < 4, "{need:?}");
    assert!(set.contexts.len() <= 64);
    set.need(now + ReturnTimes::LONGEST);
    assert!(set.is_empty());
}

/// A request of the simulation that waits in the queue.
struct Waiting {
    agent: usize,
    since: Instant,
}

enum Agent {
    Thinks {
        until: Instant,
    },
    Waits {
        id: QueuedRequestId,
        since: Instant,
    },
    Runs {
        context: Option<ContextId>,
        generation: u32,
        until: Instant,
    },
}

/// Agents, the queue and the working set, as the controller of admission connects them.
struct Simulation {
    random: fastrand::Rng,
    now: Instant,
    set: WorkingSet,
    queue: AdmissionQueue<Waiting>,
    agents: Vec<Agent>,
    prompts: Vec<Arc<PromptFingerprint>>,
    names: Vec<Option<u64>>,
    /// Number of restarts of the option.
    generation: u32,
    next_block: u64,
    longest_wait: Duration,
    turns: usize,
}

const AGENTS: usize = 40;
const MAX_WAIT: Duration = Duration::from_secs(30);
const GATED: Duration = Duration::from_secs(27);
const STEP: Duration = Duration::from_millis(50);

impl Simulation {
    fn new(seed: u64) -> Self {
        let now = clock::epoch();
        let mut random = fastrand::Rng::with_seed(seed);
        let names = (0..AGENTS)
            .map(|_| random.bool().then(|| random.u64(..8)))
            .collect();
        Self {
            set: WorkingSet::evicting(128 * 200),
            queue: AdmissionQueue::new(AGENTS, 1),
            agents: (0..AGENTS).map(|_| Agent::Thinks { until: now }).collect(),
            prompts: (0..AGENTS).map(|_| prompt([])).collect(),
            names,
            generation: 0,
            next_block: 0,
            longest_wait: Duration::ZERO,
            turns: 0,
            random,
            now,
        }
    }

    /// Grows the prompt of an agent, or begins a new session with or without a prefix of others.
    fn extend_prompt(&mut self, agent: usize) {
        let mut blocks = self.prompts[agent].blocks.to_vec();
        if blocks.len() > 40 || self.random.u8(..8) == 0 {
            let other = self.random.usize(..AGENTS);
            let shared = self.random.usize(..=4);
            blocks = self.prompts[other]
                .blocks
                .iter()
                .take(shared)
                .copied()
                .collect();
        }
        for _ in 0..self.random.u64(..6) {
            self.next_block += 1;
            blocks.push(self.next_block);
        }
        self.prompts[agent] = prompt(blocks);
    }

    fn request(&self, agent: usize) -> QueuedRequest<Waiting> {
        QueuedRequest {
            class: 0,
            tenant: 0,
            group: CapacityGroup::default(),
            tokens: 1,
            work: self.prompts[agent].blocks.len() as u64 * 128,
            is_begun: false,
            gated_until: Some(self.now + GATED),
            deadline: self.now + MAX_WAIT,
            payload: Waiting {
                agent,
                since: self.now,
            },
        }
    }

    fn run(&mut self, agent: usize, is_overdue: bool) {
        let turn = Turn {
            session: self.names[agent],
            ..turn(&self.prompts[agent])
        };
        let context = self.set.begin(&turn, is_overdue, self.now);
        let until = self.now + SECOND.mul_f64(2.0 * self.random.f64());
        self.turns += 1;
        self.agents[agent] = Agent::Runs {
            context,
            generation: self.generation,
            until,
        };
    }

    fn start(&mut self, agent: usize) {
        self.extend_prompt(agent);
        let turn = Turn {
            session: self.names[agent],
            ..turn(&self.prompts[agent])
        };
        match self.set.turn_kind(&turn, self.now) {
            TurnKind::Unlimited | TurnKind::OfLiveSession => self.run(agent, false),
            TurnKind::Fits if self.queue.is_empty() => self.run(agent, false),
            TurnKind::Fits | TurnKind::Waits => {
                let request = self.request(agent);
                let EnqueueOutcome::Waits(id) = self.queue.enter(request, self.now) else {
                    panic!("the queue has room for all");
                };
                self.agents[agent] = Agent::Waits {
                    id,
                    since: self.now,
                };
            }
        }
    }

    fn dispatch(&mut self) {
        let mut exhausted = ExhaustedGroups::default();
        loop {
            let now = self.now;
            let Self {
                set,
                queue,
                prompts,
                names,
                ..
            } = self;
            let offer = |request: &QueuedRequest<Waiting>| {
                let agent = request.payload.agent;
                let turn = Turn {
                    session: names[agent],
                    ..turn(&prompts[agent])
                };
                let is_held = request.is_gated(now) && set.turn_kind(&turn, now) == TurnKind::Waits;
                (!is_held).then_some(())
            };
            let Some((id, ())) = queue.select(now, &mut exhausted, offer, |()| 0.0) else {
                return;
            };
            let request = queue.grant(id, now).unwrap().ticket;
            let is_overdue = !request.is_gated(now);
            self.longest_wait = self.longest_wait.max(now - request.payload.since);
            self.run(request.payload.agent, is_overdue);
        }
    }

    /// The end of a turn, with its usage or without.
    fn end(&mut self, agent: usize) {
        let prompt = 128 * self.prompts[agent].blocks.len() as u64;
        let ended = TurnTokens {
            cached: self.random.bool().then(|| self.random.u64(0..=prompt)),
            ..tokens(prompt, 0)
        };
        let tokens = self.random.bool().then_some(ended);
        if let Agent::Runs {
            context: Some(context),
            generation,
            ..
        } = self.agents[agent]
            && generation == self.generation
        {
            assert!(
                self.set.contexts.contains_key(&context),
                "a running context stays"
            );
            self.set.end(context, tokens, self.now);
        }
        let until = self.now + SECOND.mul_f64(2.0 * self.random.f64());
        self.agents[agent] = Agent::Thinks { until };
    }

    /// The client of an agent disconnects, while it waits or while a turn is running.
    fn cancel(&mut self, agent: usize) {
        match self.agents[agent] {
            Agent::Thinks { .. } => {}
            Agent::Waits { id, .. } => {
                self.queue.leave(id, self.now);
                self.agents[agent] = Agent::Thinks { until: self.now };
            }
            Agent::Runs { .. } => self.end(agent),
        }
    }

    fn step(&mut self) {
        self.now += STEP.mul_f64(self.random.f64());
        let agent = self.random.usize(..AGENTS);
        match self.random.u16(..1_000) {
            0 => {
                // The option is turned off and on, while turns of the old gate are running.
                self.generation += 1;
                self.set = WorkingSet::new(self.set.capacity);
            }
            1..=3 => {
                let capacities = [None, Some(1), Some(128 * 100), Some(128 * 200)];
                self.set.capacity = capacities[self.random.usize(..4)];
            }
            4..=200 => self.cancel(agent),
            _ => match self.agents[agent] {
                Agent::Thinks { until } if until <= self.now => self.start(agent),
                Agent::Runs { until, .. } if until <= self.now => self.end(agent),
                _ => {}
            },
        }
        self.dispatch();
        for agent in &self.agents {
            if let Agent::Waits { since, .. } = agent {
                assert!(self.now - *since <= GATED, "a session waits for too long");
            }
        }
    }
}

#[test]
fn a_million_events_leave_nothing_behind() {
    let mut simulation = Simulation::new(7);
    for step in 0..1_000_000 {
        simulation.step();
        if step % 10_000 == 0 {
            simulation.set.check();
        }
    }
    (0..AGENTS).for_each(|agent| simulation.cancel(agent));
    let Simulation {
        set, queue, now, ..
    } = &mut simulation;
    assert!(queue.is_empty());
    assert_eq!(set.running, 0);
    set.need(*now + ReturnTimes::LONGEST);
    set.check();
    assert!(set.is_empty() && set.ends.is_empty() && set.sessions.is_empty());
    assert!(simulation.turns > 50_000, "{}", simulation.turns);
    assert!(
        simulation.longest_wait > SECOND,
        "{:?}",
        simulation.longest_wait
    );
}
