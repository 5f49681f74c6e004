//! Activity of one response stream: the time of its last output, and whether it waits for its backend or its
//! client. The stream stores both in atomics, which a periodic sweep over all streams reads.

use super::backend_monitor::BackendMonitor;
use super::loss::{LOST_SILENCE, Loss, MOVE_SILENCE};
use super::stream_policy::StreamPolicy;
use super::stream_snapshot::{StreamInfo, StreamPhase};
use crate::record::Stall;
use futures_util::task::AtomicWaker;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::{AtomicCount, AtomicFlag, AtomicInstant};
use tokenweir_protocol::mutex::lock;

/// The state of one open stream that sweeps and snapshots read.
pub struct StreamActivity {
    pub(super) backend: Arc<dyn BackendMonitor>,
    pub(super) terms: StreamPolicy,
    pub(super) subject: StreamInfo,
    /// Tokens so far. An event counts with its reported token count. Without one, it counts as one token.
    tokens: AtomicU64,
    /// Whether all output so far is reasoning.
    is_reasoning: AtomicFlag,
    /// The time of the last output. `None` before the first output and after the last event.
    last_output_at: AtomicInstant,
    /// The next deadline: for the first output or, after the last event, for the end of the body. `None`: no
    /// deadline.
    deadline: AtomicInstant,
    /// The time of the last bytes of the backend without output. Output has its own time, because storing a
    /// second time would cost instructions for each chunk.
    heard_at: AtomicInstant,
    /// The time of the last byte for the client. Maintained only if keep-alive comments are on.
    last_byte_at: AtomicInstant,
    needs_keep_alive: AtomicFlag,
    /// The time at which the client's key was removed. `None` while the key is valid.
    revoked_at: AtomicInstant,
    /// Whether the stream waits for bytes of its backend, not for its client to read.
    waits_for_backend: AtomicFlag,
    is_stalled: AtomicBool,
    stall: Mutex<Option<Stall>>,
    is_aborted: AtomicFlag,
    /// Whether another backend could continue the stream.
    is_movable: AtomicFlag,
    /// Whether the stream is to continue at another backend.
    is_moved: AtomicFlag,
    /// When the stream is to try again to continue at another backend. `None`: no try is planned.
    move_at: AtomicInstant,
    /// Whether a sweep found that the backend is down and sends nothing.
    is_lost: AtomicFlag,
    /// The time of the backend's last byte at the last attempt of the stream to leave its backend because it
    /// was down.
    left_after: AtomicInstant,
    waker: AtomicWaker,
    /// The bytes that the client of a WebSocket has sent. `None`: the stream is no WebSocket.
    tunnel: Option<TunnelBytes>,
}

/// The bytes that the client of a WebSocket has sent.
struct TunnelBytes {
    /// Number of bytes that the client has sent so far.
    count: Arc<AtomicCount>,
    /// The value of `count` at the last sweep.
    swept_count: AtomicCount,
}

/// Time between two tries to move a stream to another backend.
const MOVE_PAUSE: Duration = Duration::from_secs(1);

/// Silence of a stream whose client does not read, after which the phase of the stream is
/// [`StreamPhase::WriteStalled`].
const WRITE_BLOCKED_AFTER: Duration = Duration::from_secs(1);

/// Maximum time from the last event to the end of the body. Engines usually send both at once.
const BODY_END_TIME: Duration = Duration::from_secs(30);

/// Grace period of an event stream after the removal of its client's key, so that replacing a key breaks few
/// responses. A WebSocket has no end of its own, and gets no grace period.
const REVOKED_STREAM_TIME: Duration = Duration::from_secs(30);

