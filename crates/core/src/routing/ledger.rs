//! What is known of one replica, from two sources: what it last said of itself, and what this
//! gateway has sent it and seen of its answers. [`Ledger::candidate`] makes of both what it is
//! believed to be now, in a few dozen loads and no lock.
//!
//! A report is true for the moment at which it was asked for. What this gateway sent since is
//! added, what it got back is taken away, and with age the report fades into the mean of what
//! others had there and what the gateway knows itself: `certainty = horizon ÷ (horizon + age)`.
//! There is no age at which a choice turns over.

use super::learned::Learned;
use super::prefix::PrefixTable;
use super::promise::{Counts, Own, Promise};
use super::said::{Real, Report, Said};
use super::slots::Slots;
use super::unanswered::{Ticket, Unanswered};
use super::{Candidate, Prefill, Prompt, kv_aware};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is known of one replica.
#[derive(Debug)]
#[repr(C)] // what decisions read first, and together
pub struct Ledger {
    epoch: Instant,
    /// In seconds.
    horizon: Real,
    in_flight: AtomicU32,
    pending: AtomicU32,
    /// Streams that have fallen silent after their first output.
    silent: AtomicU32,
    /// Requests that have ended; it may overflow.
    ended: AtomicU32,
    backlog: AtomicU64,
    tokens: AtomicU64,
    /// When a request was sent last: seconds from the epoch.
    sent: Real,
    /// When the backlog last became shorter by an output, or began: seconds from the epoch.
    progressed: Real,
    /// When the prompts of requests that are no streams will have been computed: their first
    /// outputs are not seen. In seconds from the epoch.
    unseen_until: Real,
    /// When the last of the silent streams was found silent: seconds from the epoch.
    silent_since: Real,
    unanswered: Unanswered,
    slots: Slots,
    said: Said,
    prefix: OnceLock<PrefixTable>,
    /// Its own part that only learning reads is the last.
    learned: Learned,
}

/// Seconds after which a replica that is not tried is hoped to be twice as fast.
const HOPE: f64 = 30.0;
/// Blocks that a table is made for when the size of the cache is not known.
const USUAL_BLOCKS: f64 = 8_192.0;

// === impl Ledger ===

impl Ledger {
    /// Nothing is known. Times are kept from `epoch` on; reports fade with `horizon`.
    pub fn new(epoch: Instant, horizon: Duration) -> Self {
        Self {
            epoch,
            horizon: Real::new(seconds_of(horizon)),
            in_flight: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            silent: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            backlog: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            sent: Real::new(0.0),
            progressed: Real::new(0.0),
            unseen_until: Real::new(0.0),
            silent_since: Real::new(0.0),
            unanswered: Unanswered::new(),
            slots: Slots::new(),
            said: Said::nothing(),
            prefix: OnceLock::new(),
            learned: Learned::default(),
        }
    }

    /// How fast reports fade.
    pub fn horizon(&self) -> Duration {
        Duration::try_from_secs_f64(self.horizon.get()).unwrap_or(Duration::MAX)
    }

    /// They fade with another horizon from now on.
    pub fn set_horizon(&self, horizon: Duration) {
        self.horizon.set(seconds_of(horizon));
    }

    /// What this gateway has at the replica.
    pub fn own(&self) -> Own {
        Own {
            in_flight: self.in_flight.load(Ordering::Relaxed),
            pending: self.pending.load(Ordering::Relaxed),
            backlog: self.backlog.load(Ordering::Relaxed),
            tokens: self.tokens.load(Ordering::Relaxed),
        }
    }

    /// What it has learned.
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// The sequences that the engine runs at once. `None`: not known.
    pub fn slots(&self) -> Option<f64> {
        self.slots.known()
    }

    /// What a report is worth now: 1 when it is new, ½ at the horizon, 0 when there is none.
    pub fn certainty(&self, now: Instant) -> f64 {
        self.certainty_at(self.seconds(now))
    }

    /// Bytes that the prefix table takes.
    pub fn prefix_bytes(&self) -> usize {
        self.prefix.get().map_or(0, PrefixTable::bytes)
    }

