//! The condition of the backend and its engine while it served one request.

use std::time::{Duration, Instant};
use tokenweir_engine::dialect::EngineLoad;

/// The load and state that a backend last reported, and the age of the report. `None` in a field: the backend
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
    /// Whether the backend is down, so that its last report may be wrong.
    pub is_down: bool,
    /// Whether a GPU of the backend lowers its clock because of a cooling or power supply fault.
    pub is_gpu_throttled: bool,
    /// Age of the reported load. `None`: the backend has not been scraped.
    pub age: Option<Duration>,
}

/// A stall: a period without output of a stream that exceeds the stall threshold of the backend.
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

/// Facts about the wait of one request for its first output, from the scraped load of the backend and its
/// recent outputs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WaitReports {
    /// Mean time from scheduling to the first token, over the requests that the engine finished recently.
    /// `None`: unknown.
    pub mean_prefill: Option<Duration>,
    /// Mean number of prompt tokens that the engine computed for a request. 0: unknown.
    pub mean_prompt_tokens: f64,
    /// Number of requests that ran in the engine while others waited. From the scrapes during the wait of this
    /// request, or after the wait if there were none. `None`: no scrape showed a queue.
    pub running_while_queued: Option<f64>,
    /// Maximum number of requests of this gateway that the engine answered at once while others waited. 0: not
    /// known.
    pub max_answering: u32,
    /// When a response of the backend last had output. `None`: no response had output.
    pub last_output_at: Option<Instant>,
}

impl BackendCondition {
    /// The condition that an engine's reported load shows.
    pub fn of(load: &EngineLoad) -> Self {
        Self {
            kv_usage: load.kv_usage,
            running: load.running.map(|running| running as u32),
            waiting: load.waiting.map(|waiting| waiting as u32),
            preemptions: load.preemptions.map(|preemptions| preemptions as u64),
            ..Self::default()
        }
    }
}
