//! The JSON documents of the admin listener. The gateway writes them, and `tokenweir top` reads them.
//!
//! If the gateway has another version, its document can lack a field. The field then has its default value.

mod answers;
mod backend_condition;
mod clients;
mod groups;
mod history_page;
mod remark;

mod last_minute;

mod harm;

mod backend_summary;
mod gateway_state;

mod fleet_conditions;

pub use answers::AnswerCounts;
pub use backend_condition::BackendCondition;
pub use backend_summary::{BackendFacts, BackendSummary, GpuSummary};
pub use clients::{ClientSummary, largest_clients, main_client};
pub use fleet_conditions::{condition_counts, set_conditions};
pub use gateway_state::{GatewayFacts, GatewayState};
pub use groups::GroupSummary;
pub use harm::{Harm, HarmKind, HarmLevel, HarmShare, LateStreams, WARNING_SHARE};
pub use history_page::{HeatMap, HistoryPage, Mark, MarkKind};
pub use last_minute::{BackendMinute, LastMinute, LatencyQuantiles, ObjectiveMinute};
pub use remark::{FindingSeverity, Remark, StatusCheck};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
pub use tokenweir_diagnose::Change;
use tokenweir_diagnose::Verdict;

/// The document of `GET /streams`: the state of the gateway at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewaySnapshot {
    /// Version of the gateway.
    pub version: String,
    /// Name of the routing policy.
    pub policy: String,
    /// The state of the gateway.
    pub state: GatewayState,
    /// The reasons of a state other than `ready`, each as a text. Empty for `ready` and `shutting_down`.
    pub state_reasons: Vec<String>,
    /// Whether the gateway is ready: a backend is available and the gateway is not draining.
    pub ready: bool,
    /// Why no backend is available: a summary of the states of all backends. `None`: at least one
    /// backend is available.
    pub unready_reason: Option<String>,
    /// Whether the gateway is in panic mode: so many backends are ejected that routing ignores ejections.
    pub panic_mode: bool,
    /// Whether the gateway is draining because of a shutdown.
    pub draining: bool,
    /// Seconds since the start of the gateway. To compute a rate from two documents, divide the
    /// increase of a total by the increase of this value.
    pub uptime_seconds: f64,
    /// Number of requests in progress, from the first byte of the request to the last byte of the
    /// response.
    pub requests_in_flight: usize,
    /// The number of requests in the admission queue, for each class of `admission.classes`.
    pub queue: Vec<QueueSummary>,
    /// Waiting time of the request that has waited longest in the admission queue, in seconds. `None`: the
    /// queue is empty.
    pub longest_wait_seconds: Option<f64>,
    /// Why requests wait although backends have capacity, such as `14 of 41 sessions fit into the KV caches`. `None`:
    /// no request waits for this reason.
    pub held_because: Option<String>,
    /// The states of all backends.
    pub backends: Vec<BackendSummary>,
    /// The number of backends with each condition, such as `48 ok, 1 down, 1 slow`.
    pub backends_by_condition: String,
    /// The open streams.
    pub streams: StreamsSummary,
    /// Totals since the start of the gateway. They include the tokens of open streams.
    pub totals: RequestTotals,
    /// Counts and latencies of the requests that ended in the last 60 to 65 seconds, or since the start of the
    /// gateway if it started later.
    pub last_minute: LastMinute,
    /// The harm to clients in the last minute, from which the state follows.
    pub harm: Harm,
    /// The greatest differences from the last hour, the strongest first, as in `/status`.
    pub changes: Vec<Change>,
    /// The clients that cause the most work, the largest share first.
    pub clients: Vec<ClientSummary>,
    /// The requests of each model.
    pub models: Vec<GroupSummary>,
    /// The requests of each tenant. Empty: clients have no keys.
    pub tenants: Vec<GroupSummary>,
    /// Counts and latencies of the last hour, or since the start of the gateway if it started later.
    pub history: History,
    /// The requests that ended most recently, and the most recent slow requests, the newest first.
    pub ended: Vec<EndedRequest>,
    /// The active verdicts of the diagnosis, as in `/status`.
    pub verdicts: Vec<Verdict>,
    /// URL template of a trace in the trace UI, with the placeholder `{trace_id}`. `None`: the configuration
    /// names no trace UI.
    pub trace_ui: Option<String>,
    /// Seconds since the last read of `/metrics`. `None`: nobody has read it.
    pub metrics_read_seconds_ago: Option<f64>,
}

