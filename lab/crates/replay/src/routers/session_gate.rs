//! Gates that hold turns of sessions while the contexts of the sessions do not fit into the KV caches, as two
//! products do.
//!
//! [`GateRule::ThunderAgent`] is the plugin `thunder-agent` of llm-d-router (September 2026, `thunderagent`,
//! with its defaults): a turn of an admitted session passes and stays at its backend. A new session needs a backend with
//! room, and a paused one needs room at its own. If there is not enough, sessions that have been idle for 30 s
//! are paused, the one that has been idle longest first. Of the turns that may pass, those of paused sessions come
//! first, then the smallest. Backends of requests without a session are chosen by llm-d's default scorers.
//!
//! [`GateRule::Dynamo`] is the session-aware queue admission of NVIDIA Dynamo (`lib/kv-router`, `queue_admission`,
//! c5f58884, with its defaults; the algorithm is that of the crate `thunderagent-dynamo-policy`). A new session needs a
//! backend that it fills up to 95 % at most. Every five seconds, paused sessions with a waiting turn continue
//! where 85 % are not exceeded, the largest first. Then a backend above 95 % pauses sessions, idle ones first and the
//! smallest first, until 80 % remain. A session with a turn in progress is paused at its end.
//!
//! Both count a prefix that several sessions share once for each of them. The greatest wait, of half an hour, is
//! left out. A session of the trace with one turn has no session here.

use crate::trace::TraceRequest;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Turn {
    /// Number of the request in the trace.
    pub(crate) number: usize,
    pub(crate) session: usize,
    pub(crate) tokens: f64,
    /// Time of arrival in seconds.
    pub(crate) arrived: f64,
}

/// A turn that may be sent to a backend.
struct AdmittedTurn {
    turn: Turn,
    backend: usize,
}

/// The rule with which a gate holds turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateRule {
    /// The rule of llm-d's plugin `thunder-agent`.
    ThunderAgent,
    /// The rule of Dynamo's session-aware queue admission.
    Dynamo,
}

#[derive(Debug)]
pub(crate) struct SessionGate {
    rule: GateRule,
    /// Number of tokens in the KV cache of each backend, by its position.
    capacities: Vec<f64>,
    /// Tokens of the sessions at each backend that are not paused.
    used: Vec<f64>,
    sessions: BTreeMap<usize, Session>,
    waiting: Vec<Turn>,
}

/// A session that has sent a turn.
#[derive(Debug, Default)]
struct Session {
    /// The backend whose cache has the session.
    backend: usize,
    /// Tokens of the longest turn, with its output if it has ended.
    tokens: f64,
    /// Number of turns that have been sent and have not ended.
    running: usize,
    /// Time at which the last turn ended, in seconds.
    idle_since: f64,
    is_paused: bool,
    /// Whether the session is paused when its turn ends.
    pauses_at_end: bool,
}

/// Seconds of idleness after which `thunder-agent` may pause a session.
const IDLE_LEASE: f64 = 30.0;
/// Shares of the capacity of Dynamo's rule: above the first, sessions are paused until the second remains.
/// Paused sessions continue up to the third.
const PAUSE_ABOVE: f64 = 0.95;
const PAUSE_TARGET: f64 = 0.80;
const RESUME_BELOW: f64 = 0.85;
/// Tokens that Dynamo's rule adds to each session.
const SESSION_BUFFER: f64 = 100.0;

/// The place of a request in its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionTurn {
    /// Number of the first request of the session.
    pub(crate) session: usize,
    /// Whether the session ends with this request.
    pub(crate) is_last: bool,
}

/// The place of each request in its session, by the number of the request. `None`: no other request is in its session.
/// The first request that follows another one continues its session, and each further one begins a session, as
/// sub-agents do.
pub(crate) fn session_turns(requests: &[TraceRequest]) -> Vec<Option<SessionTurn>> {
    let mut turns: Vec<SessionTurn> = Vec::with_capacity(requests.len());
    for (number, request) in requests.iter().enumerate() {
        let mut session = number;
        if let Some(previous) = request.after.map(|previous| &mut turns[previous])
            && previous.is_last
        {
            previous.is_last = false;
            session = previous.session;
        }
        turns.push(SessionTurn {
            session,
            is_last: true,
        });
    }
    let is_single = |number: usize, turn: &SessionTurn| turn.is_last && turn.session == number;
    let turns = turns.into_iter().enumerate();
    turns
        .map(|(number, turn)| (!is_single(number, &turn)).then_some(turn))
        .collect()
}

