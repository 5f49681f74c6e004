//! Everything that is known of one request when it has ended: one plain value that metrics,
//! spans, logs and the router all read. Derived figures are methods here, with their formula, so
//! that no sink computes its own.

mod labels;
mod outcome;
mod timings;

pub use labels::{BackendId, ModelLabel};
pub use outcome::{EndedBy, Lost, Outcome, UsageSource};
pub use timings::Timings;

use crate::gaps::Gaps;
use crate::headers::RequestId;
use crate::openai::{Api, Finish, InBandError, Usage};
use crate::trace_context::TraceContext;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// One request, from its first byte to its last.
#[derive(Debug, Clone)]
pub struct RequestRecord {
    /// The `x-request-id`, the client's or ours.
    pub request_id: RequestId,
    /// The trace it belongs to. `None` if traces are off.
    pub trace: Option<TraceContext>,
    /// Our span for the request as the client sees it, and the one for the inference.
    pub spans: [u64; 2],
    /// The peer.
    pub client: IpAddr,
    /// The method; `_OTHER` if it is not one of HTTP's.
    pub method: &'static str,
    /// The path, if it is one that is served.
    pub route: Option<&'static str>,
    /// The shape, if the request is inference.
    pub api: Option<Api>,
    /// What the client asked for.
    pub asked: Asked,
    /// The model as a label: one that a replica serves, or `_other`.
    pub model: ModelLabel,
    /// Why the last attempt went where it went.
    pub decision: Option<Decision>,
    /// Every time the request was sent to a replica, in order.
    pub attempts: Vec<Attempt>,
    /// The status that the client got. `None` if it left before.
    pub status: Option<u16>,
    /// Why the gateway answered itself, as one word of a closed set.
    pub refusal: Option<&'static str>,
    /// How it ended.
    pub outcome: Outcome,
    /// When it began, for people.
    pub started: SystemTime,
    /// When its moments were.
    pub timings: Timings,
    /// What was seen of the answer.
    pub observed: Observed,
    /// Body bytes from the client.
    pub bytes_in: u64,
    /// Body bytes of the answer.
    pub bytes_out: u64,
}

/// What the client asked for, as far as it is reported.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// `stream` is true.
    pub stream: bool,
    /// The limit of generated tokens.
    pub max_tokens: Option<u64>,
    /// How many choices.
    pub n: Option<u64>,
}

/// Why a replica was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The policy.
    pub policy: &'static str,
    /// The winning reason, from a closed set.
    pub reason: &'static str,
    /// What the replica last said of its KV cache, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// What it last said of its queue.
    pub waiting: Option<u32>,
    /// How old that was.
    pub sample_age: Option<Duration>,
}

/// The request was sent to a replica once.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The replica.
    pub backend: BackendId,
    /// Its host and port.
    pub address: (Arc<str>, u16),
    /// Our span for it: the parent of the engine's own.
    pub span: u64,
    /// When it was sent.
    pub started: Instant,
    /// When it failed, or the answer ended.
    pub ended: Option<Instant>,
    /// The status, if there was one.
    pub status: Option<u16>,
    /// Why there was none, from a closed set.
    pub failure: Option<&'static str>,
}

/// What was seen of an answer as it passed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// The answer was an event stream.
    pub is_stream: bool,
    /// Events, the last one included.
    pub events: u64,
    /// Comment lines, such as keep-alives.
    pub comments: u64,
    /// Events with generated output.
    pub output_events: u64,
    /// Tokens in them, as far as events told exactly.
    pub tokens_in_events: u64,
    /// Times between output events.
    pub gaps: Gaps,
    /// Token counts from the engine.
    pub usage: Usage,
    /// Where the output count came from.
    pub usage_source: UsageSource,
    /// By choice; `None` for one that did not finish.
    pub finish_reasons: Vec<Option<Finish>>,
    /// A failure reported inside the answer.
    pub error: Option<InBandError>,
    /// The answer's own last event was seen, or the body was whole.
    pub is_terminal: bool,
    /// Why the observer does not know everything.
    pub lost: Option<Lost>,
    /// The answer's `id`.
    pub response_id: Option<Box<str>>,
    /// The answer's `model`.
    pub response_model: Option<Box<str>>,
}

