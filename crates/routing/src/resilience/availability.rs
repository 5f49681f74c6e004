//! Whether a backend may be sent new requests.

/// Whether a backend may be sent new requests, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Availability {
    /// The backend gets new requests. A saturated backend is available too: requests wait for it in
    /// the queue.
    Available,
    /// The circuit breaker has ejected the backend, because it failed requests.
    Ejected,
    /// The engine reports that it sleeps: its weights are not on the GPU.
    Asleep,
    /// The engine reports that an operator paused it: it refuses or holds requests.
    Paused,
    /// The backend accepts connections again after it refused them, and is not healthy yet.
    Starting,
    /// The engine serves nothing while its number of ranks changes.
    Scaling,
    /// The engine was taken out of its group of ranks, and waits for its end.
    Retired,
    /// The configured weight is 0.
    ZeroWeight,
    /// An operator has drained the backend.
    Drained,
    /// Health checks fail, a connection of a request failed, or the engine makes no progress.
    Down,
    /// The first health check has not completed.
    Unknown,
}

impl Availability {
    /// All values of the enum.
    pub const ALL: [Self; 11] = [
        Self::Available,
        Self::Ejected,
        Self::Asleep,
        Self::Paused,
        Self::Starting,
        Self::Scaling,
        Self::Retired,
        Self::ZeroWeight,
        Self::Drained,
        Self::Down,
        Self::Unknown,
    ];

    /// The name in metrics, in `/status` and in `/readyz`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Ejected => "ejected",
            Self::Asleep => "asleep",
            Self::Paused => "paused",
            Self::Starting => "starting",
            Self::Scaling => "scaling",
            Self::Retired => "retired",
            Self::ZeroWeight => "zero_weight",
            Self::Drained => "drained",
            Self::Down => "down",
            Self::Unknown => "unknown",
        }
    }
}
