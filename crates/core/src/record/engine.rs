//! What is known of the replica's engine while it answered one request.

use std::time::{Duration, Instant};

/// What a replica last said of itself, and how old that is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Condition {
    /// Share of its KV cache that requests hold, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Requests that run in its engine: the batch.
    pub running: Option<u32>,
    /// Requests that wait in its engine.
    pub waiting: Option<u32>,
    /// Preemptions since its start.
    pub preemptions: Option<u64>,
    /// When it last said that requests wait in its engine.
    pub queued_at: Option<Instant>,
    /// It is down.
    pub is_down: bool,
    /// The age of all this.
    pub age: Option<Duration>,
}

/// A stream fell silent for longer than its replica's streams do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// The last output before.
    pub since: Instant,
    /// The silence was seen, while it lasted.
    pub seen: Instant,
    /// The next output, or the end of the exchange.
    pub until: Option<Instant>,
    /// The replica when the silence was seen.
    pub condition: Condition,
}

/// Mean times in the engine of the requests that it finished lately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecentTimes {
    /// From arrival to being scheduled.
    pub queue: Option<Duration>,
    /// From being scheduled to the first token.
    pub prefill: Option<Duration>,
}
