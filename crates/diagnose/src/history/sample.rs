//! One sample of a backend: the load from its metrics page, and the observations of the gateway
//! since the previous sample.

use super::gpu_condition::GpuCondition;
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::EngineLoad;

/// Interval between two samples of a backend.
pub const EVERY: Duration = Duration::from_secs(5);
/// A TTFT above this value, in seconds, counts as slow even if it is usual for the backend.
pub const SLOW_START: f64 = 2.0;

/// A prompt with at least this many tokens is long: its prefill takes many scheduler steps of any engine.
pub(crate) const LONG_PROMPT_TOKENS: f64 = 8_000.0;

/// One sample of a backend.
#[derive(Debug, Clone, Copy)]
pub struct DiagnosisSample {
    /// Time of the sample.
    pub at: Instant,
    /// Whether the backend can get requests: it serves, is neither drained nor asleep, and its weight is
    /// above 0.
    pub is_up: bool,
    /// The load from the metrics page of the backend. `None`: there is no recent page that the gateway can
    /// read.
    pub page: Option<EngineLoad>,
    /// The observations of the gateway about the backend. `None`: the diagnosis runs without a gateway.
    pub gateway: Option<GatewayObservations>,
    /// The GPUs of the backend. `None`: no GPU exporter reports them.
    pub gpus: Option<GpuCondition>,
}

impl DiagnosisSample {
    /// A sample of this time, without data.
    pub fn at(at: Instant) -> Self {
        Self {
            at,
            is_up: false,
            page: None,
            gateway: None,
            gpus: None,
        }
    }
}

/// The observations of the gateway about a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GatewayObservations {
    /// Number of requests of this gateway at the backend now.
    pub in_flight: u32,
    /// Number of streams of the backend that are stalled now.
    pub stalled: u32,
    /// Number of stalls of streams of the backend since the start of the gateway.
    pub stalls: u64,
    /// The recent p99 of the times between outputs, in seconds. `None`: too few outputs.
    pub gap_p99: Option<f64>,
    /// A hash of the names of the models of the backend. Only backends with equal hashes are compared.
    pub models: u64,
    /// The weight of the backend.
    pub weight: u32,
    /// Greatest number of sequences that the engine has run at once since its start, as far as known.
    pub most_running: u32,
    /// Number of streams at the backend without a first output.
    pub pending: u32,
    /// Number of prompt tokens that the engine has to compute for the streams without a
    /// first output.
    pub pending_tokens: u64,
    /// Number of tokens that the requests in flight may have in the KV cache.
    pub held_tokens: u64,
    /// Seconds for which the oldest request without output has been overdue while nothing else had output.
    pub overdue_seconds: f64,
    /// Seconds since the first canary request without an answer, while nothing showed that the backend works. 0: none.
    pub canary_seconds: f64,
    /// Number of times that the metrics page was that of another engine than before, since the backend joined.
    pub engine_switches: u64,
    /// Whether the gateway stood still, or had too little CPU time, while the counts were taken: its times say
    /// nothing about the backend.
    pub is_disturbed: bool,
    /// Number of attempts to open a connection since the previous sample.
    pub connects: u64,
    /// Sum of the times of these attempts, in seconds.
    pub connect_seconds: f64,
    /// Number of new connections that had a response head since the previous sample.
    pub first_heads: u64,
    /// Sum of the times from the attempts to connect to these heads, in seconds.
    pub first_head_seconds: f64,
    /// The longest time of a metrics page since the previous sample, in seconds. `None`: none was fetched.
    pub page_seconds: Option<f64>,
    /// Number of streams whose response has begun long ago, without output.
    pub hanging: u32,
    /// Age of the oldest of them, in seconds.
    pub hanging_seconds: f64,
    /// Counts since the previous sample.
    pub counts: BackendRequestCounts,
}

