//! One sample of a backend: the load of its metrics page, and what the gateway observed since the
//! previous sample.

use std::time::{Duration, Instant};
use tokenweir_core::dialect::EngineLoad;

/// Interval between two samples.
pub const EVERY: Duration = Duration::from_secs(5);
/// A TTFT above this, in seconds, is too long without a baseline.
pub const SLOW_START: f64 = 2.0;

/// One sample of a backend.
#[derive(Debug, Clone, Copy)]
pub struct DiagnosisSample {
    /// Time of the sample.
    pub at: Instant,
    /// Whether the backend is up: it can get requests.
    pub is_up: bool,
    /// The load of its metrics page. `None`: no page that is fresh and understood.
    pub page: Option<EngineLoad>,
    /// The observations of the gateway. `None`: there is no gateway.
    pub gateway: Option<GatewayObservations>,
}

/// The observations of the gateway about a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GatewayObservations {
    /// Requests of this gateway at the backend now.
    pub in_flight: u32,
    /// Streams that are stalled now.
    pub stalled: u32,
    /// Stalls since the start of the gateway.
    pub stalls: u64,
    /// The recent p99 of the times between outputs, in seconds. `None`: too few outputs.
    pub gap_p99: Option<f64>,
    /// Requests that wait in the gateway for a backend with capacity.
    pub queued: usize,
    /// Counts since the previous sample.
    pub counts: BackendRequestCounts,
}

/// Counts of the gateway's requests at a backend. Times are sums in seconds, lengths are in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BackendRequestCounts {
    /// First outputs of streams.
    pub first_outputs: u64,
    /// Sum of their times since the request was sent to the backend.
    pub first_output_seconds: f64,
    /// First outputs that took longer than [`SLOW_START`] seconds.
    pub slow_first_outputs: u64,
    /// Requests that ended.
    pub finished: u64,
    /// Ended requests that were streams.
    pub streams: u64,
    /// Ended requests whose client disconnected first.
    pub cancelled: u64,
    /// Sum of the durations of these requests.
    pub cancel_seconds: f64,
    /// Sum of the squares of these durations, for their standard deviation.
    pub cancel_squares: f64,
    /// Prompt tokens, as estimated for the routing decision.
    pub prompt_tokens: f64,
    /// Prompt tokens that were predicted to be in the cache of at least one backend.
    pub reusable_tokens: f64,
    /// Prompt tokens that were predicted to be in the cache of this backend.
    pub reusable_here_tokens: f64,
    /// Length of the longest prompt.
    pub longest_prompt: f64,
}

/// An instant for tests.
#[cfg(test)]
pub(crate) fn test_instant() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "tests only need an arbitrary instant")]
    Instant::now()
}
