//! The JSON documents of the admin listener. The gateway writes them, and `tokenweir top` reads them.
//!
//! If the gateway has another version, its document can lack a field. The field then has its default value.

/// Declares structs whose fields are all public, with the traits of a part of a JSON document. A field that a
/// document lacks has its default value.
macro_rules! document {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident { $($(#[$field_attribute:meta])* $field:ident: $type:ty,)* }
    )*) => {
        $(
            $(#[$attribute])*
            #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(default)]
            pub struct $name { $($(#[$field_attribute])* pub $field: $type,)* }
        )*
    };
}

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

use std::collections::BTreeMap;
pub use tokenweir_diagnose::Change;
use tokenweir_diagnose::Verdict;

document! {
    /// The document of `GET /streams`: the state of the gateway at one moment.
    pub struct GatewaySnapshot {
        /// Version of the program that runs the gateway.
        version: String,
        /// Name of the routing policy.
        policy: String,
        /// Whether the gateway serves its clients, in one word.
        state: GatewayState,
        /// The reasons of a state other than `ready`, each as a text. Empty for `ready` and `shutting_down`.
        state_reasons: Vec<String>,
        /// Whether the gateway is ready: a backend is available and the gateway is not draining.
        ready: bool,
        /// Why no backend is available: a summary of the states of all backends. `None`: at least one
        /// backend is available.
        unready_reason: Option<String>,
        /// Whether the gateway is in panic mode: so many backends are ejected that routing ignores ejections.
        panic_mode: bool,
        /// Whether the gateway is draining because of a shutdown.
        draining: bool,
        /// Seconds since the start of the gateway. To compute a rate from two documents, divide the
        /// increase of a total by the increase of this value.
        uptime_seconds: f64,
        /// Number of requests in progress, from the first byte of the request to the last byte of the
        /// response.
        requests_in_flight: usize,
        /// The number of requests in the admission queue, for each class of `admission.classes`.
        queue: Vec<QueueSummary>,
        /// Waiting time of the request that has waited longest in the admission queue, in seconds. `None`: the
        /// queue is empty.
        longest_wait_seconds: Option<f64>,
        /// Why requests wait although backends have capacity, such as `14 of 41 sessions fit into the KV caches`. `None`:
        /// no request waits for this reason.
        held_because: Option<String>,
        /// The states of all backends.
        backends: Vec<BackendSummary>,
        /// The number of backends with each condition, such as `48 ok, 1 down, 1 slow`.
        backends_by_condition: String,
        /// Number and phases of the open streams, and the oldest ones.
        streams: StreamsSummary,
        /// Totals since the start of the gateway. They include the tokens of open streams.
        totals: RequestTotals,
        /// Counts and latencies of the requests that ended in the last 60 to 65 seconds, or since the start of the
        /// gateway if it started later.
        last_minute: LastMinute,
        /// The harm to clients in the last minute, from which the state follows.
        harm: Harm,
        /// The greatest differences from the last hour, the strongest first, as in `/status`.
        changes: Vec<Change>,
        /// The clients that cause the most work, the largest share first.
        clients: Vec<ClientSummary>,
        /// Requests and tokens of each model in the last minute.
        models: Vec<GroupSummary>,
        /// The requests of each tenant. Empty: clients have no keys.
        tenants: Vec<GroupSummary>,
        /// Counts and latencies of the last hour, or since the start of the gateway if it started later.
        history: History,
        /// The requests that ended most recently, and the most recent slow requests, the newest first.
        ended: Vec<EndedRequest>,
        /// The active verdicts of the diagnosis, as in `/status`.
        verdicts: Vec<Verdict>,
        /// URL template of a trace in the trace UI, with the placeholder `{trace_id}`. `None`: the configuration
        /// names no trace UI.
        trace_ui: Option<String>,
        /// Seconds since the last read of `/metrics`. `None`: nobody has read it.
        metrics_read_seconds_ago: Option<f64>,
    }

    /// One class of the admission queue.
    #[derive(Eq)]
    pub struct QueueSummary {
        /// Name of the class of requests.
        class: String,
        /// Number of requests of the class that wait in the queue.
        waiting: usize,
    }

    /// The open streams: requests whose response head was received from the backend.
    pub struct StreamsSummary {
        /// Number of open streams.
        count: usize,
        /// Number of streams in each phase.
        phases: BTreeMap<String, usize>,
        /// The streams that have been open longest, at most 200.
        oldest: Vec<StreamSummary>,
    }

    /// A stream that has begun and not ended.
    pub struct StreamSummary {
        /// Sequence number: the number of streams opened before this one.
        number: u64,
        /// The `x-request-id` of the request.
        request_id: String,
        /// Model name, as in the metric labels.
        model: String,
        /// Name of the backend.
        backend: Option<String>,
        /// Tenant, as in the metric labels.
        tenant: Option<String>,
        /// IP address of the client.
        client: String,
        /// Estimated number of prompt tokens. 0: unknown.
        prompt_tokens: u64,
        /// Phase of the stream: `no_output` (the response head has arrived, but no output), `decode`,
        /// `stalled`, `write_stalled` (the client does not read) or `closing`.
        phase: String,
        /// Seconds since the request head was read.
        age_seconds: f64,
        /// Number of output tokens so far. In a stream whose events contain no usage, each event with output counts
        /// as one token.
        tokens: u64,
        /// Seconds since the last output. `None`: no output has arrived yet, or the last event has already arrived.
        last_output_age_seconds: Option<f64>,
    }

    /// A request that ended recently.
    pub struct EndedRequest {
        /// Sequence number: the number of requests that ended before this one.
        number: u64,
        /// The `x-request-id` of the request.
        request_id: String,
        /// Start time of the request in RFC 3339 format, with milliseconds.
        started: String,
        /// Seconds since the request ended.
        age_seconds: f64,
        /// Model, as in the metric labels.
        model: String,
        /// Backend of the last attempt. `None`: there was no attempt.
        backend: Option<String>,
        /// Tenant, as in the metric labels.
        tenant: Option<String>,
        /// IP address of the client.
        client: String,
        /// Outcome of the request, such as `ok` or `upstream_error`.
        outcome: String,
        /// TTFT as the client observes it, in seconds. `None`: the response is not a stream, or had no output.
        ttft_seconds: Option<f64>,
        /// Time to the first output that is not reasoning, in seconds. `None`: the response had no reasoning.
        first_answer_seconds: Option<f64>,
        /// Time from the request head to the end of the response, in seconds.
        duration_seconds: f64,
        /// Output tokens of the response. `None`: the response had no output tokens to count.
        output_tokens: Option<u64>,
        /// Cause for which the request was slow, such as `engine_queue`. `None`: the request was not slow.
        slow_cause: Option<String>,
        /// Trace id. `None`: the trace was not sampled.
        trace_id: Option<String>,
    }

    /// Counts and latencies of all requests of the last hour, in intervals of equal length. Each list has one value
    /// per interval, the oldest first; the last interval is not complete.
    pub struct History {
        /// Length of an interval in seconds.
        interval_seconds: f64,
        /// Seconds of the last interval that have passed.
        last_seconds: f64,
        /// Number of requests that ended, for each interval.
        requests: Vec<u64>,
        /// Number of failed requests, for each interval.
        failed: Vec<u64>,
        /// Number of 4xx responses that are not refusals, for each interval.
        client_errors: Vec<u64>,
        /// Number of refused requests, for each interval.
        refused: Vec<u64>,
        /// Number of answers that are not good, for each interval.
        bad_answers: Vec<u64>,
        /// Number of output tokens of the ended requests, for each interval.
        output_tokens: Vec<u64>,
        /// 95th percentile of TTFT in seconds, for each interval. `None`: no stream ended in the interval.
        ttft_p95: Vec<Option<f64>>,
        /// 95th percentile of ITL in seconds, for each interval. `None`: no stream with an ITL ended in the
        /// interval.
        itl_p95: Vec<Option<f64>>,
        /// 95th percentile of the duration of successful requests in seconds, for each interval. `None`: no
        /// successful request ended in the interval.
        e2e_p95: Vec<Option<f64>>,
    }

    /// Totals since the start of the gateway.
    #[derive(Copy, Eq)]
    pub struct RequestTotals {
        /// Number of requests that ended since the start.
        requests: u64,
        /// Number of output tokens since the start, including those of open streams.
        output_tokens: u64,
    }
}
