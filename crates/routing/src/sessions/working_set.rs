//! The contexts of the live sessions of a set of backends, and the rule which turns may run.
//!
//! ```text
//! turn      one request. It continues a context if its prompt extends prompt and response of one that is idle
//! context   what one prompt and its response occupy in a KV cache. Blocks that several have count once
//! need      Σ tokens of contexts that are running, or idle within the window + tokens of shared blocks
//! window    the time within which most sessions return; while sessions wait for long, the time within which a return is
//!           probable, see `return_times`
//! ```
//!
//! - A turn that continues a context, or that belongs to the session of a live one, runs.
//! - Any other turn runs while nothing shows that engines evict what returning sessions need, or turns meet their
//!   objectives (`evictions`).
//! - Then it runs if it fits into the capacity beside the need when all have grown as sessions do, or if no
//!   turn is running. Else it waits.
//! - A turn that has waited too long runs, although it does not fit, or is refused if it misses its objective.
//! - Then, and when the sessions in progress have grown beyond the capacity, the contexts that have been idle longest
//!   are left out until the others fit: their next turns wait. A running context is never left out.
//! - An idle context counts in full within the window, also if its session has ended: an engine evicts what has
//!   not been used for the longest time, so it keeps the context of an ended session, too, while others are idle for longer.
//! - An idle context holds nothing that others wait for, so no set of sessions can block each other.
//!
//! All is a function of the calls and of the times in them.

use super::block_table::{BlockTable, ContextId, OwnTokens};
use super::evictions::Evictions;
use super::growth::Growth;
use super::prompt_ends::PromptEnds;
use super::return_times::ReturnTimes;
use super::turn::{Turn, TurnKind, TurnTokens};
use crate::PromptFingerprint;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_protocol::openai::prompt::TOKENS_PER_BYTE;

/// The contexts of a set of backends.
#[derive(Debug)]
pub struct WorkingSet {
    /// Capacity of the KV caches in tokens. `None`: not known, so no turn waits.
    pub capacity: Option<u64>,
    contexts: BTreeMap<ContextId, Context>,
    blocks: BlockTable,
    ends: PromptEnds,
    /// Number of contexts of each session that has a name, by the hash of the name.
    sessions: HashMap<u64, usize>,
    returns: ReturnTimes,
    growth: Growth,
    evictions: Evictions,
    tokens_per_byte: f64,
    next_id: ContextId,
    running: usize,
    need: Need,
    /// `None`: no turn has had to wait.
    held: Option<Held>,
}

/// The time in which turns had to wait, without a pause of [`HELD_PAUSE`].
#[derive(Debug, Clone, Copy)]
struct Held {
    since: Instant,
    last: Instant,
}

/// What the live sessions need.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Need {
    /// Tokens in KV caches now.
    pub tokens: f64,
    /// The same, when the sessions have grown as sessions do.
    pub grown_tokens: f64,
    /// Number of contexts.
    pub contexts: usize,
    /// When the numbers were computed from all contexts.
    computed_at: Option<Instant>,
}

#[derive(Debug)]
struct Context {
    prompt: Arc<PromptFingerprint>,
    session: Option<u64>,
    /// Tokens of the blocks that no other context has.
    own_tokens: u64,
    block_tokens: u64,
    /// Tokens of the prompt after its last block, and of the response.
    other_tokens: u64,
    /// The tokens that no other context had at its first turn.
    first_tokens: f64,
    /// Whether it has had more than one turn.
    has_returned: bool,
    /// Tokens of the last prompt whose turn has ended, as the engine reported them. 0: not known.
    known_tokens: u64,
    /// Tokens of the last response. 0: not known.
    answer_tokens: u64,
    /// The end of the last turn. `None`: a turn is running.
    idle_since: Option<Instant>,
    /// Number of intervals that have ended since then.
    intervals: usize,
}

/// Maximum number of contexts, and of different blocks. Further turns run and are not counted.
const MAX_CONTEXTS: usize = 16_384;
const MAX_BLOCKS: usize = 1 << 20;
/// Maximum number of contexts of one named session whose further turns run at once. A client could otherwise let
/// all its requests pass under one name.
const MAX_PARALLEL: usize = 16;
/// Factor of the capacity up to which the sessions in progress are remembered while none waits for room.
const UNHELD: f64 = 4.0;
/// Bytes that a next turn adds at least, however long the response was: clients may leave out its reasoning.
const MAX_ADDED_BYTES: f64 = 256.0;
/// Number of blocks of a prompt in which the end of an earlier prompt is searched.
const SEARCHED_BLOCKS: usize = 64;
/// Time after which the need is computed again.
const COMPUTED_EVERY: Duration = Duration::from_millis(100);
/// Weight of one request in the moving average of tokens per byte.
const RATIO_WEIGHT: f64 = 0.1;
/// Time without a turn that had to wait, after which the sessions fit again.
const HELD_PAUSE: Duration = Duration::from_secs(1);
/// Time for which turns must have had to wait so that the window is long. Below the capacity a turn waits for a moment
/// only; then the contexts of sessions that have just ended should not count for long.
const HELD_LONG: Duration = Duration::from_secs(5);

