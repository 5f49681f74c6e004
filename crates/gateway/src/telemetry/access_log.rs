//! The access log: one line at the end of each request and, if configured, one line at its start. Lines have
//! no prompts, responses or API keys.
//!
//! The lines of routine requests without a tenant, and of requests that no backend got, can be rate
//! limited. The lines of all other requests are always written.

mod fields;
mod json_object;
mod phase_times;
mod request_log_fields;
mod start_line;

pub(super) use fields::millis;
use fields::{seconds_to_millis, write_field};
use json_object::{JsonObject, LogLine, write_fields};
use phase_times::AccessLogPhaseTimes;
use request_log_fields::RequestLogFields;
use start_line::StartLine;
use std::fmt::{self, Display};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokenweir_protocol::limits::rate_limiter::GcraLimiter;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{
    Outcome, RequestPhases, RequestRecord, SampleReason, SlowCause, UninspectedReason,
};

/// The sink that writes access log lines.
pub struct AccessLog {
    /// Whether lines are written as JSON and not as text.
    is_json: bool,
    line_writer: AccessLogLineWriter,
    /// Rate limit of the lines of routine requests without a tenant, and of requests with a tenant
    /// but without an attempt. `None`: no limit.
    rate_limit: Option<GcraLimiter>,
    /// Rate limit of the lines of requests without a tenant and without an attempt, which everybody
    /// who reaches the port can cause. `None`: no limit.
    refused_rate_limit: Option<GcraLimiter>,
    /// Rate limit of the lines at the start of requests. `None`: no limit.
    start_rate_limit: Option<GcraLimiter>,
    /// Number of lines at the end of requests that the rate limits omitted since the last written line of
    /// this kind.
    omitted_since_last_line: AtomicU64,
    /// Number of lines that the rate limits omitted since the start.
    omitted: AtomicU64,
}

/// A function that receives one or more lines, each with its line ending. The function must not
/// block.
pub type AccessLogLineWriter = Box<dyn Fn(String) + Send + Sync>;

/// Number of access log lines by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessLogCounts {
    /// Lines that reached the output.
    pub written: u64,
    /// Lines that the rate limits omitted.
    pub rate_limited: u64,
    /// Lines dropped because the reader of the log was too slow, or because a write failed.
    pub dropped: u64,
}

impl AccessLogCounts {
    /// The name of each result, with its count.
    pub const fn by_result(&self) -> [(&'static str, u64); 3] {
        [("written", self.written), ("rate_limited", self.rate_limited), ("dropped", self.dropped)]
    }
}

/// The fields of an access log line.
#[derive(Debug)]
struct AccessLogLine<'a> {
    request: RequestLogFields<'a>,
    /// Why the trace of the request is sampled. Absent if the trace is not sampled.
    sample_reason: Option<&'static str>,
    status: Option<u16>,
    outcome: &'static str,
    /// The exact way in which the request ended.
    termination: &'static str,
    closed_by: &'static str,
    phase: Option<&'static str>,
    error: Option<&'a str>,
    /// Why the request was slow. Absent if the request was not slow.
    slow_cause: Option<&'static str>,
    /// What the gateway did with the `Idempotency-Key` of the request. Absent if the request has none.
    resume: Option<&'static str>,
    /// Why the gateway could not inspect the response. The counts of tokens and events are then not
    /// reliable. Absent if the gateway inspected the response.
    uninspected_reason: Option<&'static str>,
    backend: Option<&'a str>,
    policy: Option<&'static str>,
    /// Why the routing policy chose the backend. Absent if no backend was chosen.
    reason: Option<&'static str>,
    predicted_ttft_ms: Option<f64>,
    /// Prompt tokens predicted to be cached. `null` if no backend was chosen.
    predicted_cached: Option<f64>,
    attempts: usize,
    /// Number of lines at the end of requests that the rate limits omitted between the previous line of
    /// this kind and this line. Absent if no line was omitted.
    omitted_lines: Option<u64>,
    stream: bool,
    finish: Vec<&'static str>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
    /// Source of `output_tokens`: exact, continuous, estimated or missing.
    usage: &'static str,
    output_events: u64,
    comments: u64,
    headers_ms: Option<f64>,
    first_event_ms: Option<f64>,
    ttft_ms: Option<f64>,
    first_answer_ms: Option<f64>,
    first_reasoning_ms: Option<f64>,
    first_text_ms: Option<f64>,
    first_tool_call_ms: Option<f64>,
    tpot_ms: Option<f64>,
    itl_mean_ms: Option<f64>,
    gap_mean_ms: Option<f64>,
    gap_max_ms: Option<f64>,
    stalls: usize,
    write_stall_ms: f64,
    duration_ms: Option<f64>,
    /// Output tokens divided by the duration of the whole request in seconds.
    tokens_per_second: Option<f64>,
    overhead_us: Option<u128>,
    /// Time in the admission queue. Absent if the request was not queued.
    queued_ms: Option<f64>,
    /// The part of `queued_ms` in which no backend could serve the model. Absent if there was no such time.
    backend_wait_ms: Option<f64>,
    phases: Option<AccessLogPhaseTimes>,
    bytes_out: u64,
}

