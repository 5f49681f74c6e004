//! Why the trace of a request is exported.

/// Why the spans of a finished request are exported. If several reasons apply, the first of them in
/// this list is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SampleReason {
    /// The request failed.
    Error,
    /// The client disconnected.
    Aborted,
    /// The request was shed: the admission queue was full, or the wait timed out.
    Shed,
    /// There was more than one attempt.
    Retried,
    /// The stream stalled.
    Stalled,
    /// The TTFT of the request was among the highest of recent requests.
    SlowFirstToken,
    /// The duration of the request was among the highest of recent requests, or the request has a
    /// [`SlowCause`](super::SlowCause).
    Slow,
    /// The head sampler selected the trace of the request.
    Sampled,
}

impl SampleReason {
    /// All reasons by descending priority.
    pub const ALL: [Self; 8] = [
        Self::Error,
        Self::Aborted,
        Self::Shed,
        Self::Retried,
        Self::Stalled,
        Self::SlowFirstToken,
        Self::Slow,
        Self::Sampled,
    ];

    /// The name in spans and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Aborted => "aborted",
            Self::Shed => "shed",
            Self::Retried => "retried",
            Self::Stalled => "stalled",
            Self::SlowFirstToken => "slow_first_token",
            Self::Slow => "slow",
            Self::Sampled => "sampled",
        }
    }
}
