//! The condition of the backend and its engine while it served one request.

use std::time::{Duration, Instant};

/// The load and state that a backend last reported, and their age.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BackendCondition {
    /// Share of its KV cache that requests hold, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Number of requests that run in its engine: the batch.
    pub running: Option<u32>,
    /// Number of requests that wait in its engine.
    pub waiting: Option<u32>,
    /// Number of preemptions since its start.
    pub preemptions: Option<u64>,
    /// When it last reported requests that wait in its engine.
    pub last_queued_at: Option<Instant>,
    /// The backend is down.
    pub is_down: bool,
    /// Age of the reported load.
    pub age: Option<Duration>,
}

/// A silence of a stream that exceeded the stall threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// The last output before the silence.
    pub last_output_at: Instant,
    /// When the gateway detected the stall.
    pub detected_at: Instant,
    /// The next output, or the end of the exchange.
    pub ended_at: Option<Instant>,
    /// Condition of the backend when the stall was detected.
    pub condition: BackendCondition,
}

/// Mean engine times of the requests that a backend finished recently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecentEngineTimes {
    /// Time from arrival in the engine to being scheduled.
    pub queue: Option<Duration>,
    /// Time from being scheduled to the first token.
    pub prefill: Option<Duration>,
}