/// One class of the admission queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueSummary {
    /// Name of the class of requests.
    pub class: String,
    /// Number of requests of the class that wait in the queue.
    pub waiting: usize,
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
    /// The `x-request-id` of the request.
    pub request_id: String,
    /// Model name, as in the metric labels.
    pub model: String,
    /// Name of the backend.
    pub backend: Option<String>,
    /// Tenant, as in the metric labels.
    pub tenant: Option<String>,
    /// IP address of the client.
    pub client: String,
    /// Estimated number of prompt tokens. 0: unknown.
    pub prompt_tokens: u64,
    /// Phase of the stream: `no_output` (the response head has arrived, but no output), `decode`,
    /// `stalled`, `write_stalled` (the client does not read) or `closing`.
    pub phase: String,
    /// Seconds since the request head was read.
    pub age_seconds: f64,
    /// Number of output tokens so far. In a stream whose events contain no usage, each event with output counts
    /// as one token.
    pub tokens: u64,
    /// Seconds since the last output. `None`: no output has arrived yet, or the last event has already arrived.
    pub last_output_age_seconds: Option<f64>,
}

/// A request that ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndedRequest {
    /// Sequence number: the number of requests that ended before this one.
    pub number: u64,
    /// The `x-request-id` of the request.
    pub request_id: String,
    /// Start time of the request in RFC 3339 format, with milliseconds.
    pub started: String,
    /// Seconds since the request ended.
    pub age_seconds: f64,
    /// Model, as in the metric labels.
    pub model: String,
    /// Backend of the last attempt. `None`: there was no attempt.
    pub backend: Option<String>,
    /// Tenant, as in the metric labels.
    pub tenant: Option<String>,
    /// IP address of the client.
    pub client: String,
    /// Outcome of the request, such as `ok` or `upstream_error`.
    pub outcome: String,
    /// TTFT as the client observes it, in seconds. `None`: the response is not a stream, or had no output.
    pub ttft_seconds: Option<f64>,
    /// Time to the first output that is not reasoning, in seconds. `None`: the response had no reasoning.
    pub first_answer_seconds: Option<f64>,
    /// Duration of the request, in seconds.
    pub duration_seconds: f64,
    /// Output tokens of the response. `None`: the response had no output tokens to count.
    pub output_tokens: Option<u64>,
    /// Cause for which the request was slow, such as `engine_queue`. `None`: the request was not slow.
    pub slow_cause: Option<String>,
    /// Trace id. `None`: the trace was not sampled.
    pub trace_id: Option<String>,
}

/// Counts and latencies of all requests of the last hour, in intervals of equal length. Each list has one value
/// per interval, the oldest first; the last interval is not complete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// Length of an interval in seconds.
    pub interval_seconds: f64,
    /// Seconds of the last interval that have passed.
    pub last_seconds: f64,
    /// Number of requests that ended, for each interval.
    pub requests: Vec<u64>,
    /// Number of failed requests, for each interval.
    pub failed: Vec<u64>,
    /// Number of 4xx responses that are not refusals, for each interval.
    pub client_errors: Vec<u64>,
    /// Number of refused requests, for each interval.
    pub refused: Vec<u64>,
    /// Number of answers that are not good, for each interval.
    pub bad_answers: Vec<u64>,
    /// Number of output tokens of the ended requests, for each interval.
    pub output_tokens: Vec<u64>,
    /// 95th percentile of TTFT in seconds, for each interval. `None`: no stream ended in the interval.
    pub ttft_p95: Vec<Option<f64>>,
    /// 95th percentile of ITL in seconds, for each interval. `None`: no stream with an ITL ended in the
    /// interval.
    pub itl_p95: Vec<Option<f64>>,
    /// 95th percentile of the duration of successful requests in seconds, for each interval. `None`: no
    /// successful request ended in the interval.
    pub e2e_p95: Vec<Option<f64>>,
}

/// Totals since the start of the gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestTotals {
    /// Number of requests that ended since the start.
    pub requests: u64,
    /// Number of output tokens since the start, including those of open streams.
    pub output_tokens: u64,
}
