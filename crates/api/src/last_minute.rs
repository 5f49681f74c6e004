//! Counts and latencies of the requests that ended in the last minute.

use super::answers::AnswerCounts;
use std::collections::BTreeMap;

document! {
    /// Counts and latencies of the requests that ended in the last 60 to 65 seconds, or since the start of the
    /// gateway if it started later.
    pub struct LastMinute {
        /// Length of the interval in seconds: 60 to 65, or less in the first minute of the gateway.
        seconds: f64,
        /// Number of requests that ended.
        requests: u64,
        /// The answers that the clients of these requests received.
        answers: AnswerCounts,
        /// Number of failed requests: a backend answered with a 5xx status, broke off its response, or did
        /// not answer in time.
        failed: u64,
        /// Number of refused requests: the gateway answered with 429 or 503. The reason is that no backend was
        /// available or had capacity, or that the gateway was at its own limit.
        refused: u64,
        /// Number of refused requests, by the reason of the refusal.
        refused_by_reason: BTreeMap<String, u64>,
        /// Number of requests that the gateway answered with another 4xx status, by reason.
        rejected_by_reason: BTreeMap<String, u64>,
        /// Number of responses of the gateway itself with a status of 4xx, by status.
        gateway_client_errors: BTreeMap<u16, u64>,
        /// Number of responses of backends with a status of 4xx, by status.
        backend_client_errors: BTreeMap<u16, u64>,
        /// Number of error responses by their status and origin, such as `413 by a proxy in front of the engines (server: nginx),
        /// not by an engine`. Those whose origin is not known are omitted.
        error_sources: BTreeMap<String, u64>,
        /// Number of slow requests, by cause. Requests that were slow because their client read slowly do not
        /// count.
        slow: BTreeMap<String, u64>,
        /// Number of the slow requests that were slow after their first output.
        slow_output: u64,
        /// The objectives, each with the number of requests that were too slow for it.
        objectives: Vec<ObjectiveMinute>,
        /// Number of requests whose client disconnected.
        client_disconnects: u64,
        /// The time after which clients gave up waiting, in seconds, if all waited equally long. `None`: the
        /// times differ, or few clients gave up.
        give_up_seconds: Option<f64>,
        /// Number of requests that repeat an earlier request of the same client shortly after its end.
        repeats: u64,
        /// Number of requests whose client disconnected while output was flowing, of the clients with keys that do so far
        /// more often than usual.
        unusual_cut_offs: u64,
        /// A property of at least 80 % of the requests with one kind of harm, but of less than half of the
        /// other requests, such as `all 43 of tenant web, key k`. The key is the kind of harm: `failed`,
        /// `empty`, `damaged`, `truncated`, `client_timeout`, `cut_off`, `refused`, `rejected`, `slow` or
        /// `late`.
        common: BTreeMap<String, String>,
        /// Number of output tokens of the ended requests.
        output_tokens: u64,
        /// TTFT of streams as the clients observe it, in seconds. `None`: there are no samples.
        ttft: Option<LatencyQuantiles>,
        /// Time to the first output that is not reasoning, in seconds, for streams with reasoning. `None`: there
        /// are no such streams.
        first_answer: Option<LatencyQuantiles>,
        /// ITL of streams, in seconds. If the events of a stream do not report token counts, the time between
        /// events takes its place. `None`: there are no samples.
        itl: Option<LatencyQuantiles>,
        /// Duration of successful requests, in seconds. `None`: there are no samples.
        e2e: Option<LatencyQuantiles>,
        /// The attempts of the ended requests at each backend, by the name of the backend. A backend without an
        /// attempt has no entry.
        by_backend: BTreeMap<String, BackendMinute>,
    }

    /// The attempts at one backend of the requests that ended in the last minute.
    pub struct BackendMinute {
        /// Number of requests whose last attempt was at the backend.
        requests: u64,
        /// Number of attempts at the backend.
        attempts: u64,
        /// Number of attempts at the backend that failed.
        failed_attempts: u64,
        /// Number of attempts at the backend that were answered with a status of 4xx, by status.
        client_errors: BTreeMap<u16, u64>,
        /// Number of requests whose last attempt was at the backend and had a TTFT.
        streams: u64,
        /// Mean TTFT of the requests that `streams` counts, in seconds: the time from sending the request to the
        /// backend to the first output. `None`: no request had a TTFT.
        ttft_seconds: Option<f64>,
    }

    /// The requests of the last minute to which an objective applies.
    pub struct ObjectiveMinute {
        /// Name of the objective in `slos`.
        name: String,
        /// Share of requests that must meet the objective, from 0 to 1.
        target: f64,
        /// Number of requests to which the objective applies.
        requests: u64,
        /// Number of requests that were too slow for the objective.
        slow: u64,
    }

    /// The distribution of a latency, in seconds.
    #[derive(Copy)]
    pub struct LatencyQuantiles {
        /// Number of values from which the quantiles are computed.
        count: u64,
        /// 50th percentile, in seconds.
        p50: f64,
        /// 95th percentile, in seconds.
        p95: f64,
        /// 99th percentile, in seconds.
        p99: f64,
        /// Maximum latency, in seconds.
        max: f64,
    }
}
