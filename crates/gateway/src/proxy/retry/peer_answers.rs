//! The answers of peers to requests that one backend refused. A status such as 400 or 401 does not show whether
//! the client or the backend is the cause.
//!
//! To compare, the gateway sends the refused request to a peer too. If all backends refuse the requests of a
//! client alike, the gateway learns this and sends most further requests of this kind only once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokenweir_routing::mix;

/// Number of slots. A hash selects the slot of a refusal. For each slot, the gateway learns one share: the
/// share of refused requests that a peer answered differently.
const SLOT_COUNT: usize = 4096;
/// Time for which a learned share counts after the last comparison with the answer of a peer.
const MEMORY: Duration = Duration::from_secs(10);
/// Weight of the newest comparison of two answers in the learned share.
const LEARNING_RATE: f32 = 0.25;
/// Share of refused requests that are sent to a peer, as a multiple of the share that peers answered
/// differently. With 4, all refused requests are sent to a peer if peers answer one in four differently.
const COMPARISONS_PER_DIFFERENCE: f32 = 4.0;
/// Minimum share of refused requests that are sent to a peer.
const MIN_COMPARED: f32 = 1.0 / 32.0;

/// For each slot, the learned share of refused requests that a peer answered differently.
#[derive(Debug)]
pub(crate) struct PeerAnswers {
    origin: Instant,
    /// Upper 32 bits: the milliseconds from `origin` to the last comparison, plus 1. Lower 32 bits:
    /// the share as `f32`. 0: no comparison.
    slots: Box<[AtomicU64]>,
}

/// Maximum number of milliseconds that a slot can store.
const MAX_MILLISECONDS: u64 = 0x7fff_ffff;

/// The slot for the refusals of one backend with one status to one group of clients. The gateway learns one
/// share per slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefusalSlot(usize);

impl PeerAnswers {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            origin: now,
            slots: (0..SLOT_COUNT).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The slot of a refusal. `group`: the index of the group of clients. `backend`: a hash of the name of the
    /// backend.
    pub(crate) fn slot(group: usize, backend: u64, status: u16) -> RefusalSlot {
        let hash = mix(backend ^ (u64::from(status) << 32) ^ group as u64);
        RefusalSlot(hash as usize % SLOT_COUNT)
    }

    /// Whether a refused request is sent to a peer. `random`: a uniform random number in `[0, 1)`.
    pub(crate) fn should_ask(&self, slot: RefusalSlot, random: f32, now: Instant) -> bool {
        let share = self.share(slot, now) * COMPARISONS_PER_DIFFERENCE;
        random < share.max(MIN_COMPARED)
    }

    /// Learns whether a peer answered a refused request differently.
    pub(crate) fn learn(&self, slot: RefusalSlot, is_otherwise: bool, now: Instant) {
        let share = self.share(slot, now);
        let observed = if is_otherwise { 1.0 } else { 0.0 };
        let share = LEARNING_RATE.mul_add(observed - share, share);
        let value = (self.milliseconds(now) + 1) << 32 | u64::from(share.to_bits());
        self.slots[slot.0].store(value, Ordering::Relaxed);
    }

    /// Share, from 0 to 1, of the refused requests of this slot that a peer answered differently. 1: no
    /// comparison within [`MEMORY`].
    fn share(&self, slot: RefusalSlot, now: Instant) -> f32 {
        let value = self.slots[slot.0].load(Ordering::Relaxed);
        let age = (self.milliseconds(now) + 1).wrapping_sub(value >> 32) & MAX_MILLISECONDS;
        if value == 0 || u128::from(age) > MEMORY.as_millis() {
            return 1.0;
        }
        f32::from_bits(value as u32)
    }

    /// Milliseconds since `origin`, in 31 bits, which wrap around after 24 days.
    fn milliseconds(&self, now: Instant) -> u64 {
        (now.saturating_duration_since(self.origin).as_millis() as u64) & MAX_MILLISECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    fn slot(status: u16) -> RefusalSlot {
        PeerAnswers::slot(1, 7, status)
    }

    #[test]
    fn refused_requests_rarely_try_a_peer() {
        let now = clock::now();
        let answers = PeerAnswers::new(now);
        assert!(answers.should_ask(slot(400), 0.99, now), "nothing is known");
        (0..30).for_each(|_| answers.learn(slot(400), false, now));
        assert!(!answers.should_ask(slot(400), 0.04, now));
        assert!(answers.should_ask(slot(400), 0.03, now), "one in 32");
        assert!(answers.should_ask(slot(401), 0.99, now), "another status");
        let later = now + MEMORY + Duration::from_secs(1);
        assert!(
            answers.should_ask(slot(400), 0.99, later),
            "the comparisons are old"
        );
    }

    #[test]
    fn answers_expire_after_the_clock_wraps() {
        let start = clock::now();
        let answers = PeerAnswers::new(start);
        let before = start + Duration::from_millis(MAX_MILLISECONDS - 1_000);
        (0..30).for_each(|_| answers.learn(slot(400), false, before));
        let soon = before + Duration::from_secs(2);
        assert!(
            !answers.should_ask(slot(400), 0.04, soon),
            "the comparisons are recent"
        );
        assert!(answers.should_ask(slot(400), 0.99, before + MEMORY + Duration::from_secs(1)));
    }

    #[test]
    fn a_different_answer_reopens_the_peers() {
        let now = clock::now();
        let answers = PeerAnswers::new(now);
        (0..30).for_each(|_| answers.learn(slot(401), false, now));
        answers.learn(slot(401), true, now);
        assert!(answers.should_ask(slot(401), 0.99, now));
    }
}
