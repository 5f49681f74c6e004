//! The moments of a request.

use std::time::Instant;

/// The moments of a request. Absent ones did not come.
#[derive(Debug, Clone, Copy)]
pub struct Timings {
    /// The request head was read.
    pub accepted: Instant,
    /// The request body was read.
    pub received: Option<Instant>,
    /// It began to wait for a replica with room, if it had to.
    pub queued: Option<Instant>,
    /// It stopped waiting: it was given a place, or turned away.
    pub dequeued: Option<Instant>,
    /// A replica was chosen, the last time if more than once.
    pub routed: Option<Instant>,
    /// The request was given to a connection, the last time if more than once.
    pub sent: Option<Instant>,
    /// The response head came.
    pub headers: Option<Instant>,
    /// The first event of any kind, such as the role.
    pub first_event: Option<Instant>,
    /// The first generated output, in whatever channel.
    pub first_output: Option<Instant>,
    /// The first output that is not reasoning.
    pub first_answer: Option<Instant>,
    /// The last generated output.
    pub last_output: Option<Instant>,
    /// The answer's own last event.
    pub terminal: Option<Instant>,
    /// The exchange was over.
    pub ended: Option<Instant>,
}

// === impl Timings ===

impl Timings {
    /// The request head was read at `accepted`; nothing else has happened.
    pub fn begin(accepted: Instant) -> Self {
        Self {
            accepted,
            received: None,
            queued: None,
            dequeued: None,
            routed: None,
            sent: None,
            headers: None,
            first_event: None,
            first_output: None,
            first_answer: None,
            last_output: None,
            terminal: None,
            ended: None,
        }
    }

    /// Those of the request alone, without those of an answer.
    pub fn before_answer(&self) -> Self {
        let Self { received, queued, dequeued, routed, sent, .. } = *self;
        Self { received, queued, dequeued, routed, sent, ..Self::begin(self.accepted) }
    }
}
