//! One moment of a replica: what its metrics page said, and what the gateway saw since the moment
//! before.

use std::time::Instant;
use tokenweir_core::dialect::Load;

/// One moment of a replica.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// When it was.
    pub at: Instant,
    /// Whether it could be sent requests.
    pub is_up: bool,
    /// What its page said. `None`: there was none that is fresh and understood.
    pub page: Option<Load>,
    /// What the gateway saw. `None`: no gateway watches.
    pub seen: Option<Seen>,
}

/// What the gateway sees of a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// Its requests there now.
    pub in_flight: u32,
    /// Those of its streams that are silent for too long now.
    pub stalled: u32,
    /// Times that one fell silent for too long, since the start.
    pub stalls: u64,
    /// The p99 of the times between outputs lately, in seconds. `None`: too few.
    pub gap_p99: Option<f64>,
    /// Requests that wait in the gateway for any replica with room.
    pub queued: usize,
    /// What was counted since the moment before.
    pub counts: Counts,
}

/// What the gateway counts of a replica's requests. Times are sums in seconds, lengths in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    /// First outputs of streams.
    pub first_outputs: u64,
    /// Their times since the request was sent there.
    pub first_output_seconds: f64,
    /// Those of them that took longer than [`super::SLOW_START`] seconds.
    pub slow_first_outputs: u64,
    /// Requests that ended.
    pub finished: u64,
    /// Those of them that were streams.
    pub streams: u64,
    /// Those of them whose client left first.
    pub cancelled: u64,
    /// How long these clients had waited.
    pub cancel_seconds: f64,
    /// The squares of these times, by which it is seen whether they are all alike.
    pub cancel_squares: f64,
    /// Tokens of prompts, as they were estimated when a replica was chosen.
    pub prompt_tokens: f64,
    /// Those of them that some replica was believed to have in its cache.
    pub reusable_tokens: f64,
    /// Those of them that this one was.
    pub reusable_here_tokens: f64,
    /// The longest prompt.
    pub longest_prompt: f64,
}

/// A moment for tests.
#[cfg(test)]
pub(super) fn some_moment() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    Instant::now()
}
