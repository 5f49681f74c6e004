//! Whether engines evict what returning sessions need, learned from the turns so far.
//!
//! ```text
//! evicted    an engine computed more than a fifth of the last prompt of the session again
//! begins     more than a tenth of the last turns were evicted, or the sessions need 1.25 × the capacity:
//!            sessions wait for room
//! ends       at most a tenth are, and no turn has had to wait for 30 s
//! ```
//!
//! While sessions wait, engines keep what others need, so the end cannot depend on evictions alone. No session
//! waits before engines evict what others need, however wrong the estimate of the need is.

use std::time::{Duration, Instant};

/// Whether sessions must wait for room.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// Share of the last turns that were evicted. `None`: engines do not report cached tokens.
    share: Option<f64>,
    has_begun: bool,
}

/// Part of a prompt that an engine may compute again although a session goes on.
const COMPUTED_AGAIN: f64 = 0.2;
/// Share of the returning turns that may be evicted.
const TOLERATED: f64 = 0.1;
/// Weight of one turn in the share.
const WEIGHT: f64 = 0.05;
/// Need, as a share of the capacity, from which engines must evict even if the estimate is a fifth too high.
const CERTAIN_NEED: f64 = 1.25;
/// Time without a turn that had to wait, after which sessions need not wait any more.
const PAUSE: Duration = Duration::from_secs(30);

impl Evictions {
    /// A turn has ended with `cached` tokens from the cache. Its session had a prompt of `known` tokens before. 0: it
    /// is the first turn, or the number is not known.
    pub(super) fn learn(&mut self, known: u64, cached: u64) {
        let share = self.share.get_or_insert(0.0);
        if known == 0 {
            return;
        }
        let is_evicted = (cached as f64) < (1.0 - COMPUTED_AGAIN) * known as f64;
        *share += WEIGHT * (f64::from(u8::from(is_evicted)) - *share);
        self.has_begun |= *share > TOLERATED;
    }

    /// Begins the wait for room if the sessions need more than caches can hold, and ends it if engines keep what
    /// returning sessions need. `need`: as a share of the capacity. `held`: when a turn last had to wait.
    pub(super) fn judge(&mut self, need: f64, held: Option<Instant>, now: Instant) {
        if need > CERTAIN_NEED {
            self.has_begun = true;
            return;
        }
        let is_held = held.is_some_and(|at| now < at + PAUSE);
        let is_evicting = self.share.is_some_and(|share| share > TOLERATED);
        self.has_begun &= is_held || is_evicting;
    }

    /// Whether sessions wait for room. Always, if engines do not report cached tokens.
    pub(super) fn hold_sessions(&self) -> bool {
        self.has_begun || self.share.is_none()
    }
}
