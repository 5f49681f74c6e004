//! How a replica failed a request before any of its answer went on, and one table of what follows.

/// How a replica failed a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Symptom {
    /// No connection.
    Unreachable,
    /// The gateway had no file descriptor or port for a connection.
    GatewayExhausted,
    /// It broke the connection off before its answer had any output.
    Died,
    /// It did not speak HTTP.
    Garbage,
    /// Its health check declared it down while the request waited for output.
    Down,
    /// The head of its answer did not come in time.
    SlowHead,
    /// The first output of its answer did not come in time.
    SlowOutput,
    /// The client's own time for the first output was over.
    Late,
    /// It is full, paused or scaling, and says so.
    Busy,
    /// Its engine is dead: it ends soon.
    EngineDead,
    /// Any other 5xx.
    ServerError,
    /// It does not know a model that it said it serves.
    UnknownModel,
    /// It reported a failure inside a 200.
    InBandError,
    /// It gave the request up without a token: it is told to end.
    Draining,
    /// Its stream ended as HTTP says it should, with nothing in it.
    Empty,
}

/// Whether another replica may have the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elsewhere {
    /// In any case: this one has not had it.
    Always,
    /// If the request may be sent twice, and there have not been too many of these.
    Perhaps,
    /// It is too late, or it would fare the same.
    Never,
}

/// What becomes of the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// It is down until it is found well.
    Down,
    /// It counts as a failure.
    Strike,
    /// It is left alone for a moment: it is full, not ill.
    Rest,
    /// It is ejected at once.
    Eject,
    /// It gets nothing new for a while, and is tried then.
    Drain,
    /// It is asked for its models again.
    Doubt,
}

impl Symptom {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Unreachable,
        Self::GatewayExhausted,
        Self::Died,
        Self::Garbage,
        Self::Down,
        Self::SlowHead,
        Self::SlowOutput,
        Self::Late,
        Self::Busy,
        Self::EngineDead,
        Self::ServerError,
        Self::UnknownModel,
        Self::InBandError,
        Self::Draining,
        Self::Empty,
    ];

    /// The name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "connect_error",
            Self::GatewayExhausted => "gateway_exhausted",
            Self::Died => "connection_reset",
            Self::Garbage => "bad_response",
            Self::Down => "backend_down",
            Self::SlowHead => "timeout",
            Self::SlowOutput => "first_output_timeout",
            Self::Late => "client_timeout",
            Self::Busy => "busy",
            Self::EngineDead => "engine_dead",
            Self::ServerError => "server_error",
            Self::UnknownModel => "unknown_model",
            Self::InBandError => "inband_error",
            Self::Draining => "draining",
            Self::Empty => "empty",
        }
    }

    /// Whether another replica may have the request.
    pub const fn elsewhere(self) -> Elsewhere {
        match self {
            Self::Unreachable => Elsewhere::Always,
            // No connection to another backend can be opened either.
            Self::GatewayExhausted | Self::SlowHead | Self::SlowOutput | Self::Late => {
                Elsewhere::Never
            }
            Self::Died
            | Self::Down
            | Self::Garbage
            | Self::Busy
            | Self::EngineDead
            | Self::ServerError
            | Self::UnknownModel
            | Self::InBandError
            | Self::Draining
            | Self::Empty => Elsewhere::Perhaps,
        }
    }

    /// What becomes of the replica. Whatever a client can cause at will does it no harm.
    pub const fn effect(self) -> Effect {
        match self {
            Self::GatewayExhausted | Self::Late | Self::Down => Effect::Nothing,
            Self::Unreachable => Effect::Down,
            Self::Busy => Effect::Rest,
            Self::EngineDead => Effect::Eject,
            Self::Draining => Effect::Drain,
            Self::UnknownModel => Effect::Doubt,
            Self::Died
            | Self::Garbage
            | Self::SlowHead
            | Self::SlowOutput
            | Self::ServerError
            | Self::InBandError
            | Self::Empty => Effect::Strike,
        }
    }

    /// Whether the replica may have died of the request.
    pub const fn is_death(self) -> bool {
        matches!(self, Self::Died | Self::EngineDead)
    }
}
