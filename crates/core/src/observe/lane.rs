//! The output of one choice, as a sequence of arrivals. Events that one read brings have one time,
//! so they are one arrival.

use crate::record::Observed;
use std::time::{Duration, Instant};

/// One choice of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lane {
    /// The last arrival.
    at: Option<Instant>,
    /// From the arrival before it. `None`: there was none, or the client held the stream up.
    gap: Option<Duration>,
    /// Tokens of the last arrival. `None`: an event of it did not tell.
    tokens: Option<u32>,
}

impl Lane {
    /// An event with output came at `now`. Time before `held_until` is the client's. Gives the
    /// gap, if there was one.
    pub(super) fn on_output(
        &mut self,
        tokens: Option<u32>,
        now: Instant,
        held_until: Option<Instant>,
        observed: &mut Observed,
    ) -> Option<Duration> {
        if let Some(tokens) = tokens {
            observed.chunk_tokens.add(f64::from(tokens), 1);
        }
        if self.at == Some(now) {
            self.tokens = self.tokens.zip(tokens).map(|(sum, tokens)| sum.saturating_add(tokens));
            observed.gaps.add_gap(Duration::ZERO, 1);
            return Some(Duration::ZERO);
        }
        self.settle(observed);
        let last = self.at.replace(now);
        let is_held = |last: &Instant| held_until.is_some_and(|until| until > *last);
        let before = last.filter(|last| !is_held(last));
        self.gap = before.map(|before| now.saturating_duration_since(before));
        self.tokens = tokens;
        self.gap.inspect(|gap| observed.gaps.add_gap(*gap, 1))
    }

    /// The last arrival is whole: its gap is shared among its tokens.
    pub(super) fn settle(&mut self, observed: &mut Observed) {
        if let (Some(gap), Some(tokens @ 1..)) = (self.gap.take(), self.tokens.take()) {
            observed.itl.add_gap(gap / tokens, tokens);
        }
    }
}
