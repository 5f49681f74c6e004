//! Output latencies of one choice of a streamed response.
//!
//! All events of one chunk have the same instant, so they count as one arrival.

use crate::record::ObservedResponse;
use std::time::{Duration, Instant};

/// The timer of one choice. It stores the last arrival of output.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChoiceTimer {
    /// When the last output arrived. `None`: no output has arrived.
    last_arrival: Option<Instant>,
    /// Time between the last two arrivals. `None`: no earlier arrival, or the client stalled the stream between
    /// the two.
    gap: Option<Duration>,
    /// Number of tokens in the events that arrived at `last_arrival`. `None`: one of these events
    /// did not report a count.
    tokens: Option<u32>,
}

/// Maximum number of choices with a timer of their own. All further choices share the last timer.
pub(super) const MAX_TIMED_CHOICES: usize = 128;

impl ChoiceTimer {
    /// Records an event with output at `now`. A gap that began before `write_stalled_until` was caused by the
    /// client and is ignored. Returns the gap to the previous event with output. `None`: no previous event, or
    /// the gap is ignored.
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
            self.tokens = self
                .tokens
                .zip(tokens)
                .map(|(sum, tokens)| sum.saturating_add(tokens));
            observed
                .inter_chunk_latency
                .record_duration_n(Duration::ZERO, 1);
            return Some(Duration::ZERO);
        }
        self.finish_arrival(observed);
        let previous = self.last_arrival.replace(now);
        let is_write_stalled =
            |previous: &Instant| write_stalled_until.is_some_and(|until| until > *previous);
        let gap_start = previous.filter(|previous| !is_write_stalled(previous));
        self.gap = gap_start.map(|start| now.saturating_duration_since(start));
        self.tokens = tokens;
        self.gap
            .inspect(|gap| observed.inter_chunk_latency.record_duration_n(*gap, 1))
    }

    /// Records the inter-token latency of the last arrival: its gap divided by its number of
    /// tokens, once for each token.
    pub(super) fn finish_arrival(&mut self, observed: &mut ObservedResponse) {
        if let (Some(gap), Some(tokens @ 1..)) = (self.gap.take(), self.tokens.take()) {
            observed
                .inter_token_latency
                .record_duration_n(gap / tokens, tokens);
        }
    }
}