/// Maximum lines per second of requests that the gateway refused before authentication gave them a
/// tenant, if clients need keys. Clients without a key can then not fill the disk.
const REFUSED_PER_SECOND: u32 = 10;

/// Capacity of the buffer for each line. Longer lines grow the buffer.
const LINE_CAPACITY_BYTES: usize = 1536;

impl AccessLog {
    /// Creates an access log without a rate limit. `is_json` selects JSON lines and not text lines.
    pub fn new(is_json: bool, line_writer: AccessLogLineWriter) -> Self {
        Self {
            is_json,
            line_writer,
            rate_limit: None,
            refused_rate_limit: None,
            start_rate_limit: None,
            omitted_since_last_line: AtomicU64::new(0),
            omitted: AtomicU64::new(0),
        }
    }

    /// Limits three kinds of lines to `per_second` lines per second each, with bursts of up to `per_second`
    /// lines. `None`: no limit.
    ///
    /// - Lines of routine requests without a tenant, and of requests with a tenant that no backend got.
    /// - Lines of requests without a tenant that no backend got. If clients need keys, these have a limit of
    ///   at most `REFUSED_PER_SECOND` lines per second.
    /// - Lines at the start of requests.
    pub fn with_rate_limits(self, per_second: Option<u32>, has_keys: bool) -> Self {
        let refused = if has_keys {
            Some(per_second.map_or(REFUSED_PER_SECOND, |limit| limit.min(REFUSED_PER_SECOND)))
        } else {
            per_second
        };
        Self {
            rate_limit: per_second.map(GcraLimiter::new),
            refused_rate_limit: refused.map(GcraLimiter::new),
            start_rate_limit: per_second.map(GcraLimiter::new),
            ..self
        }
    }