impl GateRule {
    /// Seconds between two ticks of the rule.
    pub(crate) const fn tick_seconds(self) -> f64 {
        match self {
            Self::ThunderAgent => 1.0,
            Self::Dynamo => 5.0,
        }
    }
}

impl SessionGate {
    pub(crate) fn new(rule: GateRule, capacities: Vec<f64>) -> Self {
        Self {
            rule,
            used: vec![0.0; capacities.len()],
            capacities,
            sessions: BTreeMap::new(),
            waiting: Vec::new(),
        }
    }

    /// Whether no turn waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) const fn rule(&self) -> GateRule {
        self.rule
    }

    /// The backend of a session. `None`: the session has not been admitted.
    pub(crate) fn backend(&self, session: usize) -> Option<usize> {
        self.sessions.get(&session).map(|session| session.backend)
    }

    /// Adds a turn, which [`Self::release`] returns when it may be sent.
    pub(crate) fn enter(&mut self, turn: Turn) {
        self.waiting.push(turn);
    }

    /// The next turn that may be sent at this time in seconds.
    pub(crate) fn release(&mut self, now: f64) -> Option<Turn> {
        if self.waiting.is_empty() {
            return None;
        }
        let reclaimable = self.reclaimable(now);
        let fitting = self.waiting.iter().filter_map(|turn| {
            let backend = self.fitting(turn, &reclaimable)?;
            Some(AdmittedTurn {
                turn: *turn,
                backend,
            })
        });
        let first = fitting.reduce(|first, other| {
            if self.precedes(&other.turn, &first.turn) {
                other
            } else {
                first
            }
        })?;
        let turn = first.turn;
        self.waiting.retain(|other| other.number != turn.number);
        self.admit(&turn, first.backend, now);
        Some(turn)
    }

    /// Records that a turn has ended. `tokens`: those of prompt and output.
    pub(crate) fn end(&mut self, turn: &SessionTurn, tokens: f64, now: f64) {
        let SessionTurn { session, is_last } = *turn;
        let Some(known) = self.sessions.get_mut(&session) else {
            return;
        };
        known.running = known.running.saturating_sub(1);
        known.idle_since = now;
        self.used[known.backend] += (tokens - known.tokens).max(0.0);
        known.tokens = known.tokens.max(tokens);
        let pauses = known.running == 0 && known.pauses_at_end;
        if pauses {
            self.pause(session);
        }
        // Clients tell Dynamo the end of a session, and `thunder-agent` does not read it.
        if is_last && self.rule == GateRule::Dynamo {
            self.pause(session);
            self.sessions.remove(&session);
        }
    }

    /// The step of Dynamo's rule that runs every five seconds.
    pub(crate) fn tick(&mut self) {
        if self.rule == GateRule::Dynamo {
            self.resume();
            (0..self.capacities.len()).for_each(|backend| self.relieve(backend));
        }
    }

    /// The backend to which a turn may be sent. `None`: the turn waits. `reclaimable`: see
    /// [`Self::reclaimable`].
    fn fitting(&self, turn: &Turn, reclaimable: &[f64]) -> Option<usize> {
        let known = self.sessions.get(&turn.session);
        if let Some(session) = known.filter(|session| !session.is_paused) {
            // Dynamo sends the turns of one session one after the other.
            let may_pass = self.rule == GateRule::ThunderAgent || session.running == 0;
            return may_pass.then_some(session.backend);
        }
        match self.rule {
            GateRule::ThunderAgent => {
                let fits = |backend: &usize| {
                    let needed = turn.tokens.min(self.capacities[*backend]);
                    self.room(*backend) + reclaimable[*backend] >= needed
                };
                match known {
                    Some(session) => Some(session.backend).filter(fits),
                    None => self.roomiest(fits),
                }
            }
            // The next tick decides about paused sessions.
            GateRule::Dynamo if known.is_some() => None,
            GateRule::Dynamo => self.roomiest(|backend| {
                let limit = PAUSE_ABOVE * self.capacities[*backend];
                self.used[*backend] + turn.tokens + SESSION_BUFFER <= limit
            }),
        }
    }

    /// Whether a turn passes before another one.
    fn precedes(&self, turn: &Turn, other: &Turn) -> bool {
        let class = |turn: &Turn| match self.sessions.get(&turn.session) {
            Some(session) if !session.is_paused => 0,
            Some(_) => 1,
            None => 2,
        };
        let by_class = class(turn).cmp(&class(other));
        let by_size = turn.tokens.total_cmp(&other.tokens);
        let by_arrival = turn.arrived.total_cmp(&other.arrived);
        let order = match self.rule {
            GateRule::ThunderAgent => by_class.then(by_size).then(by_arrival),
            GateRule::Dynamo => by_class.then(by_arrival),
        };
        order.is_lt()
    }

    fn admit(&mut self, turn: &Turn, backend: usize, now: f64) {
        let buffer = self.buffer();
        let session = self.sessions.entry(turn.session).or_insert(Session {
            is_paused: true,
            ..Session::default()
        });
        let tokens = session.tokens.max(turn.tokens);
        let added = if session.is_paused {
            tokens + buffer
        } else {
            tokens - session.tokens
        };
        session.backend = backend;
        session.tokens = tokens;
        session.running += 1;
        session.is_paused = false;
        if self.rule == GateRule::ThunderAgent {
            self.reclaim(backend, added.min(self.capacities[backend]), now);
        }
        self.used[backend] += added;
    }

    /// Tokens that are reserved for each session in addition to its context.
    const fn buffer(&self) -> f64 {
        match self.rule {
            GateRule::ThunderAgent => 0.0,
            GateRule::Dynamo => SESSION_BUFFER,
        }
    }

    fn room(&self, backend: usize) -> f64 {
        self.capacities[backend] - self.used[backend]
    }

    /// The backend with the most room among those that fit.
    fn roomiest(&self, fits: impl Fn(&usize) -> bool) -> Option<usize> {
        let fitting = (0..self.capacities.len()).filter(fits);
        fitting.max_by(|a, b| self.room(*a).total_cmp(&self.room(*b)))
    }

    /// The sessions that `thunder-agent` may pause, with their numbers: those without a turn in progress or waiting
    /// that have been idle for [`IDLE_LEASE`].
    fn expired(&self, now: f64) -> Vec<(usize, &Session)> {
        let queued: BTreeSet<usize> = self.waiting.iter().map(|turn| turn.session).collect();
        let all = self.sessions.iter().map(|(id, session)| (*id, session));
        let is_expired = |(id, session): &(usize, &Session)| {
            let is_idle = session.running == 0 && !session.is_paused && !queued.contains(id);
            is_idle && now - session.idle_since >= IDLE_LEASE
        };
        all.filter(is_expired).collect()
    }

    /// Tokens of the sessions of each backend that `thunder-agent` may pause.
    fn reclaimable(&self, now: f64) -> Vec<f64> {
        let mut tokens = vec![0.0; self.capacities.len()];
        if self.rule == GateRule::ThunderAgent {
            for (_, session) in self.expired(now) {
                tokens[session.backend] += session.tokens;
            }
        }
        tokens
    }

    /// Pauses sessions of a backend, the one that has been idle longest first, until it has room for `needed` tokens.
    fn reclaim(&mut self, backend: usize, needed: f64, now: f64) {
        if self.room(backend) >= needed {
            return;
        }
        let mut expired = self.expired(now);
        expired.retain(|(_, session)| session.backend == backend);
        expired.sort_by(|a, b| a.1.idle_since.total_cmp(&b.1.idle_since));
        let ids: Vec<usize> = expired.into_iter().map(|(id, _)| id).collect();
        for id in ids {
            if self.room(backend) >= needed {
                return;
            }
            self.pause(id);
        }
    }

    fn pause(&mut self, id: usize) {
        let buffer = self.buffer();
        if let Some(session) = self.sessions.get_mut(&id)
            && !session.is_paused
        {
            session.is_paused = true;
            session.pauses_at_end = false;
            self.used[session.backend] -= session.tokens + buffer;
        }
    }

    /// Lets paused sessions with a waiting turn continue, the largest first.
    fn resume(&mut self) {
        let is_paused = |turn: &&Turn| {
            let session = self.sessions.get(&turn.session);
            session.is_some_and(|session| session.is_paused)
        };
        let mut paused: Vec<Turn> = self.waiting.iter().filter(is_paused).copied().collect();
        paused.sort_by(|a, b| b.tokens.total_cmp(&a.tokens));
        for turn in paused {
            let fits = |backend: &usize| {
                let limit = RESUME_BELOW * self.capacities[*backend];
                self.used[*backend] + turn.tokens + SESSION_BUFFER <= limit
            };
            let backend = self.roomiest(fits);
            if let Some(backend) = backend
                && let Some(session) = self.sessions.get_mut(&turn.session)
                && session.is_paused
            {
                session.is_paused = false;
                session.backend = backend;
                session.tokens = session.tokens.max(turn.tokens);
                self.used[backend] += session.tokens + SESSION_BUFFER;
            }
        }
    }

    /// Pauses sessions of a backend that is too full.
    fn relieve(&mut self, backend: usize) {
        if self.used[backend] <= PAUSE_ABOVE * self.capacities[backend] {
            return;
        }
        let target = PAUSE_TARGET * self.capacities[backend];
        let here = |session: &Session| session.backend == backend && !session.is_paused;
        let of_backend = self.sessions.iter().filter(|(_, session)| here(session));
        let mut sizes: Vec<(f64, usize)> = of_backend
            .map(|(id, session)| (session.tokens, *id))
            .collect();
        sizes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (_, id) in &sizes {
            let is_idle = self.sessions[id].running == 0;
            if is_idle && self.used[backend] > target {
                self.pause(*id);
            }
        }
        if self.used[backend] <= target {
            return;
        }
        for (_, id) in sizes {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.pauses_at_end = session.running > 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(number: usize, session: usize, tokens: f64) -> Turn {
        Turn {
            number,
            session,
            tokens,
            arrived: number as f64,
        }
    }

    fn session_turn(session: usize, is_last: bool) -> SessionTurn {
        SessionTurn { session, is_last }
    }

    /// Ends a turn of a session that continues, with this number of tokens.
    fn ended(gate: &mut SessionGate, session: usize, tokens: f64, now: f64) {
        gate.end(&session_turn(session, false), tokens, now);
    }

    fn released(gate: &mut SessionGate, now: f64) -> Vec<usize> {
        std::iter::from_fn(|| gate.release(now))
            .map(|turn| turn.number)
            .collect()
    }

    #[test]
    fn thunder_agent_pauses_what_is_idle_longest() {
        let mut gate = SessionGate::new(GateRule::ThunderAgent, vec![100.0]);
        gate.enter(turn(0, 0, 60.0));
        gate.enter(turn(1, 1, 50.0));
        assert_eq!(released(&mut gate, 0.0), [1], "the smallest passes first");
        ended(&mut gate, 1, 55.0, 1.0);
        assert_eq!(released(&mut gate, 30.0), [0; 0], "session 1 may return");
        gate.enter(turn(2, 1, 58.0));
        assert_eq!(
            released(&mut gate, 30.5),
            [2],
            "turns of admitted sessions pass"
        );
        ended(&mut gate, 1, 60.0, 31.0);
        assert_eq!(released(&mut gate, 61.0), [0]);
        gate.enter(turn(3, 1, 65.0));
        assert_eq!(released(&mut gate, 62.0), [0; 0], "session 1 is paused");
        ended(&mut gate, 0, 61.0, 63.0);
        assert_eq!(released(&mut gate, 93.0), [3]);
        assert_eq!(gate.backend(1), Some(0));
    }

    #[test]
    fn dynamo_pauses_the_smallest_and_resumes_the_largest() {
        let mut gate = SessionGate::new(GateRule::Dynamo, vec![10_000.0]);
        for session in 0..3 {
            gate.enter(turn(session, session, 2_000.0 + session as f64));
        }
        assert_eq!(released(&mut gate, 0.0), [0, 1, 2]);
        ended(&mut gate, 0, 3_500.0, 1.0);
        ended(&mut gate, 1, 3_600.0, 1.0);
        gate.tick();
        gate.enter(turn(3, 0, 3_500.0));
        assert_eq!(
            released(&mut gate, 2.0),
            [3],
            "9,402 tokens are not above 95 %"
        );
        ended(&mut gate, 0, 3_800.0, 3.0);
        gate.tick();
        gate.enter(turn(4, 1, 3_600.0));
        gate.enter(turn(5, 0, 3_800.0));
        assert_eq!(
            released(&mut gate, 4.0),
            [5],
            "session 1 is the smallest idle one"
        );
        gate.end(&session_turn(0, true), 3_900.0, 5.0);
        assert_eq!(released(&mut gate, 6.0), [0; 0], "only a tick resumes");
        gate.tick();
        assert_eq!(released(&mut gate, 7.0), [4]);
    }

    #[test]
    fn a_second_follow_up_begins_a_new_session() {
        let request = |after| TraceRequest {
            after,
            ..TraceRequest::default()
        };
        let requests = [None, Some(0), Some(0), Some(2), None].map(request);
        let turns = session_turns(&requests).into_iter();
        let turns: Vec<_> = turns
            .map(|turn| turn.map(|turn| (turn.session, turn.is_last)))
            .collect();
        let expected = [(0, false), (0, true), (2, false), (2, true)].map(Some);
        assert_eq!((&turns[..4], turns[4]), (&expected[..], None));
    }
}
