//! The words for how a request ended and for how far its record can be trusted. Each is a closed
//! set with one name for metrics, logs and spans.

use super::Observed;
use crate::openai::Usage;

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
    /// The gateway ended before the answer was whole.
    Shutdown,
}

/// How the bytes of an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The replica's answer ended as HTTP says it should.
    Whole,
    /// The replica's connection broke.
    Broken,
    /// The client left first.
    Left,
    /// The gateway cut a client that took nothing for too long.
    Untaken,
    /// The gateway answered itself.
    Refused,
    /// The gateway cut a stream whose replica was silent.
    Stalled,
    /// The gateway ended.
    Shutdown,
}

/// Who closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    /// The client.
    Client,
    /// The replica.
    Backend,
    /// The gateway.
    Gateway,
}

/// How far the count of output tokens can be trusted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UsageSource {
    /// The engine's final count.
    Exact,
    /// What the engine told on the way: its count so far, or the ids or logprobs of every token.
    Continuous,
    /// From the number of events with output, and the tokens that an event of this backend usually
    /// has. An end without text counts as one token.
    Estimated,
    /// Nothing was seen to count.
    #[default]
    Missing,
}

/// What became of the usage event that the gateway asked for and its client did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageEvent {
    /// It was taken out of the answer.
    Stripped,
    /// It did not come.
    Missed,
    /// The server tells usage with every event anyway, so nothing was taken out.
    Forced,
    /// The usage of an event could not be removed, because the event is too long or of an unknown
    /// layout: the client saw it.
    Unremoved,
}

/// Why an observer could not read all of an answer. The bytes flowed on regardless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lost {
    /// The answer was compressed although `identity` was asked for.
    Uninspectable,
    /// Data that this shape does not send.
    Malformed,
}

// === impl Outcome ===

impl Outcome {
    /// All of them, for tables and tests.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::Cancelled,
        Self::ClientError,
        Self::Rejected,
        Self::UpstreamError,
        Self::StreamError,
        Self::Truncated,
        Self::Aborted,
        Self::Timeout,
        Self::Shutdown,
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
            Self::Shutdown => "shutdown",
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

impl End {
    /// Who closed first.
    pub const fn by(self) -> EndedBy {
        match self {
            Self::Left => EndedBy::Client,
            Self::Whole | Self::Broken => EndedBy::Backend,
            Self::Untaken | Self::Refused | Self::Stalled | Self::Shutdown => EndedBy::Gateway,
        }
    }
}

impl EndedBy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Client, Self::Backend, Self::Gateway];

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
    pub const ALL: [Self; 2] = [Self::Uninspectable, Self::Malformed];

    /// The name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Uninspectable => "uninspectable",
            Self::Malformed => "malformed",
        }
    }
}

impl UsageSource {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Exact, Self::Continuous, Self::Estimated, Self::Missing];

    /// What the count of an answer rests on.
    pub fn of(observed: &Observed) -> Self {
        let Usage { input, output, .. } = observed.usage;
        // The last count before a failure is no final one.
        let is_final = observed.is_terminal && observed.error.is_none();
        match observed.output_events {
            _ if output.is_some() && is_final => Self::Exact,
            _ if output.is_some() => Self::Continuous,
            1.. if observed.uncounted_events == 0 => Self::Continuous,
            1.. => Self::Estimated,
            // Embeddings and the like: there is no output to count.
            0 if input.is_some() && is_final => Self::Exact,
            0 => Self::Missing,
        }
    }

    /// The name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Continuous => "continuous",
            Self::Estimated => "estimated",
            Self::Missing => "missing",
        }
    }
}

impl UsageEvent {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Stripped, Self::Missed, Self::Forced, Self::Unremoved];

    /// The name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stripped => "stripped",
            Self::Missed => "missed",
            Self::Forced => "forced",
            Self::Unremoved => "unremoved",
        }
    }
}

/// What [`RequestRecord::ending`](super::RequestRecord::ending) gives.
pub const ENDINGS: &[&str] = &[
    "ok",
    "ok_client_left_after_end",
    "client_cancelled",
    "client_write_timeout",
    "client_error",
    "upstream_status",
    "inband_error",
    "upstream_abort",
    "truncated_clean",
    "truncated_cut",
    "timeout_headers",
    "timeout_first_output",
    "timeout_idle",
    "gateway_reject",
    "gateway_shutdown",
];

/// How a request ended, in one word: the outcome, and how its bytes ended where that says more.
pub(super) fn ending(outcome: Outcome, end: End) -> &'static str {
    match (outcome, end) {
        (Outcome::Ok, End::Left | End::Untaken) => "ok_client_left_after_end",
        (Outcome::Ok, _) => "ok",
        (Outcome::Cancelled, End::Untaken) => "client_write_timeout",
        (Outcome::Cancelled, _) => "client_cancelled",
        (Outcome::ClientError, _) => "client_error",
        (Outcome::Rejected, _) => "gateway_reject",
        (Outcome::UpstreamError, _) => "upstream_status",
        (Outcome::StreamError, _) => "inband_error",
        (Outcome::Aborted, _) => "upstream_abort",
        (Outcome::Truncated, End::Broken) => "truncated_cut",
        (Outcome::Truncated, _) => "truncated_clean",
        (Outcome::Timeout, End::Stalled) => "timeout_idle",
        (Outcome::Timeout, _) => "timeout_headers",
        (Outcome::Shutdown, _) => "gateway_shutdown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_is_one_of_the_list() {
        let ends = [
            End::Whole,
            End::Broken,
            End::Left,
            End::Untaken,
            End::Refused,
            End::Stalled,
            End::Shutdown,
        ];
        for outcome in Outcome::ALL {
            for end in ends {
                assert!(ENDINGS.contains(&ending(outcome, end)), "{outcome:?} {end:?}");
            }
        }
    }
}