/// Counts of the gateway's requests at a backend in one interval. Times are sums in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BackendRequestCounts {
    /// Number of streams that had their first output.
    pub first_outputs: u64,
    /// Sum of the times from sending the request to the backend to the first output of these streams, in
    /// seconds.
    pub first_output_seconds: f64,
    /// Number of first outputs that took longer than [`SLOW_START`] seconds.
    pub slow_first_outputs: u64,
    /// Number of ended requests with a response head.
    pub heads: u64,
    /// Sum of the times from sending the request to the backend to these heads, in seconds.
    pub head_seconds: f64,
    /// Number of ended streams whose prompt has media, and which had output.
    pub media_outputs: u64,
    /// Sum of the times to the first output of these streams, in seconds.
    pub media_seconds: f64,
    /// Number of ended streams with structured output, which had output.
    pub structured_outputs: u64,
    /// Sum of the times to the first output of these streams, in seconds.
    pub structured_seconds: f64,
    /// Number of ended streams with a long prompt, which had output.
    pub long_outputs: u64,
    /// Sum of the times to the first output of these streams, in seconds.
    pub long_seconds: f64,
    /// Number of all other ended streams that had output.
    pub plain_outputs: u64,
    /// Sum of the times to the first output of these streams, in seconds.
    pub plain_seconds: f64,
    /// Number of output tokens of ended streams.
    pub stream_tokens: u64,
    /// Number of events with output of these streams.
    pub stream_events: u64,
    /// Number of times at which output of these streams arrived.
    pub stream_arrivals: u64,
    /// Number of requests that ended.
    pub finished: u64,
    /// Number of ended requests whose response was a stream.
    pub streams: u64,
    /// Number of ended requests whose client disconnected before the response was complete.
    pub cancelled: u64,
    /// Sum of the durations of the cancelled requests, in seconds.
    pub cancel_seconds: f64,
    /// Sum of the squares of the durations of the cancelled requests, in seconds squared, for their
    /// standard deviation.
    pub cancel_squares: f64,
    /// Number of prompt tokens of the ended requests, as estimated for the routing decision.
    pub prompt_tokens: f64,
    /// Number of prompt tokens that were predicted to be in the prefix cache of at least one
    /// backend.
    pub reusable_tokens: f64,
    /// Number of prompt tokens that were predicted to be in the prefix cache of this backend.
    pub reusable_here_tokens: f64,
    /// Number of prompt tokens that an earlier prompt of the last seconds had.
    pub known_tokens: f64,
    /// Length of the longest prompt, in tokens.
    pub longest_prompt: f64,
    /// Number of attempts that the backend answered with a status of 4xx.
    pub refused_attempts: u64,
    /// Number of ended requests with output tokens.
    pub generated: u64,
    /// Number of ended requests whose response was complete.
    pub served: u64,
    /// Sum of the durations of these requests, in seconds.
    pub served_seconds: f64,
    /// Number of output tokens of these requests.
    pub served_tokens: u64,
    /// Number of ended streams whose tokens arrived all at once.
    pub buffered: u64,
    /// Sum of the square roots of the numbers of output tokens of these requests.
    pub served_roots: f64,
    /// Number of ended streams of at least 32 pieces of text.
    pub texts: u64,
    /// Number of these streams that repeat a few pieces.
    pub repetitive_texts: u64,
    /// Sum of the numbers of different pieces among the first 32 of these streams.
    pub distinct_pieces: f64,
    /// Sum of the squares of these numbers.
    pub distinct_squares: f64,
    /// Sum of the mean lengths of the first 32 pieces of these streams, in bytes.
    pub piece_bytes: f64,
    /// Sum of the squares of these lengths.
    pub piece_bytes_squares: f64,
    /// Sum of the shares of bytes outside ASCII in these pieces.
    pub non_ascii: f64,
    /// Sum of the squares of these shares.
    pub non_ascii_squares: f64,
    /// Number of whole responses with text.
    pub sampled_texts: u64,
    /// Number of these responses with replacement or control characters in the text.
    pub damaged_texts: u64,
    /// Number of answers to requests with tools.
    pub tool_answers: u64,
    /// Number of these answers that have a tool call.
    pub tool_calls: u64,
    /// Number of these answers that are a text that begins like a tool call.
    pub texts_like_calls: u64,
    /// Number of answers to requests that ask for JSON.
    pub json_answers: u64,
    /// Number of these answers that are no JSON.
    pub missing_json: u64,
    /// Number of responses whose token counts contradict them.
    pub wrong_usages: u64,
    /// Number of responses that the engine ended without an error.
    pub responses: u64,
    /// Number of these responses that have no answer, or end with their first token.
    pub empty_responses: u64,
    /// Number of these responses that have reasoning alone.
    pub reasoning_alone: u64,
    /// Number of these responses that are no use to clients: empty, unreadable, or no JSON as requested.
    pub useless_responses: u64,
    /// Number of these responses that end at the limit of their tokens.
    pub cut_responses: u64,
}
