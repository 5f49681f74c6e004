//! Output latencies of one choice of a streamed response.
//!
//! Events that one read brings have the same instant, so they count as one arrival.

use crate::record::ObservedResponse;
use std::time::{Duration, Instant};

/// The last arrival of output of one choice.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChoiceTimer {
    /// When the last output arrived.
    last_arrival: Option<Instant>,
    /// Time between the last two arrivals. `None`: there was no earlier one, or the client stalled
    /// the stream in between.
    gap: Option<Duration>,
    /// Tokens of the last arrival. `None`: an event of it did not report its count.
    tokens: Option<u32>,
}

impl ChoiceTimer {
    /// Records an event with output at `now`. A gap that includes time before `write_stalled_until`
    /// was caused by the client and is ignored. Returns the gap, if there was one.
    pub(super) fn on_output(
        &mut self,
        tokens: Option<u32>,
        now: Instant,
        write_stalled_until: Option<Instant>,
        observed: &mut ObservedResponse,
    ) -> Option<Duration> {
        if let Some(tokens) = tokens {
            observed.chunk_tokens.record_n(f64::from(tokens), 1);
        }
        if self.last_arrival == Some(now) {
            self.tokens = self.tokens.zip(tokens).map(|(sum, tokens)| sum.saturating_add(tokens));
            observed.inter_chunk_latency.record_duration_n(Duration::ZERO, 1);
            return Some(Duration::ZERO);
        }
        self.settle(observed);
        let previous = self.last_arrival.replace(now);
        let is_write_stalled =
            |previous: &Instant| write_stalled_until.is_some_and(|until| until > *previous);
        let before = previous.filter(|previous| !is_write_stalled(previous));
        self.gap = before.map(|before| now.saturating_duration_since(before));
        self.tokens = tokens;
        self.gap.inspect(|gap| observed.inter_chunk_latency.record_duration_n(*gap, 1))
    }

    /// Completes the last arrival: records its gap, divided by its tokens, once for each token.
    pub(super) fn settle(&mut self, observed: &mut ObservedResponse) {
        if let (Some(gap), Some(tokens @ 1..)) = (self.gap.take(), self.tokens.take()) {
            observed.inter_token_latency.record_duration_n(gap / tokens, tokens);
        }
    }
}
