//! Classifications of how a request ended and how accurate its record is. Each is a closed set with
//! one name per value in metrics, logs and spans.

use tokenweir_protocol::named_enum;

named_enum! {
    /// The outcome of a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Outcome {
        /// The response was complete.
        Ok = "ok",
        /// The client disconnected before the response was complete, did not read it in time, or its API
        /// key was removed.
        Cancelled = "cancelled",
        /// The client caused the error: a 4xx status from the backend or the gateway.
        ClientError = "client_error",
        /// The gateway rejected the request, for example because no backend had capacity.
        Rejected = "rejected",
        /// The backend answered with a 5xx status or could not be reached.
        UpstreamError = "upstream_error",
        /// The backend reported an error inside a stream that began with a status below 400. An
        /// error in the body of a response that is not a stream does not lead to this outcome.
        StreamError = "stream_error",
        /// The response ended early: the connection broke, or the body ended regularly although a
        /// choice had no finish reason and the terminal event was missing.
        Truncated = "truncated",
        /// The engine aborted the request although the client was connected.
        Aborted = "aborted",
        /// The backend did not send the response head, the first output, the next output or the end
        /// of the response before its timeout.
        Timeout = "timeout",
        /// The gateway shut down before the response was complete.
        Shutdown = "shutdown",
    }
}

/// How the response of an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Termination {
    /// The backend sent the regular end of the body, as HTTP framing defines it. The stream in the
    /// body can still lack its terminal event.
    Complete,
    /// The connection to the backend broke.
    UpstreamReset,
    /// The client disconnected first.
    ClientDisconnected,
    /// The gateway aborted the response because the client did not read it for too long.
    WriteTimeout,
    /// The gateway answered the request itself.
    LocalReply,
    /// The gateway aborted a stream because the backend sent no output for too long.
    IdleTimeout,
    /// The gateway aborted the response because the request took longer than its total timeout.
    TotalTimeout,
    /// The gateway aborted the response because the API key of its client was removed.
    KeyRevoked,
    /// The gateway shut down.
    Shutdown,
}

named_enum! {
    /// The side that ended the response.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TerminationInitiator {
        /// The client.
        Client = "client",
        /// The backend.
        Backend = "backend",
        /// The gateway.
        Gateway = "gateway",
    }
}

named_enum! {
    /// Accuracy of the output token count.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum UsageSource {
        /// The final count of the engine.
        Exact = "exact",
        /// Counts that the engine sent during the stream: its count so far, or the ids or logprobs
        /// of every token.
        Continuous = "continuous",
        /// Estimated from the number of output events and the tokens that an event of this backend
        /// usually has. An end token without text counts as one token.
        Estimated = "estimated",
        /// There was nothing to count.
        #[default]
        Missing = "missing",
    }
}

named_enum! {
    /// How the gateway handled the usage event that it requested and the client did not.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum UsageEventOutcome {
        /// The gateway removed the usage event from the response.
        Stripped = "stripped",
        /// The backend sent no usage event.
        Missing = "missing",
        /// The backend sends usage with every event regardless, so nothing was removed.
        AlwaysSent = "always_sent",
        /// The usage of an event could not be removed, because the event is too long or has an
        /// unknown layout: the client received it.
        NotRemoved = "not_removed",
    }
}

/// Where a server writes usage into a stream whose request asks for the usage event, and not for
/// continuous usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageLayout {
    /// In the usage event only.
    AtEnd,
    /// In the usage event. The other events have a `usage` of `null`, as in old versions of vLLM.
    Nulls,
    /// In every event (vLLM with `--enable-force-include-usage`).
    EveryEvent,
}

named_enum! {
    /// Why a response could not be inspected in full. Its bytes are forwarded regardless.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum UninspectedReason {
        /// The response was compressed, although the gateway asks for `identity`.
        ContentEncoded = "content_encoded",
        /// The data does not have the format of this API.
        Malformed = "malformed",
        /// The response has output that the gateway does not know. It counts as output, and not as
        /// text, reasoning or a tool call.
        UnknownOutput = "unknown_output",
    }
}

// === impl Outcome ===

impl Outcome {
    /// Whether the backend failed the request.
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

impl Termination {
    /// The side that ended the response.
    pub const fn initiator(self) -> TerminationInitiator {
        match self {
            Self::ClientDisconnected => TerminationInitiator::Client,
            Self::Complete | Self::UpstreamReset => TerminationInitiator::Backend,
            Self::WriteTimeout
            | Self::LocalReply
            | Self::IdleTimeout
            | Self::TotalTimeout
            | Self::KeyRevoked
            | Self::Shutdown => TerminationInitiator::Gateway,
        }
    }
}

/// The values of [`RequestRecord::ending`](crate::record::RequestRecord::ending).
pub const TERMINATION_REASONS: &[&str] = &[
    "ok",
    "ok_client_disconnected_after_end",
    "client_cancelled",
    "client_write_timeout",
    "client_key_revoked",
    "client_error",
    "upstream_status",
    "inband_error",
    "upstream_abort",
    "truncated_clean",
    "truncated_cut",
    "timeout_headers",
    "timeout_first_output",
    "timeout_idle",
    "timeout_total",
    "gateway_reject",
    "gateway_shutdown",
];

/// The termination reason: the outcome, and how the response ended where that adds information.
pub(in crate::record) fn termination_reason(
    outcome: Outcome,
    termination: Termination,
) -> &'static str {
    match (outcome, termination) {
        (Outcome::Ok, Termination::ClientDisconnected | Termination::WriteTimeout) => {
            "ok_client_disconnected_after_end"
        }
        (Outcome::Ok, _) => "ok",
        (Outcome::Cancelled, Termination::WriteTimeout) => "client_write_timeout",
        (Outcome::Cancelled, Termination::KeyRevoked) => "client_key_revoked",
        (Outcome::Cancelled, _) => "client_cancelled",
        (Outcome::ClientError, _) => "client_error",
        (Outcome::Rejected, _) => "gateway_reject",
        (Outcome::UpstreamError, _) => "upstream_status",
        (Outcome::StreamError, _) => "inband_error",
        (Outcome::Aborted, _) => "upstream_abort",
        (Outcome::Truncated, Termination::UpstreamReset) => "truncated_cut",
        (Outcome::Truncated, _) => "truncated_clean",
        (Outcome::Timeout, Termination::IdleTimeout) => "timeout_idle",
        (Outcome::Timeout, Termination::TotalTimeout) => "timeout_total",
        (Outcome::Timeout, _) => "timeout_headers",
        (Outcome::Shutdown, _) => "gateway_shutdown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_termination_reason_is_in_the_list() {
        let terminations = [
            Termination::Complete,
            Termination::UpstreamReset,
            Termination::ClientDisconnected,
            Termination::WriteTimeout,
            Termination::LocalReply,
            Termination::IdleTimeout,
            Termination::TotalTimeout,
            Termination::KeyRevoked,
            Termination::Shutdown,
        ];
        for outcome in Outcome::ALL {
            for termination in terminations {
                assert!(
                    TERMINATION_REASONS.contains(&termination_reason(outcome, termination)),
                    "{outcome:?} {termination:?}"
                );
            }
        }
    }
}
