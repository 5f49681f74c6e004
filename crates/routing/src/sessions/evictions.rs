//! Whether sessions must wait for room, learned from the turns so far.
//!
//! ```text
//! lost      tokens of the last prompt of a session that an engine computed again for the next turn, if they are
//!           more than a fifth of that prompt
//! begins    lost tokens are more than half of all prompt tokens that engines computed, more than two thirds of the turns
//!           continue a session, and where objectives apply, more than a quarter of the turns missed one: sessions wait
//!           for room. Where none apply, also if the sessions need 1.25 × the capacity
//! ends      lost tokens are at most half of the computed ones, and no turn has had to wait for 30 s
//! ```
//!
//! Where many turns begin a session, a wait makes more turns late than it keeps in time.
//! While sessions wait, engines keep what others need, so the end cannot depend on lost tokens alone. As long as most
//! turns meet their objectives, engines can afford what they compute again, and a wait would only make turns late.

use super::turn::TurnTokens;
use std::time::{Duration, Instant};

/// Whether sessions must wait for room.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// Moving averages of the prompt tokens that engines computed for a turn, and of those that were lost.
    computed: f64,
    lost: f64,
    /// Moving averages of the shares of the turns that continue a session, and that begin one, while no session waits:
    /// the wait itself leaves out sessions, whose next turns then seem to begin one.
    continued: f64,
    begun: f64,
    /// Number of turns in these averages. 0: engines do not report cached tokens.
    turns: u64,
    /// Moving average of the share of the turns that missed an objective. `None`: no objective applies.
    missed: Option<f64>,
    has_begun: bool,
}

/// Part of a prompt that an engine may compute again although a session goes on.
const COMPUTED_AGAIN: f64 = 0.2;
/// Share of the computed tokens that may be lost ones.
const TOLERATED_LOSS: f64 = 0.5;
/// Least number of turns that continue a session, for each one that begins one.
const MIN_CONTINUED: f64 = 2.0;
/// Share of the turns that may miss an objective.
const TOLERATED_MISSES: f64 = 0.25;
/// Need, as a share of the capacity, from which engines must evict even if the estimate is a fifth too high.
const CERTAIN_NEED: f64 = 1.25;
/// Weight of one turn in the averages.
const WEIGHT: f64 = 0.02;
/// Number of turns before which the averages say nothing.
const MIN_TURNS: u64 = 20;
/// Time without a turn that had to wait, after which sessions need not wait any more.
const PAUSE: Duration = Duration::from_secs(30);

impl Evictions {
    /// Evictions that many turns have shown.
    #[cfg(test)]
    pub(super) fn shown() -> Self {
        Self {
            computed: 1e12,
            lost: 1e12,
            turns: MIN_TURNS,
            has_begun: true,
            ..Self::default()
        }
    }

    /// A turn has ended. Its session had a prompt of `known` tokens before. 0: it is the first turn, or the number is
    /// not known.
    pub(super) fn learn(&mut self, known: u64, tokens: &TurnTokens) {
        if let Some(has_missed) = tokens.has_missed {
            // Without a judged turn, the need alone could begin the wait.
            self.has_begun &= self.missed.is_some();
            let missed = self.missed.get_or_insert(0.0);
            *missed += WEIGHT * (f64::from(u8::from(has_missed)) - *missed);
        }
        let Some(cached) = tokens.cached else { return };
        let computed = tokens.prompt.saturating_sub(cached) as f64;
        let mut lost = known.saturating_sub(cached) as f64;
        if lost <= COMPUTED_AGAIN * known as f64 {
            lost = 0.0;
        }
        self.computed += WEIGHT * (computed - self.computed);
        self.lost += WEIGHT * (lost - self.lost);
        if !self.has_begun {
            let is_continued = f64::from(u8::from(known > 0));
            self.continued += WEIGHT * (is_continued - self.continued);
            self.begun += WEIGHT * (1.0 - is_continued - self.begun);
        }
        self.turns += 1;
        let is_shown = self.turns >= MIN_TURNS && self.is_evicting() && self.is_needed();
        self.has_begun |= is_shown && self.continued > MIN_CONTINUED * self.begun;
    }

    /// Begins the wait for room if the sessions need more than caches can hold, and ends it if engines keep what
    /// returning sessions need. `need`: as a share of the capacity. `held`: when a turn last had to wait.
    pub(super) fn judge(&mut self, need: f64, held: Option<Instant>, now: Instant) {
        if self.missed.is_none() && need > CERTAIN_NEED {
            self.has_begun = true;
            return;
        }
        let is_held = held.is_some_and(|at| now < at + PAUSE);
        self.has_begun &= is_held || self.is_evicting();
    }

    /// Whether sessions wait for room.
    pub(super) fn hold_sessions(&self) -> bool {
        self.has_begun
    }

    /// Whether more turns miss their objectives than may, so that a wait can help. Always, where no objective applies.
    /// Turns that waited count, too: the wait then lasts until others are in time.
    fn is_needed(&self) -> bool {
        self.missed.is_none_or(|missed| missed > TOLERATED_MISSES)
    }

    fn is_evicting(&self) -> bool {
        self.lost > TOLERATED_LOSS * self.computed
    }
}