impl StreamActivity {
    pub(super) fn new(
        backend: Arc<dyn BackendMonitor>,
        subject: StreamInfo,
        terms: StreamPolicy,
        tunnel: Option<Arc<AtomicCount>>,
        now: Instant,
    ) -> Self {
        let tunnel = tunnel.map(|count| TunnelBytes {
            count,
            swept_count: AtomicCount::default(),
        });
        let activity = Self {
            backend,
            subject,
            tokens: AtomicU64::new(0),
            is_reasoning: AtomicFlag::default(),
            last_output_at: AtomicInstant::default(),
            deadline: AtomicInstant::default(),
            heard_at: AtomicInstant::default(),
            last_byte_at: AtomicInstant::default(),
            needs_keep_alive: AtomicFlag::default(),
            revoked_at: AtomicInstant::default(),
            terms,
            waits_for_backend: AtomicFlag::new(true),
            is_stalled: AtomicBool::new(false),
            stall: Mutex::default(),
            is_aborted: AtomicFlag::default(),
            is_movable: AtomicFlag::default(),
            is_moved: AtomicFlag::default(),
            move_at: AtomicInstant::default(),
            is_lost: AtomicFlag::default(),
            left_after: AtomicInstant::default(),
            waker: AtomicWaker::new(),
            tunnel,
        };
        activity
            .last_output_at
            .set(activity.tunnel.as_ref().map(|_| now));
        activity.deadline.set(activity.terms.first_output_by);
        activity.heard_at.set(Some(now));
        activity.last_byte_at.set(Some(now));
        activity
    }

    /// Records output, and the gap before it. Returns the stall that this output ends, if any.
    pub fn on_output(&self, now: Instant, gap: Option<Duration>) -> Option<Stall> {
        self.last_output_at.set(Some(now));
        self.deadline.set(None);
        if let Some(gap) = gap {
            self.backend.on_gap(gap, now);
        }
        self.end_stall_if_any(now)
    }

    /// Whether the stream is a WebSocket.
    pub fn is_tunnel(&self) -> bool {
        self.tunnel.is_some()
    }

    /// Records bytes of the backend or of the client of a WebSocket.
    pub fn on_tunnel_bytes(&self, now: Instant) {
        self.last_output_at.set(Some(now));
    }

    /// Whether the WebSocket had no bytes in either direction for `limit`. Only sweeps detect bytes of the
    /// client, so their time is as exact as the sweep interval.
    pub(super) fn is_tunnel_idle(&self, limit: Duration, now: Instant) -> bool {
        let Some(tunnel) = &self.tunnel else {
            return false;
        };
        let count = tunnel.count.get();
        if tunnel.swept_count.get() != count {
            tunnel.swept_count.set(count);
            self.on_tunnel_bytes(now);
        }
        let last_bytes_at = self.last_output_at.get();
        last_bytes_at.is_none_or(|last| now.saturating_duration_since(last) >= limit)
    }

    /// Sets the number of tokens so far, and whether all of them are reasoning.
    pub fn set_progress(&self, tokens: u64, is_reasoning: bool) {
        self.tokens.store(tokens, Ordering::Relaxed);
        self.is_reasoning.set(is_reasoning);
    }

    /// Whether all output so far is reasoning, and more can follow.
    pub(super) fn is_reasoning(&self) -> bool {
        self.is_reasoning.get() && self.last_output_at.get().is_some()
    }

    pub(super) fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// The phase, and the time since the last output. `None`: no output yet, or the stream ended.
    pub(super) fn phase(&self, now: Instant) -> (StreamPhase, Option<Duration>) {
        let silent_for = self
            .last_output_at
            .get()
            .map(|last| now.saturating_duration_since(last));
        let is_waiting = self.waits_for_backend.get();
        let phase = match silent_for {
            None if self.tokens() > 0 => StreamPhase::Closing,
            None => StreamPhase::NoOutput,
            Some(_) if self.is_stalled.load(Ordering::Relaxed) => StreamPhase::Stalled,
            Some(silent_for) if !is_waiting && silent_for >= WRITE_BLOCKED_AFTER => {
                StreamPhase::WriteStalled
            }
            Some(_) => StreamPhase::Decode,
        };
        (phase, silent_for)
    }

