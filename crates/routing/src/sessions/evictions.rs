//! Whether engines evict what returning sessions need, learned from the turns so far.
//!
//! ```text
//! evicted    an engine computed more than a fifth of the last prompt of the session again
//! headroom   factor by which the need may exceed the capacity: × 0.95 after an evicted turn, and after any other as much
//!            more that it stays the same if [`TOLERATED`] of the turns are evicted. From 0.9 to 4, at first 4
//! ```
//!
//! So no session waits before engines evict what others need, however wrong the estimate of the need is.

/// The factor by which the need of the sessions may exceed the capacity.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// `None`: engines do not report cached tokens.
    headroom: Option<f64>,
}

/// Part of a prompt that an engine may compute again although a session goes on.
const COMPUTED_AGAIN: f64 = 0.2;
/// Share of the returning turns that may be evicted.
const TOLERATED: f64 = 0.1;
/// Change of the headroom by an evicted turn.
const STEP: f64 = 0.05;
/// Least and greatest headroom.
const MIN_HEADROOM: f64 = 0.9;
const MAX_HEADROOM: f64 = 4.0;

impl Evictions {
    /// A turn has ended with `cached` tokens from the cache. Its session had a prompt of `known` tokens before. 0: it
    /// is the first turn, or the number is not known.
    pub(super) fn learn(&mut self, known: u64, cached: u64) {
        let headroom = self.headroom.get_or_insert(MAX_HEADROOM);
        let kept = (1.0 - COMPUTED_AGAIN) * known as f64;
        let change = if known == 0 {
            1.0
        } else if (cached as f64) < kept {
            1.0 - STEP
        } else {
            1.0 + STEP * TOLERATED / (1.0 - TOLERATED)
        };
        *headroom = (*headroom * change).clamp(MIN_HEADROOM, MAX_HEADROOM);
    }

    /// The headroom. 1: nothing is known.
    pub(super) fn headroom(&self) -> f64 {
        self.headroom.unwrap_or(1.0)
    }
}
