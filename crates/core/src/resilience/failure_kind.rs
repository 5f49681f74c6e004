//! Classifies the failures of an attempt before its response reached the client, and maps each kind
//! to its effect on failover and on the circuit breaker.

/// How an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// No connection to the backend could be opened.
    Unreachable,
    /// The gateway had no file descriptor or local port for a connection.
    GatewayExhausted,
    /// The backend closed the connection before the response had any output.
    Died,
    /// The response was not valid HTTP.
    Garbage,
    /// The health check marked the backend down while the request waited for output.
    Down,
    /// The response head did not arrive in time.
    ResponseHeadTimeout,
    /// The first output did not arrive in time.
    SlowOutput,
    /// The timeout that the client set for the first output expired.
    ClientTimeout,
    /// The request took longer than its total timeout.
    TotalTimeout,
    /// The backend reported that it is full, paused or scaling.
    Busy,
    /// The backend reported that its engine is dead. Its process will end soon.
    EngineDead,
    /// Any other 5xx status.
    ServerError,
    /// The backend does not know a model that it listed before.
    UnknownModel,
    /// The backend reported an error inside a 200 response.
    InBandError,
    /// The backend ended the request without output because it is shutting down.
    Draining,
    /// The stream ended without output and without the marker of its end.
    Empty,
    /// The backend does not have the stored response that the request is about.
    NotStored,
}

/// Whether the request may fail over to another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailoverPolicy {
    /// The request may always fail over, because the backend did not execute it.
    Always,
    /// The request may fail over if it may be sent twice and the retry budget allows it.
    Conditional,
    /// The request may not fail over: its time is over, or another backend could not be reached
    /// either.
    Never,
}

/// Effect of a failure on the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerAction {
    /// The failure has no effect.
    Nothing,
    /// The backend is marked as down until a health check succeeds.
    MarkDown,
    /// The circuit breaker counts a failure.
    CountFailure,
    /// The backend gets no requests for one second, because it is overloaded, not defective.
    BackOff,
    /// The circuit breaker ejects the backend at once.
    Eject,
    /// The backend gets no new requests for ten seconds. Then one request probes it.
    Drain,
    /// The gateway fetches the model list of the backend again.
    RefreshModels,
}

impl FailureKind {
    /// All kinds.
    pub const ALL: [Self; 17] = [
        Self::Unreachable,
        Self::GatewayExhausted,
        Self::Died,
        Self::Garbage,
        Self::Down,
        Self::ResponseHeadTimeout,
        Self::SlowOutput,
        Self::ClientTimeout,
        Self::TotalTimeout,
        Self::Busy,
        Self::EngineDead,
        Self::ServerError,
        Self::UnknownModel,
        Self::InBandError,
        Self::Draining,
        Self::Empty,
        Self::NotStored,
    ];

    /// Whether the failed attempt counts as a failure of its backend. Otherwise the client or the
    /// gateway is the cause, or the backend has no such item or path.
    pub const fn is_of_backend(self) -> bool {
        !matches!(
            self,
            Self::GatewayExhausted | Self::ClientTimeout | Self::TotalTimeout | Self::NotStored
        )
    }

    /// Name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "connect_error",
            Self::GatewayExhausted => "gateway_exhausted",
            Self::Died => "connection_reset",
            Self::Garbage => "bad_response",
            Self::Down => "backend_down",
            Self::ResponseHeadTimeout => "timeout",
            Self::SlowOutput => "first_output_timeout",
            Self::ClientTimeout => "client_timeout",
            Self::TotalTimeout => "total_timeout",
            Self::Busy => "busy",
            Self::EngineDead => "engine_dead",
            Self::ServerError => "server_error",
            Self::UnknownModel => "unknown_model",
            Self::InBandError => "inband_error",
            Self::Draining => "draining",
            Self::Empty => "empty",
            Self::NotStored => "not_stored",
        }
    }

    /// Whether the request may fail over to another backend.
    pub const fn elsewhere(self) -> FailoverPolicy {
        match self {
            Self::Unreachable | Self::NotStored => FailoverPolicy::Always,
            // No connection to another backend can be opened either.
            Self::GatewayExhausted
            | Self::ResponseHeadTimeout
            | Self::SlowOutput
            | Self::ClientTimeout
            | Self::TotalTimeout => FailoverPolicy::Never,
            Self::Died
            | Self::Down
            | Self::Garbage
            | Self::Busy
            | Self::EngineDead
            | Self::ServerError
            | Self::UnknownModel
            | Self::InBandError
            | Self::Draining
            | Self::Empty => FailoverPolicy::Conditional,
        }
    }

    /// Effect on the backend. Failures that a client can cause at will have no effect, so a client
    /// cannot eject a backend.
    pub const fn effect(self) -> BreakerAction {
        match self {
            Self::GatewayExhausted
            | Self::ClientTimeout
            | Self::TotalTimeout
            | Self::Down
            | Self::NotStored => BreakerAction::Nothing,
            Self::Unreachable => BreakerAction::MarkDown,
            Self::Busy => BreakerAction::BackOff,
            Self::EngineDead => BreakerAction::Eject,
            Self::Draining => BreakerAction::Drain,
            Self::UnknownModel => BreakerAction::RefreshModels,
            Self::Died
            | Self::Garbage
            | Self::ResponseHeadTimeout
            | Self::SlowOutput
            | Self::ServerError
            | Self::InBandError
            | Self::Empty => BreakerAction::CountFailure,
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
        )
    }

    /// Whether the request may have crashed the engine.
    pub const fn is_crash(self) -> bool {
        matches!(self, Self::Died | Self::EngineDead)
    }
}