    /// Records the last event of the stream. Returns the stall that this event ends, if any.
    pub fn on_end(&self, now: Instant) -> Option<Stall> {
        self.heard_at.set(Some(now));
        self.last_output_at.set(None);
        self.deadline.set(Some(now + BODY_END_TIME));
        self.end_stall_if_any(now)
    }

    /// Ends the stream and its stall, if any, when its entry is dropped. A concurrent sweep may be about to
    /// report a stall. Both take the lock of the stall: either this call ends that stall, or the sweep finds
    /// that the stream has ended.
    pub(super) fn close(&self) {
        self.last_output_at.set(None);
        self.deadline.set(None);
        self.end_stall();
    }

    /// Records bytes from the backend without output.
    pub fn on_bytes(&self, now: Instant) {
        self.heard_at.set(Some(now));
        self.on_output_bytes(now);
    }

    /// Records bytes from the backend for which [`Self::on_output`] is also called.
    pub fn on_output_bytes(&self, now: Instant) {
        self.set_waits_for_backend(false);
        if self.terms.rules.keep_alive.is_some() {
            self.last_byte_at.set(Some(now));
            self.needs_keep_alive.set(false);
        }
    }

    /// Whether a keep-alive comment is due. After `true`, returns `false` until a sweep requests the next one.
    pub fn take_keep_alive(&self, now: Instant) -> bool {
        let needs_keep_alive = self.needs_keep_alive.replace(false);
        if needs_keep_alive {
            self.last_byte_at.set(Some(now));
        }
        needs_keep_alive
    }

    pub(super) fn check_keep_alive(&self, now: Instant) {
        let Some(interval) = self.terms.rules.keep_alive else {
            return;
        };
        let is_due = |last_byte| now.saturating_duration_since(last_byte) >= interval;
        let waits_for_backend = self.waits_for_backend.get();
        if waits_for_backend && self.last_byte_at.get().is_some_and(is_due) {
            self.needs_keep_alive.set(true);
            self.waker.wake();
        }
    }

    /// Whether the first output, or the end of the body after the last event, is overdue.
    pub(super) fn is_next_step_overdue(&self, now: Instant) -> bool {
        self.deadline.get().is_some_and(|deadline| now >= deadline)
    }

    /// Sets when the key of the client was removed. A later call does not change the time. `None`: the
    /// key is valid.
    pub(super) fn set_revoked(&self, now: Option<Instant>) {
        if self.revoked_at.get().is_some() != now.is_some() {
            self.revoked_at.set(now);
        }
    }

    /// Whether to end the stream because the key of its client was removed.
    pub fn is_revoked(&self, now: Instant) -> bool {
        let time = if self.is_tunnel() {
            Duration::ZERO
        } else {
            REVOKED_STREAM_TIME
        };
        self.revoked_at
            .get()
            .is_some_and(|revoked_at| now >= revoked_at + time)
    }

