//! Classifications of how a request ended and how accurate its record is. Each class is a closed set with one
//! name per value in metrics, logs and spans.

use tokenweir_protocol::named_enum;

named_enum! {
    /// How a request ended. Each request has exactly one outcome.
    #[derive(Hash)]
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
        /// The backend reported an error inside a response that began with a status below 400.
        StreamError = "stream_error",
        /// The response ended early: the connection broke, or the body ended regularly without an answer, or
        /// without both the terminal event and a finish reason of some choice.
        Truncated = "truncated",
        /// The engine aborted the request although the client was still connected.
        Aborted = "aborted",
        /// The backend missed a timeout: for the response head, the first output, the next output or the end of
        /// the response.
        Timeout = "timeout",
        /// The gateway shut down before the response was complete.
        Shutdown = "shutdown",
    }
}

/// How the response of an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Termination {
    /// The backend sent the regular end of the body, as defined by HTTP framing. The stream in the body can
    /// still lack its terminal event.
    Complete,
    /// The connection to the backend broke.
    UpstreamReset,
    /// The client closed its connection before the end of the response.
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
    pub enum TerminationInitiator {
        /// The client ended the response.
        Client = "client",
        /// The backend ended the response.
        Backend = "backend",
        /// The gateway ended the response.
        Gateway = "gateway",
    }
}

named_enum! {
    /// How a request ended: its outcome and, where it adds information, how the response ended.
    pub enum TerminationReason {
        /// The response was complete.
        Ok = "ok",
        /// The client disconnected, or did not read in time, after the end of a complete response.
        OkClientDisconnected = "ok_client_disconnected_after_end",
        /// The client disconnected before the response was complete.
        ClientCancelled = "client_cancelled",
        /// The client did not read the response in time.
        ClientWriteTimeout = "client_write_timeout",
        /// The API key of the client was removed.
        ClientKeyRevoked = "client_key_revoked",
        /// The client sent an invalid request: [`Outcome::ClientError`].
        ClientError = "client_error",
        /// A backend answered with an error status: [`Outcome::UpstreamError`].
        UpstreamStatus = "upstream_status",
        /// A stream contained an error event: [`Outcome::StreamError`].
        InBandError = "inband_error",
        /// A backend ended the response with an abort: [`Outcome::Aborted`].
        UpstreamAbort = "upstream_abort",
        /// The body ended regularly, but a part of the response was missing.
        TruncatedClean = "truncated_clean",
        /// The connection to the backend broke.
        TruncatedCut = "truncated_cut",
        /// The backend did not send the response head in time.
        TimeoutHeaders = "timeout_headers",
        /// The backend did not send the first output in time.
        TimeoutFirstOutput = "timeout_first_output",
        /// The backend did not send the next output in time.
        TimeoutIdle = "timeout_idle",
        /// The request took longer than its total timeout.
        TimeoutTotal = "timeout_total",
        /// The gateway rejected the request: [`Outcome::Rejected`].
        GatewayReject = "gateway_reject",
        /// The gateway shut down: [`Outcome::Shutdown`].
        GatewayShutdown = "gateway_shutdown",
    }
}

named_enum! {
    /// Accuracy of the output token count.
    #[derive(Default)]
    pub enum UsageSource {
        /// The final count of the engine.
        Exact = "exact",
        /// Counts that the engine sent during the stream: its running count, or the ids or logprobs of every
        /// token.
        Continuous = "continuous",
        /// Estimated from the number of output events and the usual number of tokens per event of this backend.
        /// An end token without text counts as one token.
        Estimated = "estimated",
        /// The engine reported no final count, and the response had no output events to count.
        #[default]
        Missing = "missing",
    }
}

named_enum! {
    /// The result of handling the usage event that only the gateway requested.
    pub enum UsageEventOutcome {
        /// The gateway removed the usage event from the response.
        Stripped = "stripped",
        /// The backend sent no usage event.
        Missing = "missing",
        /// Usage was not removed, and the client received it. An event with usage also has choices, is too long
        /// or has an unknown layout.
        NotRemoved = "not_removed",
    }
}

/// Where a server writes usage into a stream if the request asks for the usage event but not for continuous
/// usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageLayout {
    /// Only the usage event has usage.
    AtEnd,
    /// The usage event has usage. As in old versions of vLLM, the other events have a `usage` of `null`.
    Nulls,
    /// Every event has usage (vLLM with `--enable-force-include-usage`).
    EveryEvent,
}

named_enum! {
    /// Why a response could not be inspected in full. Its bytes are forwarded regardless.
    #[derive(Hash)]
    pub enum UninspectedReason {
        /// The response was compressed, although the gateway asked for `identity`.
        ContentEncoded = "content_encoded",
        /// The data does not have the format of this API.
        Malformed = "malformed",
        /// The response has output of a kind that the gateway does not know. It counts as output, but not as
        /// text, reasoning or a tool call.
        UnknownOutput = "unknown_output",
    }
}

impl Outcome {
    /// Whether the request failed because of its backend.
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

impl TerminationReason {
    /// The reason that follows from this outcome and this end of the response.
    pub(in crate::record) const fn of(outcome: Outcome, termination: Termination) -> Self {
        match (outcome, termination) {
            (Outcome::Ok, Termination::ClientDisconnected | Termination::WriteTimeout) => {
                Self::OkClientDisconnected
            }
            (Outcome::Ok, _) => Self::Ok,
            (Outcome::Cancelled, Termination::WriteTimeout) => Self::ClientWriteTimeout,
            (Outcome::Cancelled, Termination::KeyRevoked) => Self::ClientKeyRevoked,
            (Outcome::Cancelled, _) => Self::ClientCancelled,
            (Outcome::ClientError, _) => Self::ClientError,
            (Outcome::Rejected, _) => Self::GatewayReject,
            (Outcome::UpstreamError, _) => Self::UpstreamStatus,
            (Outcome::StreamError, _) => Self::InBandError,
            (Outcome::Aborted, _) => Self::UpstreamAbort,
            (Outcome::Truncated, Termination::UpstreamReset) => Self::TruncatedCut,
            (Outcome::Truncated, _) => Self::TruncatedClean,
            (Outcome::Timeout, Termination::IdleTimeout) => Self::TimeoutIdle,
            (Outcome::Timeout, Termination::TotalTimeout) => Self::TimeoutTotal,
            (Outcome::Timeout, _) => Self::TimeoutHeaders,
            (Outcome::Shutdown, _) => Self::GatewayShutdown,
        }
    }
}
