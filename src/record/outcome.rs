//! The words for how a request ended and for how far its record can be trusted. Each is a closed
//! set with one name for metrics, logs and spans.

/// How a request ended. A request that is dropped was left by its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The answer was whole.
    Ok,
    /// The client left before the answer was whole.
    Cancelled,
    /// The request was at fault: a 4xx of the replica or of the gateway.
    ClientError,
    /// The gateway could not take it: no replica, no room.
    Rejected,
    /// The replica answered with a 5xx, or could not be reached.
    UpstreamError,
    /// The replica reported an error inside a 200.
    StreamError,
    /// The answer ended early: cut, or without its last event.
    Truncated,
    /// The engine gave the request up although the client was there.
    Aborted,
    /// The replica was silent for too long.
    Timeout,
}

/// Who brought the end about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    /// The client.
    Client,
    /// The replica.
    Backend,
    /// The gateway.
    Gateway,
}

/// How far token counts can be trusted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UsageSource {
    /// The engine's final count.
    Exact,
    /// The engine's count so far, from an answer that did not end.
    Continuous,
    /// There was none; events were counted.
    #[default]
    Missing,
}

/// Why an observer could not read all of an answer. The bytes flowed on regardless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lost {
    /// The answer was compressed although `identity` was asked for.
    Encoded,
    /// Data that this shape does not send.
    Malformed,
}

// === impl Outcome ===

impl Outcome {
    /// All of them, for tables and tests.
    pub const ALL: [Self; 9] = [
        Self::Ok,
        Self::Cancelled,
        Self::ClientError,
        Self::Rejected,
        Self::UpstreamError,
        Self::StreamError,
        Self::Truncated,
        Self::Aborted,
        Self::Timeout,
    ];

    /// The name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Cancelled => "cancelled",
            Self::ClientError => "client_error",
            Self::Rejected => "rejected",
            Self::UpstreamError => "upstream_error",
            Self::StreamError => "stream_error",
            Self::Truncated => "truncated",
            Self::Aborted => "aborted",
            Self::Timeout => "timeout",
        }
    }

    /// Who brought it about.
    pub const fn ended_by(self) -> EndedBy {
        match self {
            Self::Cancelled | Self::ClientError => EndedBy::Client,
            Self::Rejected | Self::Timeout => EndedBy::Gateway,
            _ => EndedBy::Backend,
        }
    }

    /// Whether the replica failed this request.
    pub const fn is_backend_failure(self) -> bool {
        matches!(
            self,
            Self::UpstreamError
                | Self::StreamError
                | Self::Truncated
                | Self::Aborted
                | Self::Timeout
        )
    }
}

impl EndedBy {
    /// The name in logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Backend => "backend",
            Self::Gateway => "gateway",
        }
    }
}

impl Lost {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Encoded, Self::Malformed];

    /// The name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Encoded => "encoded",
            Self::Malformed => "malformed",
        }
    }
}

impl UsageSource {
    /// The name in logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Continuous => "continuous",
            Self::Missing => "missing",
        }
    }
}
