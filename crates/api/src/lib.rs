//! The JSON documents of the admin listener, shared by the gateway that writes them and by
//! `tokenweir top`, which reads them.
//!
//! A field that another version of the gateway leaves out has its default value.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokenweir_diagnose::Verdict;

/// The document of `GET /streams`: the state of the gateway at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewaySnapshot {
    /// Version of the gateway.
    pub version: String,
    /// Name of the routing policy.
    pub policy: String,
    /// Whether the gateway is ready: a backend is available and no drain is in progress.
    pub ready: bool,
    /// Why no backend is available: a summary of the states of all backends. `None`: at least one
    /// backend is available.
    pub unready_reason: Option<String>,
    /// Whether the gateway is in panic mode: so many backends are ejected that ejections are
    /// ignored.
    pub panic_mode: bool,
    /// Whether the gateway drains because of a shutdown.
    pub draining: bool,
    /// Seconds since the start of the gateway. The rate between two documents is the increase of a
    /// total divided by the increase of this value.
    pub uptime_seconds: f64,
    /// Requests in progress, from the first byte of the request to the last byte of the response.
    pub requests_in_flight: usize,
    /// Requests in the admission queue, by class.
    pub queue: Vec<QueueSummary>,
    /// All backends.
    pub backends: Vec<BackendSummary>,
    /// The open streams.
    pub streams: StreamsSummary,
    /// Totals since the start. They include the tokens of open streams.
    pub totals: RequestTotals,
    /// The requests that ended in the last minute.
    pub last_minute: LastMinute,
    /// The last requests that ended and the last slow requests, newest first.
    pub ended: Vec<EndedRequest>,
    /// The active verdicts, as in `/status`.
    pub verdicts: Vec<Verdict>,
    /// URL template of the trace UI, with the placeholder `{trace_id}`.
    pub trace_ui: Option<String>,
}

/// One class of the admission queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueSummary {
    /// Name of the class.
    pub class: String,
    /// Number of requests that wait.
    pub waiting: usize,
}

/// The state of one backend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendSummary {
    /// Name of the backend.
    pub name: String,
    /// URL of the backend.
    pub url: String,
    /// `up`, `down`, `unknown` or `leaving`.
    pub health: String,
    /// State of the circuit breaker.
    pub breaker: String,
    /// Availability for new requests: `available`, `ejected`, `asleep`, `zero_weight`, `drained`,
    /// `down`, `unknown` or `leaving`.
    pub state: String,
    /// Whether the backend gets new requests now. In panic mode an ejected backend does.
    pub up: bool,
    /// Why the backend gets no new requests.
    pub reason: Option<String>,
    /// Whether an operator drained the backend.
    pub drained: bool,
    /// Configured weight relative to the other backends; 0 while the backend is drained.
    pub weight: u32,
    /// Names of the models that the backend serves.
    pub models: Vec<String>,
    /// KV-cache usage, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Capacity of the KV cache, in tokens.
    pub kv_capacity_tokens: Option<u64>,
    /// Requests that wait in the engine.
    pub waiting: Option<f64>,
    /// Requests that run in the engine.
    pub running: Option<f64>,
    /// Open requests of this gateway on the backend.
    pub in_flight: u32,
    /// Stalled streams of the backend.
    pub stalled: u32,
    /// Share of this backend, from 0 to 1, in the requests that ended in the last minute or are
    /// open.
    pub share: Option<f64>,
    /// Recent mean TTFT, in seconds.
    pub ttft_seconds: Option<f64>,
    /// Age of the last scraped load, in seconds.
    pub scrape_age_seconds: Option<f64>,
    /// Why the last scrape failed. `None`: it did not.
    pub scrape_error: Option<String>,
}

/// The open streams: requests whose response head was received from the backend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamsSummary {
    /// Number of open streams.
    pub count: usize,
    /// Number of streams in each phase.
    pub phases: BTreeMap<String, usize>,
    /// The streams that have been open longest, at most 200.
    pub oldest: Vec<StreamSummary>,
}

/// One open stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamSummary {
    /// Sequence number: the number of streams opened before this one.
    pub number: u64,
    /// The `x-request-id`.
    pub request_id: String,
    /// Model, as in the metric labels.
    pub model: String,
    /// Name of the backend.
    pub backend: Option<String>,
    /// Tenant, as in the metric labels.
    pub tenant: Option<String>,
    /// `prefill`, `decode`, `stalled`, `held` (the client does not read) or `ending`.
    pub phase: String,
    /// Seconds since the request head was read.
    pub age_seconds: f64,
    /// Output tokens so far. Without usage in the events: the number of events.
    pub tokens: u64,
    /// Seconds since the last output.
    pub last_output_age_seconds: Option<f64>,
}

/// A request that ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndedRequest {
    /// Sequence number: the number of requests that ended before this one.
    pub number: u64,
    /// The `x-request-id`.
    pub request_id: String,
    /// Start time, RFC 3339 with milliseconds.
    pub started: String,
    /// Seconds since the request ended.
    pub age_seconds: f64,
    /// Model, as in the metric labels.
    pub model: String,
    /// Backend of the last attempt.
    pub backend: Option<String>,
    /// Tenant, as in the metric labels.
    pub tenant: Option<String>,
    /// Outcome of the request.
    pub outcome: String,
    /// TTFT as the client observes it, in seconds.
    pub ttft_seconds: Option<f64>,
    /// Duration of the request, in seconds.
    pub duration_seconds: f64,
    /// Output tokens of the response.
    pub output_tokens: Option<u64>,
    /// Cause of the slowness. `None`: the request was not slow.
    pub slow_cause: Option<String>,
    /// Trace id, if the trace was sampled.
    pub trace_id: Option<String>,
}

/// Counts and latencies of the requests that ended in the last minute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastMinute {
    /// Length of the interval in seconds: less than 60 after the start, else 60 plus up to one
    /// window.
    pub seconds: f64,
    /// Requests that ended.
    pub requests: u64,
    /// Failed requests, for any reason. A disconnect of the client is not a failure.
    pub failed: u64,
    /// Requests whose client disconnected.
    pub client_disconnects: u64,
    /// Output tokens of the responses.
    pub output_tokens: u64,
    /// TTFT of streams as the clients observe it, in seconds.
    pub ttft: Option<LatencyQuantiles>,
    /// Inter-token latency of streams, in seconds. For a stream whose events do not report token
    /// counts: the time between events.
    pub itl: Option<LatencyQuantiles>,
    /// Duration of successful requests, in seconds.
    pub e2e: Option<LatencyQuantiles>,
    /// Ended requests by the backend that responded.
    pub requests_by_backend: BTreeMap<String, u64>,
}

/// Totals since the start of the gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestTotals {
    /// Requests that ended.
    pub requests: u64,
    /// Output tokens.
    pub output_tokens: u64,
}

/// Quantiles of a latency, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyQuantiles {
    /// Number of samples.
    pub count: u64,
    /// 50th percentile.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}
