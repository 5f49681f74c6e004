//! Why the trace of a request is exported.

/// Why the spans of a finished request are exported. If several reasons apply, the first one in
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
    /// Its TTFT was among the highest of recent requests.
    SlowFirstToken,
    /// Its duration was among the highest of recent requests, or it has a slow cause.
    Slow,
    /// Its trace was selected by the head sampler.
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
