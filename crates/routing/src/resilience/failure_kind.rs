//! Classifies the failures of an attempt before its response reached the client, and maps each kind
//! to its effect on failover and on the circuit breaker.

use tokenweir_protocol::named_enum;

named_enum! {
    /// The kind of a failed attempt.
    #[derive(Hash)]
    pub enum FailureKind {
        /// No connection to the backend could be opened.
        Unreachable = "connect_error",
        /// The gateway had no file descriptor or local port for a connection.
        GatewayExhausted = "gateway_exhausted",
        /// The backend closed the connection before the response had any output.
        Died = "connection_reset",
        /// The response was not valid HTTP.
        Garbage = "bad_response",
        /// The health check marked the backend down while the request waited for output.
        Down = "backend_down",
        /// The response head did not arrive in time.
        ResponseHeadTimeout = "timeout",
        /// The first output did not arrive in time.
        SlowOutput = "first_output_timeout",
        /// The timeout that the client set for the first output expired.
        ClientTimeout = "client_timeout",
        /// The request took longer than its total timeout.
        TotalTimeout = "total_timeout",
        /// The backend reported that it is full, paused or scaling.
        Busy = "busy",
        /// The backend reported that its engine is dead. Its process will end soon.
        EngineDead = "engine_dead",
        /// Any other 5xx status.
        ServerError = "server_error",
        /// The backend reported that it does not have the model, although it listed the model
        /// before.
        UnknownModel = "unknown_model",
        /// The backend reported an error inside a 200 response.
        InBandError = "inband_error",
        /// The backend ended the request without output because it is shutting down.
        Draining = "draining",
        /// The response has a success status and ended without an answer.
        Empty = "empty",
        /// The backend does not have the stored response that the request is about.
        NotStored = "not_stored",
        /// The backend did not accept the credential: 401, 403 or 407.
        Unauthorized = "unauthorized",
        /// The backend got too many requests: 429.
        RateLimited = "rate_limited",
        /// The backend does not serve the path: 404, 405 or 501.
        MissingPath = "missing_path",
        /// The request is longer than the context of the model at this backend.
        TooLong = "too_long",
        /// The backend does not accept the data-parallel rank that the gateway chose.
        TargetRefused = "rank_refused",
        /// The blocks of the KV cache that a prefill leg computed did not reach the decode backend.
        TransferFailed = "transfer_failed",
        /// Any other status outside of 2xx and 5xx, such as 400 or a redirect.
        UnexpectedStatus = "unexpected_status",
    }
}

/// Whether the request may fail over to another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailoverPolicy {
    /// The request may always fail over, because the backend did not execute it.
    Always,
    /// The request may fail over if it may be sent twice and the retry budget allows it.
    Conditional,
    /// The request must not fail over. Its time limit has passed, or no other backend could be reached either.
    Never,
}

/// Effect of a failure on the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerAction {
    /// The backend stays as it is.
    Nothing,
    /// The backend is marked as down until a health check succeeds.
    MarkDown,
    /// The circuit breaker counts a failure.
    CountFailure,
    /// The circuit breaker counts a failure, unless the backend answered another request successfully in the
    /// last seconds. In that case this request may be the cause.
    CountUnlessServing,
    /// The backend gets no requests for one second, or for the time in `Retry-After`, because it is overloaded
    /// but not defective.
    BackOff,
    /// The circuit breaker ejects the backend at once.
    Eject,
    /// The backend gets no new requests for ten seconds. After that, one request probes it.
    Drain,
}

impl FailureKind {
    /// The failure kind of a response whose status is not 2xx. The status 529 means overload in Anthropic's API
    /// and in compatible servers.
    pub const fn of_status(status: u16) -> Self {
        match status {
            503 | 529 => Self::Busy,
            500 | 502 | 504..=599 => Self::ServerError,
            _ => Self::of_refusal(status),
        }
    }

    /// The failure kind of a response whose status is 501, or neither 2xx nor 5xx.
    pub const fn of_refusal(status: u16) -> Self {
        match status {
            401 | 403 | 407 => Self::Unauthorized,
            404 | 405 | 501 => Self::MissingPath,
            429 => Self::RateLimited,
            _ => Self::UnexpectedStatus,
        }
    }

