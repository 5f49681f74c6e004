//! Load that this gateway itself put on a backend: the reservation of one request, and the sum over
//! all open requests.

use super::pending_outputs::PendingOutputId;
use std::time::Instant;

/// Sum over the requests of this gateway that are open at a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LocalLoad {
    /// Number of open requests.
    pub in_flight: u32,
    /// Streams in flight without a first output.
    pub pending: u32,
    /// Prompt tokens that the engine has to compute for the pending streams.
    pub backlog: u64,
    /// Tokens that the requests may have added to the KV cache.
    pub tokens: u64,
}

impl LocalLoad {
    /// Requests in flight that have had output. A non-streaming request counts from its start.
    pub fn answering(&self) -> u32 {
        self.in_flight.saturating_sub(self.pending)
    }
}

/// The load of one request at a backend, until it is
/// [released](super::LoadEstimator::release).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reservation {
    /// Tokens that the request may add to the KV cache: uncached prompt and expected output.
    pub(super) tokens: u64,
    /// Prompt tokens that the engine has to compute.
    pub(super) uncached: u64,
    /// Prompt tokens that another backend computes instead. `None`: this backend computes the prompt.
    pub(super) remote: Option<u64>,
    /// Prompt tokens that were predicted to be cached.
    pub cached: u64,
    /// Prompt tokens that the engine computes before the first output: `uncached` plus the backlog before the
    /// request.
    pub(super) work: f64,
    /// Length of a prompt without media in bytes. 0: the prompt has media.
    pub(super) text_bytes: u64,
    pub(super) sent: Instant,
    /// Start of the output. For a non-streaming request, whose first output is not observed, the time of
    /// sending. `None`: no output is known yet.
    pub(super) began: Option<Instant>,
    /// Identifies the request in the list of requests without output. `None`: the list does not contain it.
    pub(super) ticket: Option<PendingOutputId>,
    /// Whether the request may wait for a slot of its LoRA adapter. When it was sent, the engine had never been
    /// seen to run more requests at once than it then had.
    pub(super) may_lack_slot: bool,
    /// Weight of the learned prefill cost when the request was sent, from 0 to 1.
    pub(super) freshness: f64,
    /// Whether the response is a stream, whose first output is observed.
    pub(super) is_stream: bool,
    /// Whether the request counts in [`LocalLoad::pending`].
    pub(super) is_pending: bool,
}

impl Reservation {
    /// Whether the request counts in [`LocalLoad::pending`] and [`LocalLoad::backlog`].
    pub fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// Predicted tokens of the prompt.
    pub fn prompt_tokens(&self) -> u64 {
        self.uncached + self.remote.unwrap_or(0) + self.cached
    }

    /// Whether the first output of the response is observed.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }
}