impl WorkingSet {
    /// An empty set.
    pub fn new(capacity: Option<u64>) -> Self {
        Self {
            capacity,
            contexts: BTreeMap::new(),
            blocks: BlockTable::default(),
            ends: PromptEnds::default(),
            sessions: HashMap::new(),
            returns: ReturnTimes::default(),
            growth: Growth::default(),
            evictions: Evictions::default(),
            tokens_per_byte: TOKENS_PER_BYTE,
            next_id: 0,
            running: 0,
            need: Need::default(),
            held: None,
        }
    }

    /// Whether new sessions wait for room.
    pub fn holds_sessions(&self) -> bool {
        self.evictions.hold_sessions()
    }

    /// Whether no session is live.
    pub fn is_empty(&self) -> bool {
        self.contexts.is_empty()
    }

    /// Returns what the live sessions need. At most once in 100 ms, forgets the sessions that have ended and
    /// computes the need again.
    pub fn need(&mut self, now: Instant) -> Need {
        let due = |at: Instant| now.saturating_duration_since(at) >= COMPUTED_EVERY;
        if self.need.computed_at.is_none_or(due) {
            self.forget_ended(now);
            self.need = self.compute_need(now);
            self.judge_evictions(now);
            if let Some(limit) = self.limit() {
                self.make_room(0.0, limit, now);
            }
        }
        self.need
    }

    /// Whether a turn may run now.
    pub fn turn_kind(&mut self, turn: &Turn<'_>, now: Instant) -> TurnKind {
        let Some(capacity) = self.capacity else {
            return TurnKind::Unlimited;
        };
        let need = self.need(now);
        self.judge_evictions(now);
        if self.is_of_live_session(turn) {
            return TurnKind::OfLiveSession;
        }
        let added = self.added_tokens(turn);
        let tokens = need.grown_tokens + self.growth.grown(added);
        let fits = self.running == 0 || tokens <= capacity as f64;
        if fits || !self.holds_sessions() {
            return TurnKind::Fits;
        }
        self.hold(now);
        TurnKind::Waits
    }

    /// Counts a turn that runs. `makes_room`: it runs although it does not fit, so idle contexts are left out.
    /// `None`: the turn is not counted.
    pub fn begin(&mut self, turn: &Turn<'_>, makes_room: bool, now: Instant) -> Option<ContextId> {
        let limit = self.limit()?;
        self.need(now);
        if let Some(id) = self.continued(turn) {
            self.resume(id, turn, now);
            return Some(id);
        }
        let blocks = self.blocks.len() + turn.prompt.blocks.len();
        if self.contexts.len() >= MAX_CONTEXTS || blocks > MAX_BLOCKS {
            return None;
        }
        if makes_room {
            self.make_room(self.added_tokens(turn), limit, now);
        }
        Some(self.insert(turn))
    }

    /// Counts a turn that another gateway has sent. When it ends is not known, so its context counts as idle from now
    /// on: this gateway may continue it.
    pub fn count_peer(&mut self, prompt: &Arc<PromptFingerprint>, now: Instant) {
        let turn = Turn {
            prompt,
            session: None,
            output: 0,
        };
        if let Some(id) = self.begin(&turn, false, now) {
            self.end(id, None, now);
        }
    }

    /// The turn of a context has ended. `None`: its number of tokens is not known.
    pub fn end(&mut self, id: ContextId, tokens: Option<TurnTokens>, now: Instant) {
        let Some(context) = self.contexts.get_mut(&id) else {
            return;
        };
        if context.idle_since.is_some() {
            return;
        }
        self.running -= 1;
        context.idle_since = Some(now);
        context.intervals = 0;
        let Some(tokens) = tokens else { return };
        let all = tokens.prompt + tokens.output;
        context.other_tokens = all.saturating_sub(context.block_tokens);
        context.answer_tokens = tokens.output;
        let known = std::mem::replace(&mut context.known_tokens, tokens.prompt);
        self.evictions.learn(known, &tokens);
    }

    /// Learns how many tokens a prompt of text has.
    pub fn learn_tokens(&mut self, prompt: &PromptFingerprint, tokens: u64) {
        if prompt.media == 0 && prompt.bytes > 0 {
            let ratio = (tokens as f64 / prompt.bytes as f64).clamp(0.01, 1.0);
            self.tokens_per_byte += RATIO_WEIGHT * (ratio - self.tokens_per_byte);
        }
    }