    /// Whether either the client or the backend may be the cause of the response. If another backend answers
    /// the same request successfully, the attempt is a failure of this backend.
    pub const fn is_judged_by_peers(self) -> bool {
        matches!(
            self,
            Self::UnknownModel
                | Self::Unauthorized
                | Self::RateLimited
                | Self::MissingPath
                | Self::UnexpectedStatus
        )
    }

    /// Whether the response shows that the backend executed no part of the request, so that even a request with
    /// side effects may be sent again.
    pub const fn precludes_effects(self) -> bool {
        matches!(
            self,
            Self::UnknownModel
                | Self::Unauthorized
                | Self::RateLimited
                | Self::MissingPath
                | Self::TargetRefused
        )
    }

    /// Whether the failed attempt counts as a failure of its backend. If not, the client or the gateway is the
    /// cause, or the backend lacks something that this request needs, such as the path.
    pub const fn is_of_backend(self) -> bool {
        !matches!(
            self,
            Self::GatewayExhausted
                | Self::ClientTimeout
                | Self::TotalTimeout
                | Self::NotStored
                | Self::MissingPath
                | Self::TooLong
                | Self::TargetRefused
                | Self::TransferFailed
        )
    }

    /// Whether the request may fail over to another backend.
    pub const fn failover(self) -> FailoverPolicy {
        self.failover_and_effect().0
    }

    /// Effect of the failure on the backend.
    pub const fn effect(self) -> BreakerAction {
        self.failover_and_effect().1
    }

    /// Whether the request may fail over, and the effect on the backend. Failures that a client can cause at
    /// will have no effect, so that no client can eject a backend.
    #[expect(clippy::match_same_arms, reason = "a table with one row for each kind")]
    const fn failover_and_effect(self) -> (FailoverPolicy, BreakerAction) {
        use BreakerAction as Effect;
        use FailoverPolicy::{Always, Conditional, Never};
        match self {
            Self::Unreachable => (Always, Effect::MarkDown),
            // No connection to another backend can be opened either.
            Self::GatewayExhausted => (Never, Effect::Nothing),
            Self::Died => (Conditional, Effect::CountFailure),
            Self::Garbage => (Conditional, Effect::CountFailure),
            Self::Down => (Conditional, Effect::Nothing),
            Self::ResponseHeadTimeout => (Never, Effect::CountFailure),
            Self::SlowOutput => (Never, Effect::CountFailure),
            Self::ClientTimeout => (Never, Effect::Nothing),
            Self::TotalTimeout => (Never, Effect::Nothing),
            Self::Busy => (Conditional, Effect::BackOff),
            Self::EngineDead => (Conditional, Effect::Eject),
            Self::ServerError => (Conditional, Effect::CountFailure),
            Self::UnknownModel => (Conditional, Effect::CountUnlessServing),
            Self::InBandError => (Conditional, Effect::CountFailure),
            Self::Draining => (Conditional, Effect::Drain),
            Self::Empty => (Conditional, Effect::CountFailure),
            Self::NotStored => (Always, Effect::Nothing),
            Self::Unauthorized => (Conditional, Effect::CountUnlessServing),
            Self::RateLimited => (Conditional, Effect::BackOff),
            Self::MissingPath => (Conditional, Effect::Nothing),
            Self::TooLong => (Always, Effect::Nothing),
            Self::TargetRefused => (Always, Effect::Nothing),
            Self::TransferFailed => (Always, Effect::Nothing),
            Self::UnexpectedStatus => (Conditional, Effect::CountUnlessServing),
        }
    }

    /// Whether the engine may have computed the prompt before the attempt failed.
    pub const fn may_have_used_engine(self) -> bool {
        !matches!(
            self,
            Self::Unreachable
                | Self::GatewayExhausted
                | Self::Busy
                | Self::UnknownModel
                | Self::NotStored
                | Self::Unauthorized
                | Self::RateLimited
                | Self::MissingPath
                | Self::TooLong
                | Self::TargetRefused
                | Self::UnexpectedStatus
        )
    }

    /// Whether the request may have crashed the engine.
    pub const fn is_crash(self) -> bool {
        matches!(self, Self::Died | Self::EngineDead)
    }
}