// === impl RequestRecord ===

impl RequestRecord {
    /// Time to first token in the client's view: request head read → first generated output.
    /// Only streams have one.
    pub fn ttft(&self) -> Option<Duration> {
        self.since_accepted(self.timings.first_output)
    }

    /// Time to first token in the replica's view: request sent → first generated output.
    pub fn upstream_ttft(&self) -> Option<Duration> {
        let (sent, first) = (self.timings.sent?, self.timings.first_output?);
        Some(first.saturating_duration_since(sent))
    }

    /// Time per output token after the first: (last output − first output) ÷ (n − 1), with n the
    /// engine's exact count. Absent for fewer than two tokens, for several choices (their counts
    /// are a sum), and where the count is not exact.
    pub fn tpot(&self) -> Option<Duration> {
        let (first, last) = (self.timings.first_output?, self.timings.last_output?);
        let tokens = self.observed.usage.output?;
        let is_exact = self.observed.usage_source == UsageSource::Exact;
        if !is_exact || tokens < 2 || self.observed.finish_reasons.len() > 1 {
            return None;
        }
        let steps = u32::try_from(tokens - 1).ok()?;
        last.saturating_duration_since(first).checked_div(steps)
    }

    /// Duration as the client sees it: request head read → end of the exchange.
    pub fn duration(&self) -> Duration {
        self.since_accepted(self.timings.ended).unwrap_or_default()
    }

    /// What the gateway took before the replica had the request: (sent − accepted) less the time
    /// in which the client was still sending its body.
    pub fn overhead(&self) -> Option<Duration> {
        let received = self.timings.received?;
        Some(self.timings.sent?.saturating_duration_since(received))
    }

    /// Generated tokens: the engine's count, else what the events told, else the number of events.
    pub fn output_tokens(&self) -> u64 {
        let observed = &self.observed;
        match (observed.usage.output, observed.tokens_in_events) {
            (Some(tokens), _) => tokens,
            (None, 0) => observed.output_events,
            (None, counted) => counted,
        }
    }

    /// The replica of the last attempt.
    pub fn backend(&self) -> Option<&BackendId> {
        self.attempts.last().map(|attempt| &attempt.backend)
    }

    /// `error.type` of OpenTelemetry for this request: low in cardinality, `None` for a success
    /// and for a client that left.
    pub fn error_type(&self) -> Option<&str> {
        match self.outcome {
            Outcome::Ok | Outcome::Cancelled => None,
            _ if self.refusal.is_some() => self.refusal,
            Outcome::ClientError | Outcome::UpstreamError => {
                Some(self.status.and_then(status_name).unwrap_or("_OTHER"))
            }
            Outcome::StreamError => Some("stream_error"),
            Outcome::Truncated => Some("incomplete_stream"),
            Outcome::Aborted => Some("aborted"),
            Outcome::Timeout => Some("timeout"),
            Outcome::Rejected => Some("rejected"),
        }
    }

    /// Where the request was when it ended: of interest when the client left.
    pub fn phase(&self) -> &'static str {
        let timings = &self.timings;
        match timings {
            Timings { terminal: Some(_), .. } => "done",
            Timings { first_output: Some(_), .. } => "decode",
            Timings { headers: Some(_), .. } => "prefill",
            Timings { sent: Some(_), .. } => "headers",
            Timings { received: Some(_), .. } => "routing",
            _ => "upload",
        }
    }

    fn since_accepted(&self, moment: Option<Instant>) -> Option<Duration> {
        Some(moment?.saturating_duration_since(self.timings.accepted))
    }
}

/// Status codes as text, without allocating, for those that servers of this kind send.
fn status_name(status: u16) -> Option<&'static str> {
    Some(match status {
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        408 => "408",
        409 => "409",
        413 => "413",
        415 => "415",
        422 => "422",
        429 => "429",
        431 => "431",
        500 => "500",
        501 => "501",
        502 => "502",
        503 => "503",
        504 => "504",
        _ => return None,
    })
}