    /// The tokens that the sessions in progress may occupy. `None`: the capacity is not known.
    fn limit(&self) -> Option<f64> {
        let capacity = self.capacity? as f64;
        if self.holds_sessions() {
            Some(capacity)
        } else {
            Some(UNHELD * capacity)
        }
    }

    fn judge_evictions(&mut self, now: Instant) {
        let held = self.held.map(|held| held.last);
        let capacity = self.capacity.map_or(f64::INFINITY, |it| it.max(1) as f64);
        self.evictions.judge(self.need.tokens / capacity, held, now);
    }

    fn hold(&mut self, now: Instant) {
        let before = self.held.filter(|held| now < held.last + HELD_PAUSE);
        self.held = Some(Held {
            since: before.map_or(now, |held| held.since),
            last: now,
        });
    }

    /// The time for which an idle context counts.
    fn window(&self, now: Instant) -> Duration {
        let probable = self.returns.probable_return();
        let is_long = |held: Held| now < held.last + HELD_PAUSE && now >= held.since + HELD_LONG;
        if self.held.is_some_and(is_long) {
            probable
        } else {
            probable.min(self.returns.most_returns())
        }
    }

    fn is_of_live_session(&self, turn: &Turn<'_>) -> bool {
        let contexts = turn.session.and_then(|session| self.sessions.get(&session));
        let is_named = contexts.is_some_and(|contexts| *contexts < MAX_PARALLEL);
        is_named || self.continued(turn).is_some()
    }

    /// The idle context whose prompt the turn extends. `None`: there is none.
    fn continued(&self, turn: &Turn<'_>) -> Option<ContextId> {
        let blocks = &turn.prompt.blocks;
        let known = &blocks[..self.blocks.known_prefix(blocks)];
        let searched = known.iter().rev().take(SEARCHED_BLOCKS);
        let mut ended = searched.flat_map(|hash| self.ends.ending_after(*hash, turn.prompt.bytes));
        ended.find(|id| {
            let context = self.contexts.get(id);
            context.is_some_and(|it| it.is_continued_by(turn.prompt, self.tokens_per_byte))
        })
    }

    /// Tokens that a turn adds, if it continues no context.
    fn added_tokens(&self, turn: &Turn<'_>) -> f64 {
        let prompt = turn.prompt;
        let known = self.blocks.known_prefix(&prompt.blocks) as f64;
        let tokens = prompt.tokens(self.tokens_per_byte);
        (tokens - known * prompt.block_tokens(self.tokens_per_byte)).max(0.0) + turn.output as f64
    }

    fn insert(&mut self, turn: &Turn<'_>) -> ContextId {
        let id = self.next_id;
        self.next_id += 1;
        let context = Context {
            prompt: turn.prompt.clone(),
            session: turn.session,
            own_tokens: 0,
            block_tokens: 0,
            other_tokens: 0,
            first_tokens: self.added_tokens(turn),
            has_returned: false,
            known_tokens: 0,
            answer_tokens: 0,
            idle_since: None,
            intervals: 0,
        };
        self.need.tokens += context.first_tokens;
        self.need.grown_tokens += self.growth.grown(context.first_tokens);
        self.need.contexts += 1;
        self.contexts.insert(id, context);
        self.running += 1;
        if let Some(session) = turn.session {
            *self.sessions.entry(session).or_insert(0) += 1;
        }
        self.extend(id, 0, turn);
        id
    }

    /// Begins the next turn of an idle context.
    fn resume(&mut self, id: ContextId, turn: &Turn<'_>, now: Instant) {
        let Some(context) = self.contexts.get_mut(&id) else {
            return;
        };
        let Some(idle_since) = context.idle_since.take() else {
            return;
        };
        let interval = self
            .returns
            .interval_of(now.saturating_duration_since(idle_since));
        (context.intervals..interval).for_each(|passed| self.returns.stayed_away(passed));
        self.returns.returned(interval);
        self.running += 1;
        context.has_returned = true;
        // Its prompt is one that others share, so this turn may be of another session.
        if context.own_tokens == 0 {
            context.known_tokens = 0;
        }
        let before = context.tokens();
        let blocks = context.prompt.blocks.len();
        self.ends.remove(&context.prompt, id);
        context.prompt = turn.prompt.clone();
        self.extend(id, blocks, turn);
        let Some(context) = self.contexts.get(&id) else {
            return;
        };
        self.growth
            .learn(context.tokens() as f64 - context.first_tokens);
        let added = context.tokens().saturating_sub(before) as f64;
        self.need.tokens += added;
        self.need.grown_tokens += added;
    }