    /// What the replica is believed to be for this prompt, now.
    pub fn candidate(&self, prompt: &Prompt, now: Instant) -> Candidate {
        let (own, now) = (self.own(), self.seconds(now));
        let prefill = self.prefill(&own, now);
        let tokens_per_byte = self.learned.tokens_per_byte();
        let tokens = prompt.bytes as f64 * tokens_per_byte;
        let block_tokens = f64::from(prompt.block_bytes) * tokens_per_byte;
        let cached = (self.matched(prompt, block_tokens) as f64 * block_tokens).min(tokens);
        let certainty = self.certainty_at(now);
        let others = self.said.others(certainty);
        let waiting = self.said.waiting(&own, certainty);
        let others_waiting = (waiting - f64::from(own.pending)).clamp(0.0, others);
        let backlog = self.left_of_backlog(&own, &prefill, now)
            + others_waiting * self.learned.prompt_tokens();
        let capacity = self.said.capacity();
        Candidate {
            place: 0,
            in_flight: own.in_flight,
            weight: 1,
            has_adapter: true,
            key: 0,
            prompt: tokens,
            cached,
            output: self.learned.output_tokens(),
            backlog,
            prefill,
            is_tried: self.learned.ttft().is_some(),
            is_told: self.learned.is_told(),
            rested: (now - self.sent.get()).max(0.0),
            waiting,
            running: (f64::from(own.in_flight) + others - waiting).max(0.0),
            said: self.said.last(&own),
            kv_usage: self.said.kv_usage(&own, certainty),
            capacity,
            certainty,
            slot_wait: self.slot_wait(f64::from(own.in_flight) + others),
            overdue: self.overdue(&own, now),
        }
    }

    /// A request goes to the replica. Of one that is no stream, the first output is not seen: its
    /// prompt is taken to be computed at the replica's usual speed.
    pub fn promise(
        &self,
        candidate: &Candidate,
        prompt: &Prompt,
        is_stream: bool,
        now: Instant,
    ) -> Promise {
        let uncached = (candidate.prompt - candidate.cached).max(0.0) as u64;
        let since_epoch = self.seconds(now);
        let promise = Promise {
            tokens: (candidate.prompt + candidate.output) as u64,
            uncached,
            cached: candidate.cached as u64,
            work: candidate.backlog + uncached as f64,
            bytes: prompt.bytes,
            sent: now,
            began: None,
            ticket: self.expect(candidate, is_stream, since_epoch),
            waits_for_slot: candidate.slot_wait > 0.0,
            is_pending: is_stream,
        };
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.tokens.fetch_add(promise.tokens, Ordering::Relaxed);
        self.sent.set(since_epoch);
        self.begin_prefill(&promise, &candidate.prefill, since_epoch);
        if !prompt.blocks.is_empty() {
            let tokens_per_byte = candidate.prompt / prompt.bytes as f64;
            let block_tokens = f64::from(prompt.block_bytes) * tokens_per_byte;
            let table = || PrefixTable::new(self.blocks(block_tokens) as usize);
            self.prefix.get_or_init(table).touch(&prompt.blocks);
        }
        promise
    }

    /// The first output of a request came: its prompt has been computed.
    pub fn first_output(&self, promise: &mut Promise, now: Instant) {
        if !self.end_of_prefill(promise, now) {
            return;
        }
        promise.began = Some(now);
        if let Some(ticket) = promise.ticket.take() {
            self.unanswered.on_output(ticket);
        }
        let seconds = now.saturating_duration_since(promise.sent).as_secs_f64();
        // A wait for a slot says nothing of how fast prompts are computed.
        let work = (!promise.waits_for_slot).then_some(promise.work);
        self.learned.on_first_output(work, seconds);
    }

    /// A request has been answered: what it told of its tokens corrects what was believed.
    pub fn answered(&self, promise: &mut Promise, counts: &Counts) {
        // An error says nothing of the engine: the front end makes it.
        if promise.began.is_none() && counts.output.is_some_and(|output| output > 0) {
            promise.began = Some(promise.sent);
            if let Some(ticket) = promise.ticket.take() {
                self.unanswered.on_output(ticket);
            }
        }
        self.learned.on_counts(promise.bytes, promise.cached, counts);
    }

