//! Why the trace of a request is exported.

use tokenweir_protocol::named_enum;

named_enum! {
    /// Why the spans of a finished request are exported. If several reasons apply, the first in this list
    /// counts.
    #[derive(Hash)]
    pub enum SampleReason {
        /// The request failed.
        Error = "error",
        /// The client disconnected.
        Aborted = "aborted",
        /// The request was shed: the admission queue was full, or the wait timed out.
        Shed = "shed",
        /// The request had more than one attempt.
        Retried = "retried",
        /// The stream had a stall.
        Stalled = "stalled",
        /// The TTFT of the request was among the highest of recent requests.
        SlowFirstToken = "slow_first_token",
        /// The duration of the request was among the highest of recent requests, or the request has
        /// a [`SlowCause`](super::SlowCause).
        Slow = "slow",
        /// The head sampler selected the trace of the request.
        Sampled = "sampled",
    }
}
