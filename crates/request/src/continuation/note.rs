//! The continuations of a stream at other backends, for the record of its request.

use super::reasons::{ContinuationRefusal, InterruptionCause};
use crate::record::{LogPlace, NoteAttribute, NoteEvent, NoteValue, RecordNote, RequestRecord};
use std::time::Instant;

/// The continuations of one stream at other backends.
#[derive(Debug, Clone, Default)]
pub struct Continuations {
    /// One entry for each backend that continued the stream, in order.
    pub begun: Vec<Continuation>,
    /// Why the stream was not continued when it ended early. `None`: the stream did not end early, or
    /// was continued.
    pub refusal: Option<ContinuationRefusal>,
}

/// One continuation of a stream at another backend.
#[derive(Debug, Clone)]
pub struct Continuation {
    /// Id of the span of the attempt that continues the stream.
    pub span_id: u64,
    /// Why the stream needed another backend.
    pub cause: InterruptionCause,
    /// Number of output tokens before the continuation.
    pub tokens: u64,
    /// Time of the interruption, from which the stream needed another backend.
    pub interrupted: Instant,
    /// Time of the next output. `None`: no further output arrived.
    pub next_output: Option<Instant>,
}

impl Continuations {
    /// The note in the record of a request. Empty: the stream was not continued.
    pub fn of(record: &RequestRecord) -> &Self {
        const NONE: &Continuations = &Continuations {
            begun: Vec::new(),
            refusal: None,
        };
        record.notes.get().unwrap_or(NONE)
    }

    /// Records the first output of the last continuation.
    pub(crate) fn on_output(&mut self, now: Instant) {
        if let Some(last) = self.begun.last_mut() {
            last.next_output = Some(now);
        }
    }
}

impl RecordNote for Continuations {
    fn copy(&self) -> Box<dyn RecordNote> {
        Box::new(self.clone())
    }

    /// Number of backends that continued the stream.
    fn log_field(&self, after: LogPlace) -> Option<NoteAttribute> {
        if after != LogPlace::Attempts || self.begun.is_empty() {
            return None;
        }
        let value = NoteValue::Count(self.begun.len() as u64);
        Some(NoteAttribute {
            name: "continuations",
            value,
        })
    }

    fn span_attribute(&self) -> Option<NoteAttribute> {
        let value = NoteValue::Text(self.refusal?.as_str());
        Some(NoteAttribute {
            name: "tokenweir.continuation.refused",
            value,
        })
    }

    /// One event for each earlier stream that the attempt continued.
    fn attempt_events(&self, span_id: u64) -> Vec<NoteEvent> {
        let of_attempt = self.begun.iter().filter(|begun| begun.span_id == span_id);
        of_attempt.map(Continuation::event).collect()
    }

    /// The output so far and, if another backend continued the stream, the prompt.
    fn recomputed_tokens(&self, prompt: u64) -> u64 {
        let tokens = self.begun.iter().map(|continuation| {
            let is_moved = continuation.cause == InterruptionCause::Migrated;
            continuation.tokens + if is_moved { prompt } else { 0 }
        });
        tokens.sum()
    }
}

impl Continuation {
    /// Seconds from the interruption to the next output. `None`: no further output arrived.
    pub fn gap(&self) -> Option<f64> {
        let next_output = self.next_output?;
        Some(
            next_output
                .saturating_duration_since(self.interrupted)
                .as_secs_f64(),
        )
    }

    /// The span event of the continuation: its cause, the number of output tokens before it, and the seconds
    /// without output.
    fn event(&self) -> NoteEvent {
        let cause = NoteValue::Text(self.cause.as_str());
        let tokens = NoteValue::Count(self.tokens);
        let mut attributes = vec![
            NoteAttribute {
                name: "tokenweir.continuation.cause",
                value: cause,
            },
            NoteAttribute {
                name: "tokenweir.continuation.tokens",
                value: tokens,
            },
        ];
        if let Some(gap) = self.gap() {
            let value = NoteValue::Seconds(gap);
            attributes.push(NoteAttribute {
                name: "tokenweir.continuation.gap",
                value,
            });
        }
        let at = self.next_output.unwrap_or(self.interrupted);
        NoteEvent {
            name: "tokenweir.continued",
            at,
            attributes,
        }
    }
}
