//! The states of a circuit breaker.

/// State of a circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// The backend gets requests.
    Closed,
    /// The backend reported a moment ago that it is overloaded or paused.
    Resting,
    /// The backend gets no requests, because it failed or is shutting down.
    Open,
    /// The backend gets one request at a time.
    HalfOpen,
}

// === impl BreakerState ===

impl BreakerState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Closed, Self::Resting, Self::Open, Self::HalfOpen];

    /// Name in metrics and in `/status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Resting => "resting",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}
