//! Monotonic instants of a request.

use std::time::{Duration, Instant};
use tokenweir_protocol::openai::{OutputKind, OutputKinds};

/// The instants at which the steps of a request happened. `None`: the step did not happen.
#[derive(Debug, Clone, Copy)]
pub struct Timings {
    /// The request head was read.
    pub accepted: Instant,
    /// The request body was read completely.
    pub received: Option<Instant>,
    /// The request entered the admission queue.
    pub queued: Option<Instant>,
    /// The request left the admission queue: it was dispatched or shed.
    pub dequeued: Option<Instant>,
    /// The request began to wait because no backend could serve its model. `None`: it does not wait for this
    /// reason at present.
    pub backend_missed: Option<Instant>,
    /// Time in the admission queue during which no backend could serve the model, without the time since
    /// `backend_missed`.
    pub without_backend: Duration,
    /// A backend was selected, for the last attempt.
    pub routed: Option<Instant>,
    /// The request was handed to a connection, for the last attempt.
    pub sent: Option<Instant>,
    /// The response head arrived.
    pub headers: Option<Instant>,
    /// The first event of any kind arrived, such as the role event.
    pub first_event: Option<Instant>,
    /// The first generated output of a stream arrived: text, reasoning or tool call.
    pub first_output: Option<Instant>,
    /// The first output that is not reasoning arrived: text or a tool call.
    pub first_answer: Option<Instant>,
    /// The first reasoning arrived.
    pub first_reasoning: Option<Instant>,
    /// The first answer text arrived.
    pub first_text: Option<Instant>,
    /// The first part of a tool call arrived.
    pub first_tool_call: Option<Instant>,
    /// The last generated output arrived.
    pub last_output: Option<Instant>,
    /// The terminal event of the stream arrived, or the complete body of a JSON response.
    pub terminal: Option<Instant>,
    /// The exchange ended, with any outcome.
    pub ended: Option<Instant>,
}

impl Timings {
    /// Returns the instants of a request whose head was read at `accepted`. No other step has
    /// happened.
    pub fn begin(accepted: Instant) -> Self {
        Self {
            accepted,
            received: None,
            queued: None,
            dequeued: None,
            backend_missed: None,
            without_backend: Duration::ZERO,
            routed: None,
            sent: None,
            headers: None,
            first_event: None,
            first_output: None,
            first_answer: None,
            first_reasoning: None,
            first_text: None,
            first_tool_call: None,
            last_output: None,
            terminal: None,
            ended: None,
        }
    }

    /// The end of the request. The start, if the request has not ended.
    pub fn end(&self) -> Instant {
        self.ended.unwrap_or(self.accepted)
    }

    /// Records that output of these kinds arrived at `now`.
    pub fn on_output(&mut self, output: OutputKinds, now: Instant) {
        self.first_output.get_or_insert(now);
        self.last_output = Some(now);
        if output.has_answer() {
            self.first_answer.get_or_insert(now);
        }
        for (kind, first) in [
            (OutputKind::Reasoning, &mut self.first_reasoning),
            (OutputKind::Text, &mut self.first_text),
            (OutputKind::ToolCall, &mut self.first_tool_call),
        ] {
            if output.has(kind) {
                first.get_or_insert(now);
            }
        }
    }

    /// Whether all output so far is reasoning.
    pub fn is_reasoning(&self) -> bool {
        self.first_reasoning.is_some() && self.first_answer.is_none()
    }

    /// The instants of the request, without the instants of its response.
    pub fn without_response(&self) -> Self {
        let Self {
            received,
            queued,
            dequeued,
            without_backend,
            routed,
            sent,
            ..
        } = *self;
        let without_response = Self::begin(self.accepted);
        Self {
            received,
            queued,
            dequeued,
            without_backend,
            routed,
            sent,
            ..without_response
        }
    }

    /// Records that the request enters the admission queue. If the request has waited before, `queued` is set
    /// to an earlier instant, so that the record has one wait with the sum of both times.
    pub fn enter_queue(&mut self, is_without_backend: bool, now: Instant) {
        let before = self.queued.zip(self.dequeued.take());
        let waited = before.map_or(Duration::ZERO, |(from, to)| {
            to.saturating_duration_since(from)
        });
        self.queued = now.checked_sub(waited);
        self.backend_missed = is_without_backend.then_some(now);
    }

    /// Records that the request leaves the admission queue. `without_backend`: for how long no backend could
    /// serve its model.
    pub fn leave_queue(&mut self, without_backend: Duration, now: Instant) {
        self.dequeued = Some(now);
        self.backend_missed = None;
        self.without_backend += without_backend;
    }
}
