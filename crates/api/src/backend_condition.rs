//! The condition of a backend: whether an operator must look at it.

use serde::{Deserialize, Serialize};

/// The condition of a backend. The first variant is the most urgent one.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum BackendCondition {
    /// Health checks fail.
    Down,
    /// The circuit breaker has ejected the backend. In panic mode it gets requests nevertheless.
    Ejected,
    /// Attempts at the backend fail.
    Failing,
    /// A verdict of the severity `critical` holds at the backend.
    Critical,
    /// The backend is drained while requests are refused, or the drain has lasted so long that somebody seems
    /// to have forgotten it.
    DrainHarms,
    /// The TTFT of the backend is far above the TTFT of the other backends.
    Slow,
    /// Routing avoids the backend because it is slower than the other backends.
    Avoided,
    /// Streams of the backend are stalled.
    Stalled,
    /// A verdict of the severity `warning` holds at the backend.
    Warning,
    /// The backend gets no requests, on purpose or because no health check has completed.
    Excluded,
    /// The backend gets requests, and nothing is known against it.
    #[default]
    Ok,
}

impl BackendCondition {
    /// Whether requests fail, wait or are refused because of the backend.
    pub fn is_critical(self) -> bool {
        self <= Self::DrainHarms
    }

    /// Whether an operator must look at the backend.
    pub fn needs_attention(self) -> bool {
        self < Self::Excluded
    }
}
