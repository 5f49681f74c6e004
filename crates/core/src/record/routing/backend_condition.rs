//! The condition of the backend and its engine while it served one request.

use std::time::{Duration, Instant};

/// The load and state that a backend last reported, and the age of the report. `None`: the backend
/// did not report the value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BackendCondition {
    /// Share of the engine's KV cache that requests occupy, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Number of requests that run in the engine.
    pub running: Option<u32>,
    /// Number of requests that wait in the engine.
    pub waiting: Option<u32>,
    /// Number of preemptions since the start of the engine.
    pub preemptions: Option<u64>,
    /// When the backend last reported requests that wait in the engine. `None`: it never did.
    pub last_queued_at: Option<Instant>,
    /// The backend is down, so its last report may no longer hold.
    pub is_down: bool,
    /// A GPU of the backend lowers its clock because of a fault of cooling or of the power supply.
    pub is_gpu_throttled: bool,
    /// Age of the reported load. `None`: the backend has not been scraped.
    pub age: Option<Duration>,
}

/// A stall: a time without output of a stream that exceeded the stall threshold of the backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// When the last output before the stall arrived.
    pub last_output_at: Instant,
    /// When the gateway detected the stall.
    pub detected_at: Instant,
    /// When the next output arrived, or the stream ended. `None`: the stall has not ended.
    pub ended_at: Option<Instant>,
    /// Condition of the backend when the stall was detected.
    pub condition: BackendCondition,
}

/// Mean engine times of the requests that a backend finished recently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecentEngineTimes {
    /// Mean time from the arrival of a request in the engine to its scheduling. `None`: unknown.
    pub queue: Option<Duration>,
    /// Mean time from the scheduling of a request to its first token. `None`: unknown.
    pub prefill: Option<Duration>,
}
