//! The condition of a backend: whether an operator must look at it.

use serde::Deserialize;
use tokenweir_protocol::named_enum;

named_enum! {
    /// The condition of a backend. The first variant is the most urgent one.
    #[derive(Default, PartialOrd, Ord, Hash, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum BackendCondition {
        /// The health checks of the backend fail.
        Down = "down",
        /// The circuit breaker has ejected the backend. In panic mode, the backend gets requests anyway.
        Ejected = "ejected",
        /// Many attempts at the backend fail.
        Failing = "failing",
        /// A verdict of the severity `critical` holds at the backend.
        Critical = "critical",
        /// The backend is drained, and requests are refused for lack of backends, or the drain has lasted
        /// unusually long.
        DrainHarms = "drain_harms",
        /// The TTFT of the backend is far above the TTFT of the other backends.
        Slow = "slow",
        /// Routing avoids the backend because it is slower than the others, or an earlier verdict cannot be
        /// checked again because the backend gets no requests.
        Avoided = "avoided",
        /// Streams of the backend are stalled, or its oldest request is overdue.
        Stalled = "stalled",
        /// A verdict of the severity `warning` holds at the backend.
        Warning = "warning",
        /// The backend gets no requests, on purpose or because no health check has completed.
        Excluded = "excluded",
        /// The backend gets requests, and no other condition applies.
        #[default]
        Ok = "ok",
    }
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