    /// A request is over, however it ended.
    pub fn give_back(&self, mut promise: Promise, now: Instant) {
        self.end_of_prefill(&mut promise, now);
        if let Some(ticket) = promise.ticket {
            self.unanswered.remove(ticket);
        }
        if let Some(began) = promise.began {
            self.learned.on_end(now.saturating_duration_since(began).as_secs_f64());
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.tokens.fetch_sub(promise.tokens, Ordering::Relaxed);
    }

    /// The replica said this when it was asked at `at`; `own` is what this gateway had there then.
    pub fn on_report(&self, report: &Report, own: &Own, at: Instant) {
        if self.said.set(report, own, self.seconds(at)) {
            self.unanswered.on_progress();
        }
        self.slots.on_report(report, self.ended.load(Ordering::Relaxed));
    }

    /// A stream has fallen silent after its first output, or goes on.
    pub fn on_silence(&self, is_silent: bool, now: Instant) {
        if is_silent {
            self.silent_since.set(self.seconds(now));
            self.silent.fetch_add(1, Ordering::Relaxed);
        } else {
            self.silent.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Streams that are silent now.
    pub fn silent(&self) -> u32 {
        self.silent.load(Ordering::Relaxed)
    }

    /// The replica has begun anew: its cache is empty.
    pub fn on_restart(&self) {
        self.slots.forget();
        if let Some(prefix) = self.prefix.get() {
            prefix.clear();
        }
    }

    fn begin_prefill(&self, promise: &Promise, prefill: &Prefill, now: f64) {
        if !promise.is_pending {
            let work = promise.uncached as f64 * prefill.per_token;
            self.unseen_until.set(self.unseen_until.get().max(now) + work);
            return;
        }
        self.backlog.fetch_add(promise.uncached, Ordering::Relaxed);
        if self.pending.fetch_add(1, Ordering::Relaxed) == 0 {
            self.progressed.set(now);
        }
    }

    fn end_of_prefill(&self, promise: &mut Promise, now: Instant) -> bool {
        let was_pending = std::mem::take(&mut promise.is_pending);
        if was_pending {
            self.pending.fetch_sub(1, Ordering::Relaxed);
            self.backlog.fetch_sub(promise.uncached, Ordering::Relaxed);
            self.progressed.set(self.seconds(now));
        }
        was_pending
    }

    /// A request without output is sent: when its output is expected. `None`: nobody knows.
    fn expect(&self, candidate: &Candidate, is_stream: bool, now: f64) -> Option<Ticket> {
        let expected = kv_aware::ttft(&kv_aware::Settings::default(), candidate, false);
        if is_stream {
            return Some(self.unanswered.add_stream(expected, now));
        }
        let answer = self.learned.answer()?;
        Some(self.unanswered.add_whole(expected, answer, now))
    }

    /// For how many seconds the engine has failed to do what was expected of it: since the output of
    /// the oldest request without output was due, or since all streams have been silent.
    fn overdue(&self, own: &Own, now: f64) -> f64 {
        let overdue = self.unanswered.overdue(now);
        let silent = self.silent();
        if silent == 0 || silent < own.in_flight.saturating_sub(own.pending) {
            return overdue;
        }
        overdue.max(now - self.silent_since.get())
    }

    /// Seconds until a slot of the engine is free for one more request, if this many are there: the
    /// slots become free one after the other, evenly over the time that an answer takes.
    fn slot_wait(&self, requests: f64) -> f64 {
        let (Some(slots), Some(answer)) = (self.slots.known(), self.learned.answer()) else {
            return 0.0;
        };
        (requests + 1.0 - slots).max(0.0) * answer / slots
    }

    /// The learned line. One that has not been tried for a while is hoped to be better than it was:
    /// else a replica that was slow once would never be asked again.
    fn prefill(&self, own: &Own, now: f64) -> Prefill {
        let line = self.learned.prefill();
        if own.pending > 0 {
            return line;
        }
        let untried = (now - self.progressed.get()).max(0.0);
        let hope = HOPE / (HOPE + untried);
        Prefill { base: line.base * hope, per_token: line.per_token * hope }
    }

    /// The backlog without what the first of those that wait has probably had computed by now. It
    /// is of a mean length: whose turn it is, is not known.
    fn left_of_backlog(&self, own: &Own, prefill: &Prefill, now: f64) -> f64 {
        let unseen = (self.unseen_until.get() - now).max(0.0);
        if own.pending == 0 && unseen <= 0.0 {
            return 0.0;
        }
        let speed = prefill.per_token.recip();
        let backlog = own.backlog as f64;
        let since = (now - self.progressed.get()).max(0.0);
        let mean = backlog / f64::from(own.pending.max(1));
        unseen * speed + (backlog - (since * speed).min(mean)).max(0.0)
    }

    fn matched(&self, prompt: &Prompt, block_tokens: f64) -> usize {
        let Some(prefix) = self.prefix.get() else { return 0 };
        let kept = self.blocks(block_tokens) * self.learned.retention();
        prefix.matched(&prompt.blocks, kept as usize)
    }

    /// Blocks of so many tokens that the replica's cache has room for.
    fn blocks(&self, block_tokens: f64) -> f64 {
        let capacity = self.said.capacity();
        capacity.map_or(USUAL_BLOCKS, |capacity| capacity as f64 / block_tokens.max(1.0))
    }

    fn certainty_at(&self, now: f64) -> f64 {
        let horizon = self.horizon.get();
        self.said.age(now).map_or(0.0, |age| horizon / (horizon + age))
    }

    /// From the epoch.
    fn seconds(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.epoch).as_secs_f64()
    }
}

/// A horizon in seconds. None at all would make the newest report worth nothing.
fn seconds_of(horizon: Duration) -> f64 {
    horizon.as_secs_f64().max(0.001)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
