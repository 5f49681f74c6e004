//! The pulse of one stream: when its last output came and whom it waits for, in atomics that the
//! stream stores and a sweep over all of them reads.

use super::live::Replica;
use super::open::{Phase, Subject};
use super::terms::Terms;
use crate::record::Stall;
use futures_util::task::AtomicWaker;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The state of one stream that others may look at.
pub struct Pulse {
    pub(super) replica: Arc<dyn Replica>,
    epoch: Instant,
    pub(super) terms: Terms,
    pub(super) subject: Subject,
    /// Tokens so far, by the number of events where they do not tell.
    tokens: AtomicU64,
    /// Nanoseconds from the epoch to the last output; 0 before the first and after the end.
    last_output: AtomicU64,
    /// Nanoseconds from the epoch to the moment by which the first output must have come; 0 after it.
    due: AtomicU64,
    /// Nanoseconds from the epoch to the last byte, where comments are to be put.
    last_byte: AtomicU64,
    wants_comment: AtomicBool,
    /// The replica owes the next byte, not the client the taking of the last.
    waits_for_replica: AtomicBool,
    is_stalled: AtomicBool,
    stall: Mutex<Option<Stall>>,
    is_cut: AtomicBool,
    waker: AtomicWaker,
}

/// A client that has not taken what came for this long holds its stream up.
const HELD: Duration = Duration::from_secs(1);

impl Pulse {
    pub(super) fn new(
        replica: Arc<dyn Replica>,
        subject: Subject,
        terms: Terms,
        epoch: Instant,
        now: Instant,
    ) -> Self {
        let since_epoch = |moment| nanos(epoch, moment);
        Self {
            replica,
            epoch,
            subject,
            tokens: AtomicU64::new(0),
            last_output: AtomicU64::new(0),
            due: AtomicU64::new(terms.first_output_by.map(since_epoch).unwrap_or_default()),
            last_byte: AtomicU64::new(since_epoch(now)),
            wants_comment: AtomicBool::new(false),
            terms,
            waits_for_replica: AtomicBool::new(true),
            is_stalled: AtomicBool::new(false),
            stall: Mutex::default(),
            is_cut: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        }
    }

    /// Output came. Gives the stall that it ends.
    pub fn on_output(&self, now: Instant, gap: Option<Duration>) -> Option<Stall> {
        self.last_output.store(nanos(self.epoch, now), Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
        if let Some(gap) = gap {
            self.replica.on_gap(gap);
        }
        self.resume(now)
    }

    /// So many tokens have come so far.
    pub fn count(&self, tokens: u64) {
        self.tokens.store(tokens, Ordering::Relaxed);
    }

    /// Tokens that have come so far.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// What it does now, and how long ago its last output came, if it is not over.
    pub(super) fn phase(&self, now: Instant) -> (Phase, Option<Duration>) {
        let last = self.last_output.load(Ordering::Relaxed);
        let since = |last| now.saturating_duration_since(self.epoch + Duration::from_nanos(last));
        let silence = (last > 0).then(|| since(last));
        let is_waiting = self.waits_for_replica.load(Ordering::Relaxed);
        let phase = match silence {
            None if self.tokens() > 0 => Phase::Ending,
            None => Phase::Prefill,
            Some(_) if self.is_stalled.load(Ordering::Relaxed) => Phase::Stalled,
            Some(silence) if !is_waiting && silence >= HELD => Phase::Held,
            Some(_) => Phase::Decode,
        };
        (phase, silence)
    }

    /// Nothing more will come, or has to. Gives the stall that it ends.
    pub fn on_end(&self, now: Instant) -> Option<Stall> {
        self.last_output.store(0, Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
        self.resume(now)
    }

    /// Bytes came.
    pub fn on_bytes(&self, now: Instant) {
        self.wait_for_replica(false);
        if self.terms.rules.keep_alive.is_some() {
            self.last_byte.store(nanos(self.epoch, now), Ordering::Relaxed);
        }
    }

    /// Whether the client is to be told that the stream lives, by a comment. Asked for once.
    pub fn take_comment(&self, now: Instant) -> bool {
        let wants_comment = self.wants_comment.swap(false, Ordering::Relaxed);
        if wants_comment {
            self.last_byte.store(nanos(self.epoch, now), Ordering::Relaxed);
        }
        wants_comment
    }

    pub(super) fn keep_alive(&self, now: Instant) {
        let Some(every) = self.terms.rules.keep_alive else { return };
        let last_byte = self.epoch + Duration::from_nanos(self.last_byte.load(Ordering::Relaxed));
        let is_due = self.waits_for_replica.load(Ordering::Relaxed);
        if is_due && now.saturating_duration_since(last_byte) >= every {
            self.wants_comment.store(true, Ordering::Relaxed);
            self.waker.wake();
        }
    }

    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        due > 0 && nanos(self.epoch, now) >= due
    }

    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.waker.wake();
    }

    /// The replica owes the next byte, or the client has not taken the last.
    pub fn wait_for_replica(&self, is_waiting: bool) {
        self.waits_for_replica.store(is_waiting, Ordering::Relaxed);
    }

    /// Whether the stream is to be cut. `waker` is woken when that changes.
    pub fn is_cut(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        self.is_cut.load(Ordering::Relaxed)
    }

    /// How long the replica has been silent between two outputs.
    pub(super) fn silence(&self, now: Instant) -> Option<Duration> {
        let last = self.last_output.load(Ordering::Relaxed);
        let is_due = last > 0 && self.waits_for_replica.load(Ordering::Relaxed);
        is_due.then(|| now.saturating_duration_since(self.epoch + Duration::from_nanos(last)))
    }

    pub(super) fn stall(&self, now: Instant) {
        let mut stall = self.stall.lock().unwrap_or_else(PoisonError::into_inner);
        let last = self.last_output.load(Ordering::Relaxed);
        // It may have ended just now.
        if stall.is_some() || last == 0 {
            return;
        }
        *stall = Some(Stall {
            since: self.epoch + Duration::from_nanos(last),
            seen: now,
            until: None,
            condition: self.replica.condition(now),
        });
        self.is_stalled.store(true, Ordering::Release);
        self.replica.on_stall(true);
    }

    fn resume(&self, now: Instant) -> Option<Stall> {
        if !self.is_stalled.load(Ordering::Acquire) {
            return None;
        }
        self.end_stall(now)
    }

    fn end_stall(&self, now: Instant) -> Option<Stall> {
        let mut stall = self.stall.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_stalled.store(false, Ordering::Release);
        let ended = stall.take()?;
        self.replica.on_stall(false);
        Some(Stall { until: Some(now), ..ended })
    }
}

/// From the epoch to a moment after it; never 0.
fn nanos(epoch: Instant, moment: Instant) -> u64 {
    (moment.saturating_duration_since(epoch).as_nanos() as u64).max(1)
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulse").field("last_output", &self.last_output).finish_non_exhaustive()
    }
}
