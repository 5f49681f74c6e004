//! The estimated state of a backend for one prompt, as the input of a policy.

use super::estimation::{CachedSource, PrefillCost, ReportedLoad};
use serde::Serialize;

/// A backend that a policy may pick, with its estimated state for one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Candidate {
    /// Index of the backend in the pool.
    #[serde(skip)]
    pub position: usize,
    /// The number of a data-parallel rank on the metrics page, if the candidate is this rank instead of the
    /// whole backend. `None`: the whole backend.
    #[serde(rename = "rank", skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// Requests of this gateway in flight at the backend.
    pub in_flight: u32,
    /// Uncached prompt tokens plus expected output tokens of the requests that `in_flight` counts.
    pub tokens_in_flight: f64,
    /// Configured share of the requests, relative to the weights of the other backends. 0 counts as
    /// 1.
    pub weight: u32,
    /// Number of requests, in millionths, by which the backend is below its share. Negative: the backend has
    /// had more than its share. See [`shares`](super::shares).
    #[serde(skip)]
    pub credit: i64,
    /// Whether the backend has loaded the LoRA adapter of the request. True if the request needs
    /// no adapter.
    pub has_adapter: bool,
    /// Whether the request needs a LoRA adapter.
    #[serde(skip)]
    pub needs_adapter: bool,
    /// Hash key of the backend, for rendezvous hashing of sessions.
    #[serde(skip)]
    pub key: u64,
    /// Estimated tokens of the prompt.
    pub prompt: f64,
    /// Prompt tokens that are probably in the prefix cache of the backend.
    pub cached: f64,
    /// Number of leading blocks of the prompt that are probably in the prefix cache of the backend.
    pub cached_blocks: u32,
    /// The source of information from which `cached` was estimated.
    pub cached_source: CachedSource,
    /// Expected output tokens.
    pub output: f64,
    /// Prompt tokens that the engine has to compute before the tokens of this request.
    pub backlog: f64,
    /// Estimated cost of prefill at the backend.
    pub prefill: PrefillCost,
    /// Weight of `prefill`, from 0 to 1. The weight falls while the backend is idle. 0: the backend has
    /// had no output yet.
    pub prefill_freshness: f64,
    /// Whether `prefill` was learned from a first output of this backend.
    pub is_calibrated: bool,
    /// Whether `prompt` and `output` were estimated from token usage that this backend reported.
    pub has_usage: bool,
    /// Seconds since this gateway last sent a request to the backend. Before the first request:
    /// since the start of its [`LoadEstimator`](super::LoadEstimator).
    pub idle_seconds: f64,
    /// Estimated number of requests that wait in the engine.
    pub waiting: f64,
    /// Estimated number of requests that run in the engine.
    pub running: f64,
    /// The load in the last scrape. Zeros before the first report.
    pub reported: ReportedLoad,
    /// Estimated share of the KV cache that requests occupy. Above 1, the requests do not fit into the cache.
    /// `None`: no report contained the KV cache usage.
    pub kv_usage: Option<f64>,
    /// Capacity of the KV cache in tokens. `None`: not reported.
    pub capacity: Option<u64>,
    /// Weight of the last report in the estimates of this candidate, from 0 to 1. The weight falls with the
    /// age of the report.
    pub certainty: f64,
    /// Seconds for which the engine seems to be at a standstill. Either the oldest request without output is
    /// overdue and no other request has had output since, or all streams have stalled. 0: neither is true.
    pub overdue: f64,
    /// Mean time in seconds between two tokens of a sequence in the engine, if it is at least twice its
    /// minimum. 0: below that, or not known.
    #[serde(skip)]
    pub token_gap: f64,
}

impl Candidate {
    /// The backend and its part, which identify the candidate in a decision.
    pub const fn target(&self) -> (usize, Option<u32>) {
        (self.position, self.part)
    }

    /// Whether all estimates are finite numbers, as policies require.
    #[inline] // each candidate of each decision is checked
    pub fn is_finite(&self) -> bool {
        // The product of zero and a number is zero only for finite numbers.
        let sum = 0.0
            * (self.tokens_in_flight
                + self.prompt
                + self.cached
                + self.output
                + self.backlog
                + self.prefill.base
                + self.prefill.per_token
                + self.waiting
                + self.running
                + self.kv_usage.unwrap_or(0.0)
                + self.certainty
                + self.overdue
                + self.token_gap);
        sum == 0.0
    }
}
