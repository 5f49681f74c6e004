//! What this gateway has at a backend: all of it, and one request of it.

use super::unanswered::Ticket;
use std::time::Instant;

/// What this gateway has at a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Own {
    /// Requests.
    pub in_flight: u32,
    /// Of those, the ones without a first output.
    pub pending: u32,
    /// Prompt tokens that the pending ones have to have computed.
    pub backlog: u64,
    /// Tokens that all of them may hold in the KV cache.
    pub tokens: u64,
}

/// One request at a replica, until it is [given back](super::Ledger::give_back).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Promise {
    /// Tokens that it may hold in the KV cache.
    pub(super) tokens: u64,
    /// Prompt tokens that it has to have computed.
    pub(super) uncached: u64,
    /// Prompt tokens that were believed cached.
    pub cached: u64,
    /// Those of `uncached` and of all that waited before it.
    pub(super) work: f64,
    /// The prompt in bytes.
    pub(super) bytes: u64,
    pub(super) sent: Instant,
    /// When its answer began, as far as that was seen.
    pub(super) began: Option<Instant>,
    /// Its place among the requests without output.
    pub(super) ticket: Option<Ticket>,
    /// It had to wait for a slot of the engine.
    pub(super) waits_for_slot: bool,
    pub(super) is_pending: bool,
}

/// What an answer told of its tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Prompt tokens.
    pub prompt: Option<u64>,
    /// Of those, the ones that came from the prefix cache.
    pub cached: Option<u64>,
    /// Generated tokens.
    pub output: Option<u64>,
}
