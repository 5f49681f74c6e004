//! The continuations of a stream at other backends.

use crate::continuation::{ContinuationRefusal, InterruptionCause};
use std::time::Instant;

/// The continuations of one stream at other backends.
#[derive(Debug, Clone, Default)]
pub struct Continuations {
    /// The continuations that began, in order.
    pub begun: Vec<Continuation>,
    /// Why the stream was not continued when it ended early. `None`: the stream did not end early, or
    /// was continued.
    pub refusal: Option<ContinuationRefusal>,
}

/// A continuation of a stream at another backend.
#[derive(Debug, Clone)]
pub struct Continuation {
    /// Id of the span of the attempt that continues the stream.
    pub span_id: u64,
    /// Why the stream needed another backend.
    pub cause: InterruptionCause,
    /// Number of output tokens before the continuation.
    pub tokens: u64,
    /// The time from which the stream needed another backend.
    pub interrupted: Instant,
    /// When the next output arrived. `None`: no further output arrived.
    pub next_output: Option<Instant>,
}

impl Continuations {
    /// Records output. Returns whether it is the first output of a continuation.
    pub(crate) fn on_output(&mut self, now: Instant) -> bool {
        let Some(last) = self.begun.last_mut() else { return false };
        let is_first = last.next_output.is_none();
        last.next_output.get_or_insert(now);
        is_first
    }

    /// Number of tokens that the engines which continued the stream computed again: the output so far, and
    /// the prompt of a stream that was moved. `input`: number of tokens of the prompt.
    pub(crate) fn recomputed_tokens(&self, input: u64) -> u64 {
        let tokens = self.begun.iter().map(|continuation| {
            let is_moved = continuation.cause == InterruptionCause::Migrated;
            continuation.tokens + if is_moved { input } else { 0 }
        });
        tokens.sum()
    }
}

impl Continuation {
    /// Seconds from the interruption to the next output. `None`: no further output arrived.
    pub fn gap(&self) -> Option<f64> {
        let next_output = self.next_output?;
        Some(next_output.saturating_duration_since(self.interrupted).as_secs_f64())
    }
}