    /// Writes the line at the start of a request, whose body was read at `now`.
    pub fn on_start(&self, record: &RequestRecord, now: Instant) {
        if self.start_rate_limit.as_ref().is_some_and(|limit| !limit.try_acquire(now)) {
            self.omitted.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut lines = Vec::with_capacity(LINE_CAPACITY_BYTES);
        self.write_line(&mut lines, &StartLine::from_record(record));
        self.write_lines(lines);
    }

    fn write_line(&self, lines: &mut Vec<u8>, line: &impl LogLine) {
        if self.is_json {
            JsonObject::append(lines, |json| line.write_json(json));
        } else {
            // Writing to memory cannot fail.
            let _ = write!(lines, "{line}");
        }
        lines.push(b'\n');
    }

    fn write_lines(&self, lines: Vec<u8>) {
        // All parts of a line are UTF-8, so the conversion succeeds.
        if let Ok(lines) = String::from_utf8(lines) {
            (self.line_writer)(lines);
        }
    }

    /// Number of lines that the rate limits omitted since the start.
    pub fn omitted(&self) -> u64 {
        self.omitted.load(Ordering::Relaxed)
    }

    fn is_rate_limited(&self, record: &RequestRecord) -> bool {
        let (has_tenant, was_sent) = (record.caller.is_some(), !record.attempts.is_empty());
        let limit = match (has_tenant, was_sent) {
            // The line may be the only record of the tokens that the tenant used.
            (true, true) => return false,
            (false, true) if !is_routine(record) => return false,
            (false, true) | (true, false) => &self.rate_limit,
            (false, false) => &self.refused_rate_limit,
        };
        let ended = record.timings.ended.unwrap_or(record.timings.accepted);
        limit.as_ref().is_some_and(|limit| !limit.try_acquire(ended))
    }
}

impl Sink for AccessLog {
    fn finished(&self, records: &[&RequestRecord]) {
        let mut lines = Vec::with_capacity(LINE_CAPACITY_BYTES * records.len());
        for record in records {
            if self.is_rate_limited(record) {
                self.omitted_since_last_line.fetch_add(1, Ordering::Relaxed);
                self.omitted.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let omitted_lines = self.omitted_since_last_line.swap(0, Ordering::Relaxed);
            let mut line = AccessLogLine::from_record(record);
            line.omitted_lines = Some(omitted_lines).filter(|lines| *lines > 0);
            self.write_line(&mut lines, &line);
        }
        if !lines.is_empty() {
            self.write_lines(lines);
        }
    }
}

/// Whether the request is routine: it succeeded at the first attempt, was not slow and had no
/// stall.
fn is_routine(record: &RequestRecord) -> bool {
    record.outcome == Outcome::Ok
        && record.slow.is_none()
        && record.observed.stalls.is_empty()
        && record.attempts.len() <= 1
}

impl<'a> AccessLogLine<'a> {
    fn from_record(record: &'a RequestRecord) -> Self {
        let observed = &*record.observed;
        let (decision, predicted) = (record.decision.as_ref(), record.selected_candidate());
        let [headers, first_event, first_answer] = record.stream_times();
        let channel = |at| record.stream_time_to(at).map(millis);
        let is_incomplete =
            record.phase() != "done" && record.status.is_none_or(|status| status < 400);
        Self {
            request: RequestLogFields::from_record(record),
            sample_reason: record.sample_reason.map(SampleReason::as_str),
            status: record.status,
            outcome: record.outcome.as_str(),
            termination: record.ending(),
            closed_by: record.end.initiator().as_str(),
            phase: is_incomplete.then(|| record.phase()),
            error: record.error_type(),
            slow_cause: record.slow.map(SlowCause::as_str),
            resume: record.resume_outcome(),
            uninspected_reason: observed.uninspected_reason.map(UninspectedReason::as_str),
            backend: record.backend().map(tokenweir_engine::address::BackendId::as_str),
            policy: decision.map(|decision| decision.policy()),
            reason: decision.map(|decision| decision.reason()),
            predicted_ttft_ms: predicted.map(|predicted| seconds_to_millis(predicted.ttft)),
            predicted_cached: predicted.map(|predicted| predicted.candidate.cached.round()),
            attempts: record.attempts.len(),
            omitted_lines: None,
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
            first_reasoning_ms: channel(record.timings.first_reasoning),
            first_text_ms: channel(record.timings.first_text),
            first_tool_call_ms: channel(record.timings.first_tool_call),
            tpot_ms: record.tpot().map(millis),
            itl_mean_ms: observed.inter_token_latency.mean().map(seconds_to_millis),
            gap_mean_ms: observed.inter_chunk_latency.mean().map(seconds_to_millis),
            gap_max_ms: observed.inter_chunk_latency.max().map(seconds_to_millis),
            stalls: observed.stalls.len(),
            write_stall_ms: millis(observed.write_stall),
            duration_ms: Some(millis(record.duration())),
            tokens_per_second: record.tokens_per_second().map(|rate| (rate * 10.0).round() / 10.0),
            overhead_us: record.overhead().map(|overhead| overhead.as_micros()),
            queued_ms: record.gateway_queue_wait().map(millis),
            backend_wait_ms: record.backend_wait().map(millis),
            phases: AccessLogPhaseTimes::from_phases(&RequestPhases::from_record(record)),
            bytes_out: record.bytes_out,
        }
    }
}

impl LogLine for AccessLogLine<'_> {
    #[rustfmt::skip] // one group of members a line
    fn write_json(&self, json: &mut JsonObject<'_>) {
        self.request.write_json(json);
        write_fields!(json, self,
            known: [sample_reason],
            member: [status, outcome, termination, closed_by],
            known: [phase, error, slow_cause, resume, uninspected_reason],
            member: [backend],
            known: [policy, reason],
            member: [predicted_ttft_ms, predicted_cached, attempts],
            known: [omitted_lines],
            member: [
                stream, finish, input_tokens, output_tokens, cached_tokens, reasoning_tokens, usage, output_events, comments,
                headers_ms, first_event_ms, ttft_ms, first_answer_ms, first_reasoning_ms, first_text_ms, first_tool_call_ms,
                tpot_ms, itl_mean_ms, gap_mean_ms, gap_max_ms, stalls, write_stall_ms, duration_ms, tokens_per_second, overhead_us,
            ],
            known: [queued_ms, backend_wait_ms, phases],
            member: [bytes_out],
        );
    }
}

/// The text form of a line, with the most important fields first.
impl Display for AccessLogLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.map_or("---".into(), |status| status.to_string());
        self.request.write_head(f, &status, self.outcome)?;
        write_field(f, "backend", self.backend)?;
        write_field(f, "reason", self.reason)?;
        write_field(f, "error", self.error)?;
        write_field(f, "phase", self.phase)?;
        write_field(f, "slow_cause", self.slow_cause)?;
        write_field(f, "resume", self.resume)?;
        write_field(f, "uninspected_reason", self.uninspected_reason)?;
        write_field(f, "queued_ms", self.queued_ms)?;
        write_field(f, "backend_wait_ms", self.backend_wait_ms)?;
        write_field(f, "ttft_ms", self.ttft_ms)?;
        write_field(f, "tpot_ms", self.tpot_ms)?;
        write_field(f, "gap_max_ms", self.gap_max_ms)?;
        write_field(f, "ms", self.duration_ms)?;
        write_field(f, "session", self.request.session)?;
        write_field(f, "user", self.request.user)?;
        write_field(f, "in", self.input_tokens)?;
        write_field(f, "out", self.output_tokens)?;
        write_field(f, "finish", (!self.finish.is_empty()).then(|| self.finish.join(",")))?;
        write_field(f, "attempts", (self.attempts > 1).then_some(self.attempts))?;
        write_field(f, "omitted_lines", self.omitted_lines)?;
        self.request.write_ids(f)
    }
}

#[cfg(test)]
mod tests;