    /// Adds the blocks of a turn from the block `from` on to a context.
    fn extend(&mut self, id: ContextId, from: usize, turn: &Turn<'_>) {
        let prompt = turn.prompt;
        let tokens = prompt.block_tokens(self.tokens_per_byte).max(1.0) as u64;
        for hash in prompt.blocks.iter().skip(from) {
            let change = self.blocks.add(*hash, id, tokens);
            self.apply(&change);
        }
        self.ends.insert(prompt, id);
        let Some(context) = self.contexts.get_mut(&id) else {
            return;
        };
        context.block_tokens += tokens * prompt.blocks.len().saturating_sub(from) as u64;
        let prompt_tokens = prompt.tokens(self.tokens_per_byte) as u64;
        context.other_tokens = prompt_tokens.saturating_sub(context.block_tokens) + turn.output;
    }

    fn apply(&mut self, change: &OwnTokens) {
        match *change {
            OwnTokens::More { context, tokens } => {
                if let Some(context) = self.contexts.get_mut(&context) {
                    context.own_tokens += tokens;
                }
            }
            OwnTokens::Less { context, tokens } => {
                if let Some(context) = self.contexts.get_mut(&context) {
                    context.own_tokens -= tokens;
                }
            }
            OwnTokens::Same => {}
        }
    }

    /// Leaves out idle contexts until `added` further tokens fit, those first that have been idle longest.
    fn make_room(&mut self, added: f64, capacity: f64, now: Instant) {
        if self.need.tokens + added <= capacity {
            return;
        }
        let idle = self
            .contexts
            .iter()
            .filter_map(|(id, it)| Some((it.idle_since?, *id)));
        let mut idle: Vec<(Instant, ContextId)> = idle.collect();
        idle.sort_unstable();
        let window = self.window(now);
        for (since, id) in idle {
            if self.need.tokens + added <= capacity {
                break;
            }
            let tokens = self.contexts.get(&id).map_or(0, Context::tokens);
            if now.saturating_duration_since(since) < window {
                self.need.tokens -= tokens as f64;
            }
            self.remove(id);
        }
        self.need = self.compute_need(now);
    }

    /// Counts the intervals in which idle sessions have not returned, and forgets the contexts of those that
    /// count as ended.
    fn forget_ended(&mut self, now: Instant) {
        let mut ended = Vec::new();
        for (id, context) in &mut self.contexts {
            let Some(idle_since) = context.idle_since else {
                continue;
            };
            let idle = now.saturating_duration_since(idle_since);
            let interval = self.returns.interval_of(idle);
            (context.intervals..interval).for_each(|passed| self.returns.stayed_away(passed));
            context.intervals = interval;
            if idle < ReturnTimes::LONGEST {
                continue;
            }
            ended.push(*id);
            if !context.has_returned {
                self.growth.learn(0.0);
            }
        }
        for id in ended {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: ContextId) {
        let Some(context) = self.contexts.remove(&id) else {
            return;
        };
        for hash in &context.prompt.blocks {
            let change = self.blocks.remove(*hash, id);
            self.apply(&change);
        }
        self.ends.remove(&context.prompt, id);
        if let Some(session) = context.session
            && let Some(contexts) = self.sessions.get_mut(&session)
        {
            *contexts -= 1;
            if *contexts == 0 {
                self.sessions.remove(&session);
            }
        }
    }

    fn compute_need(&self, now: Instant) -> Need {
        let window = self.window(now);
        let shared_tokens = self.blocks.shared_tokens as f64;
        let mut need = Need {
            tokens: shared_tokens,
            grown_tokens: shared_tokens,
            contexts: 0,
            computed_at: Some(now),
        };
        for context in self.contexts.values() {
            let idle = context
                .idle_since
                .map(|since| now.saturating_duration_since(since));
            if idle.is_none_or(|idle| idle < window) {
                let tokens = context.tokens() as f64;
                need.tokens += tokens;
                need.grown_tokens += tokens.max(self.growth.grown(context.first_tokens));
                need.contexts += 1;
            }
        }
        need
    }
}

impl Context {
    /// Whether a prompt that begins with all blocks of this one is the next turn: it is long enough to contain half of
    /// the response. A shorter one is another question about the same text, unless it is the same prompt again.
    fn is_continued_by(&self, prompt: &PromptFingerprint, tokens_per_byte: f64) -> bool {
        let is_same = prompt.whole != 0 && prompt.whole == self.prompt.whole;
        let answer_bytes = self.answer_tokens as f64 / tokens_per_byte;
        let added = (answer_bytes / 2.0).min(MAX_ADDED_BYTES) as u64;
        let is_next = is_same || prompt.bytes >= self.prompt.bytes + added;
        self.idle_since.is_some() && is_next
    }

    fn tokens(&self) -> u64 {
        self.own_tokens + self.other_tokens
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod closed_loop_tests;
