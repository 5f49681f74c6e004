//! One line for each request, from its record: never a prompt, an answer or a key.

use crate::observe::Sink;
use crate::record::{Kept, Lost, Phase, Phases, RequestRecord, SlowCause};
use serde::Serialize;
use std::fmt::{self, Display};
use std::time::Duration;

/// The sink that writes the lines.
pub struct AccessLog {
    is_json: bool,
    write: Write,
}

/// Takes a line with its ending. It must not block.
pub type Write = Box<dyn Fn(&str) + Send + Sync>;

/// The fields of a line, in its order.
#[derive(Debug, Serialize)]
struct Line<'a> {
    ts: String,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    /// Why its trace is kept; absent if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<&'static str>,
    client: String,
    method: &'a str,
    route: &'a str,
    status: Option<u16>,
    outcome: &'static str,
    /// The outcome, more exactly.
    ending: &'static str,
    closed_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// Why it was slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    slow: Option<&'static str>,
    /// Why the numbers below may be wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<&'static str>,
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tier: &'a str,
    backend: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'static str>,
    /// Why that replica was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    predicted_ttft_ms: Option<f64>,
    /// Prompt tokens that were believed to be cached.
    predicted_cached: Option<f64>,
    attempts: usize,
    stream: bool,
    finish: Vec<&'static str>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
    /// How far `output_tokens` can be trusted.
    usage: &'static str,
    output_events: u64,
    comments: u64,
    headers_ms: Option<f64>,
    first_event_ms: Option<f64>,
    ttft_ms: Option<f64>,
    first_answer_ms: Option<f64>,
    tpot_ms: Option<f64>,
    itl_mean_ms: Option<f64>,
    gap_mean_ms: Option<f64>,
    gap_max_ms: Option<f64>,
    stalls: usize,
    write_stall_ms: f64,
    duration_ms: Option<f64>,
    overhead_us: Option<u128>,
    /// How long it waited for a replica with room.
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phases: Option<PhaseTimes>,
    bytes_in: u64,
    bytes_out: u64,
}

/// Queue and prefill in the engine, in milliseconds.
#[derive(Debug, Serialize)]
struct PhaseTimes {
    queue_ms: f64,
    prefill_ms: f64,
    network_ms: Option<f64>,
    estimated: bool,
}

impl AccessLog {
    /// Lines for machines, or for people.
    pub fn new(is_json: bool, write: Write) -> Self {
        Self { is_json, write }
    }
}

impl Sink for AccessLog {
    fn finished(&self, record: &RequestRecord) {
        let line = Line::of(record);
        let mut text = if self.is_json {
            // A struct of texts and numbers always has a JSON form.
            serde_json::to_string(&line).unwrap_or_default()
        } else {
            line.to_string()
        };
        text.push('\n');
        (self.write)(&text);
    }
}

impl<'a> Line<'a> {
    fn of(record: &'a RequestRecord) -> Self {
        let observed = &record.observed;
        let (decision, predicted) = (record.decision.as_ref(), record.predicted());
        let [headers, first_event, first_answer] = record.marks();
        let is_cut = record.phase() != "done" && record.status.is_none_or(|status| status < 400);
        Self {
            ts: humantime::format_rfc3339_millis(record.started).to_string(),
            request_id: record.request_id.as_str(),
            trace_id: record.trace.as_ref().map(|trace| format!("{:032x}", trace.trace_id)),
            kept: record.kept.map(Kept::as_str),
            client: record.client.to_string(),
            method: record.method,
            route: record.route.unwrap_or("-"),
            status: record.status,
            outcome: record.outcome.as_str(),
            ending: record.ending(),
            closed_by: record.end.by().as_str(),
            phase: is_cut.then(|| record.phase()),
            error: record.error_type(),
            slow: record.slow.map(SlowCause::as_str),
            lost: observed.lost.map(Lost::as_str),
            model: record.model.as_str(),
            tier: record.tier.as_str(),
            backend: record.backend().map(crate::record::BackendId::as_str),
            policy: decision.map(|decision| decision.policy),
            reason: decision.map(|decision| decision.reason),
            predicted_ttft_ms: predicted.map(|predicted| seconds(predicted.ttft)),
            predicted_cached: predicted.map(|predicted| predicted.candidate.cached.round()),
            attempts: record.attempts.len(),
            stream: observed.is_stream,
            finish: observed
                .finish_reasons
                .iter()
                .flatten()
                .map(|reason| reason.as_str())
                .collect(),
            input_tokens: observed.usage.input,
            output_tokens: record.output_tokens(),
            cached_tokens: observed.usage.cached,
            reasoning_tokens: observed.usage.reasoning,
            usage: observed.usage_source.as_str(),
            output_events: observed.output_events,
            comments: observed.comments,
            headers_ms: headers.map(millis),
            first_event_ms: first_event.map(millis),
            ttft_ms: record.ttft().map(millis),
            first_answer_ms: first_answer.map(millis),
            tpot_ms: record.tpot().map(millis),
            itl_mean_ms: observed.itl.mean().map(seconds),
            gap_mean_ms: observed.gaps.mean().map(seconds),
            gap_max_ms: observed.gaps.max().map(seconds),
            stalls: observed.stalls.len(),
            write_stall_ms: millis(observed.write_stall),
            duration_ms: Some(millis(record.duration())),
            overhead_us: record.overhead().map(|overhead| overhead.as_micros()),
            queued_ms: record.queue_wait().map(millis),
            phases: PhaseTimes::of(&Phases::of(record)),
            bytes_in: record.bytes_in,
            bytes_out: record.bytes_out,
        }
    }
}

impl PhaseTimes {
    fn of(phases: &Phases) -> Option<Self> {
        let queue = phases.get(Phase::Queue)?;
        Some(Self {
            queue_ms: millis(queue.took),
            prefill_ms: millis(phases.get(Phase::Prefill)?.took),
            network_ms: phases.get(Phase::Network).map(|network| millis(network.took)),
            estimated: queue.is_estimated,
        })
    }
}

/// The line for people: what they look for first stands first.
impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.map_or("---".into(), |status| status.to_string());
        write!(f, "{} {status} {:<14} {} {}", self.ts, self.outcome, self.method, self.route)?;
        field(f, "model", Some(self.model))?;
        field(f, "backend", self.backend)?;
        field(f, "reason", self.reason)?;
        field(f, "error", self.error)?;
        field(f, "phase", self.phase)?;
        field(f, "slow", self.slow)?;
        field(f, "lost", self.lost)?;
        field(f, "queued_ms", self.queued_ms)?;
        field(f, "ttft_ms", self.ttft_ms)?;
        field(f, "tpot_ms", self.tpot_ms)?;
        field(f, "gap_max_ms", self.gap_max_ms)?;
        field(f, "ms", self.duration_ms)?;
        field(f, "in", self.input_tokens)?;
        field(f, "out", self.output_tokens)?;
        field(f, "finish", (!self.finish.is_empty()).then(|| self.finish.join(",")))?;
        field(f, "attempts", (self.attempts > 1).then_some(self.attempts))?;
        field(f, "id", Some(self.request_id))?;
        field(f, "trace", self.trace_id.as_deref())
    }
}

fn field(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {name}={value}"))
}

/// Milliseconds with three decimals: microseconds are what the clock is good for.
pub(super) fn millis(duration: Duration) -> f64 {
    seconds(duration.as_secs_f64())
}

/// Seconds as such milliseconds.
fn seconds(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}