    /// Whether the stream has reached its total timeout.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.terms.ends_by.is_some_and(|deadline| now >= deadline)
    }

    pub(super) fn cut(&self) {
        self.is_aborted.set(true);
        self.waker.wake();
    }

    /// Records that another backend could continue the stream.
    pub fn set_movable(&self) {
        self.is_movable.set(true);
    }

    /// Requests a move of the stream to another backend, if another backend can continue it. Returns whether
    /// one can.
    pub(super) fn request_move(&self) -> bool {
        let is_movable = self.is_movable.get();
        if is_movable {
            self.is_moved.set(true);
            self.cut();
        }
        is_movable
    }

    /// Requests a move of the stream to another backend after a pause, because no backend has capacity now.
    pub(in crate::observe) fn move_later(&self, now: Instant) {
        self.move_at.set(Some(now + MOVE_PAUSE));
    }

    /// Requests the move of [`Self::move_later`] when it is due.
    pub(super) fn check_move(&self, now: Instant) {
        if self.move_at.get().is_some_and(|at| now >= at) {
            self.move_at.set(None);
            self.request_move();
        }
    }

    /// Whether [`Self::request_move`] was called since the last call of this function.
    pub fn take_move(&self) -> bool {
        let is_moved = self.is_moved.replace(false);
        if is_moved {
            // If another reason to abort the stream exists, the next sweep sets the flag again.
            self.is_aborted.set(false);
        }
        is_moved
    }

    /// Interrupts the stream if its backend is down and sends nothing: early if another backend can continue
    /// the stream, and once in each silence.
    pub(super) fn check_loss(&self, now: Instant) {
        let Some(silence) = self.silence_of_lost_backend(now) else {
            return;
        };
        let may_move = self.is_movable.get() && self.left_after.get() != self.last_heard_at();
        if silence >= LOST_SILENCE || (silence >= MOVE_SILENCE && may_move) {
            self.is_lost.set(true);
            self.cut();
        }
    }

    /// The effect of a sweep's last finding that the backend is down and sends nothing. Each finding is
    /// returned once. `None`: no new finding.
    pub fn take_loss(&self, now: Instant) -> Option<Loss> {
        if !self.is_lost.replace(false) {
            return None;
        }
        // The next sweep sets the flag again if necessary.
        self.is_aborted.set(false);
        // A byte may have arrived after the sweep.
        Some(match self.silence_of_lost_backend(now) {
            Some(silence) if silence >= LOST_SILENCE => Loss::Ends,
            Some(silence) if silence >= MOVE_SILENCE => {
                self.left_after.set(self.last_heard_at());
                Loss::Moves
            }
            _ => Loss::Over,
        })
    }

    /// Time since the last byte of a backend that is down. `None`: the backend is up, or the stream waits
    /// for its client.
    fn silence_of_lost_backend(&self, now: Instant) -> Option<Duration> {
        let is_waiting = self.waits_for_backend.get();
        if !is_waiting || !self.backend.is_declared_down() {
            return None;
        }
        Some(now.saturating_duration_since(self.last_heard_at()?))
    }

    /// The time of the last byte of the backend.
    fn last_heard_at(&self) -> Option<Instant> {
        self.heard_at.get().max(self.last_output_at.get())
    }

    /// Sets whether the stream waits for its backend (`true`) or for its client to read (`false`).
    pub fn set_waits_for_backend(&self, is_waiting: bool) {
        self.waits_for_backend.set(is_waiting);
    }

    /// Whether to abort the stream or move it to another backend. `waker` is woken when the result becomes
    /// `true`.
    pub fn is_cut(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        self.is_aborted.get()
    }

    /// Time since the last output, if the stream waits for its backend. `None` before the first output and
    /// after the end.
    pub(super) fn backend_silence(&self, now: Instant) -> Option<Duration> {
        let last_output = self.last_output_at.get()?;
        let is_waiting = self.waits_for_backend.get();
        is_waiting.then(|| now.saturating_duration_since(last_output))
    }

    pub(super) fn stall(&self, now: Instant) {
        let mut stall = lock(&self.stall);
        // `None`: the stream may have ended concurrently.
        let Some(last_output_at) = self.last_output_at.get() else {
            return;
        };
        if stall.is_some() {
            return;
        }
        *stall = Some(Stall {
            last_output_at,
            detected_at: now,
            ended_at: None,
            condition: self.backend.condition(now),
        });
        self.is_stalled.store(true, Ordering::Release);
        self.backend.on_stall(true);
    }

    fn end_stall_if_any(&self, now: Instant) -> Option<Stall> {
        if !self.is_stalled.load(Ordering::Acquire) {
            return None;
        }
        Some(Stall {
            ended_at: Some(now),
            ..self.end_stall()?
        })
    }

    fn end_stall(&self) -> Option<Stall> {
        let mut stall = lock(&self.stall);
        self.is_stalled.store(false, Ordering::Release);
        let ended = stall.take()?;
        self.backend.on_stall(false);
        Some(ended)
    }
}
