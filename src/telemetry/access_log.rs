//! One line for each request, from its record: never a prompt, an answer or a key.

use crate::observe::Sink;
use crate::record::RequestRecord;
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
    client: String,
    method: &'a str,
    route: &'a str,
    status: Option<u16>,
    outcome: &'static str,
    ended_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    model: &'a str,
    backend: Option<&'a str>,
    attempts: usize,
    stream: bool,
    finish: Vec<&'static str>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    usage: &'static str,
    output_events: u64,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    gap_mean_ms: Option<f64>,
    gap_max_ms: Option<f64>,
    duration_ms: Option<f64>,
    overhead_us: Option<u128>,
    bytes_in: u64,
    bytes_out: u64,
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
        let is_cut = record.phase() != "done" && record.status.is_none_or(|status| status < 400);
        Self {
            ts: humantime::format_rfc3339_millis(record.started).to_string(),
            request_id: record.request_id.as_str(),
            trace_id: record.trace.as_ref().map(|trace| format!("{:032x}", trace.trace_id)),
            client: record.client.to_string(),
            method: record.method,
            route: record.route.unwrap_or("-"),
            status: record.status,
            outcome: record.outcome.as_str(),
            ended_by: record.outcome.ended_by().as_str(),
            phase: is_cut.then(|| record.phase()),
            error: record.error_type(),
            model: record.model.as_str(),
            backend: record.backend().map(crate::record::BackendId::as_str),
            attempts: record.attempts.len(),
            stream: observed.is_stream,
            finish: observed
                .finish_reasons
                .iter()
                .flatten()
                .map(|reason| reason.as_str())
                .collect(),
            input_tokens: observed.usage.input,
            output_tokens: observed.usage.output,
            cached_tokens: observed.usage.cached,
            usage: observed.usage_source.as_str(),
            output_events: observed.output_events,
            ttft_ms: record.ttft().map(millis),
            tpot_ms: record.tpot().map(millis),
            gap_mean_ms: observed.gaps.mean().map(millis),
            gap_max_ms: (observed.gaps.count() > 0).then(|| millis(observed.gaps.max())),
            duration_ms: Some(millis(record.duration())),
            overhead_us: record.overhead().map(|overhead| overhead.as_micros()),
            bytes_in: record.bytes_in,
            bytes_out: record.bytes_out,
        }
    }
}

/// The line for people: what they look for first stands first.
impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.map_or("---".into(), |status| status.to_string());
        write!(f, "{} {status} {:<14} {} {}", self.ts, self.outcome, self.method, self.route)?;
        field(f, "model", Some(self.model))?;
        field(f, "backend", self.backend)?;
        field(f, "error", self.error)?;
        field(f, "phase", self.phase)?;
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
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
