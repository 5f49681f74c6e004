//! The access log: one line at the end of each request and, if configured, one line at its start. Lines contain
//! no prompts, responses or API keys.
//!
//! Rate limits can omit three kinds of lines: lines at the start of requests, and lines at the end of routine
//! requests without a tenant and of requests that no backend got. All other lines at the end of requests are
//! written. Any line is dropped if the reader of the log is too slow, or if the write fails.

mod fields;
mod json_object;
mod phase_times;
mod request_log_fields;
mod start_line;

use crate::status::StatusBlock;
pub use fields::millis;
use fields::{fields, seconds_to_millis, write_field};
use json_object::{JsonObject, LogLine, members};
use phase_times::AccessLogPhaseTimes;
use serde::Serialize;
use start_line::StartLine;
use std::fmt::{self, Display};
use std::io::Write as _;
use std::time::Instant;
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::atomic::AtomicCounter;
use tokenweir_protocol::limits::rate_limiter::GcraLimiter;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{
    LogPlace, NoteAttribute, Outcome, RequestPhase, RequestRecord, SlowCause, UninspectedReason,
};

/// The sink that writes access log lines.
pub struct AccessLog {
    /// Whether lines are JSON instead of text.
    is_json: bool,
    line_writer: AccessLogLineWriter,
    /// Rate limit for lines of routine requests without a tenant, and of requests with a tenant but without an
    /// attempt. `None`: no limit.
    rate_limit: Option<GcraLimiter>,
    /// Rate limit for lines of requests without a tenant and without an attempt. Anyone who can reach the port
    /// can cause such lines. `None`: no limit.
    refused_rate_limit: Option<GcraLimiter>,
    /// Rate limit of the lines at the start of requests. `None`: no limit.
    start_rate_limit: Option<GcraLimiter>,
    /// Number of end-of-request lines that the rate limits have omitted since the last such line.
    omitted_since_last_line: AtomicCounter,
    /// Number of lines that the rate limits omitted since the start of the gateway.
    omitted: AtomicCounter,
}

/// A function that receives one or more lines, each with its line ending. The function must not
/// block.
pub type AccessLogLineWriter = Box<dyn Fn(String) + Send + Sync>;

/// Number of access log lines by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AccessLogCounts {
    /// Number of lines that reached the output.
    pub written: u64,
    /// Number of lines that the rate limits omitted.
    pub rate_limited: u64,
    /// Number of lines that were dropped because the reader of the log was too slow, or because a
    /// write failed.
    pub dropped: u64,
}

impl StatusBlock for AccessLogCounts {}

/// The access log line at the end of a request.
struct AccessLogLine<'a> {
    record: &'a RequestRecord,
    /// Number of end-of-request lines that the rate limits omitted between the previous such line and this
    /// line. `None`: no line was omitted.
    omitted_lines: Option<u64>,
}

/// Maximum number of access log lines per second for requests that the gateway refused before authentication
/// found their tenant. The limit applies if clients need keys, so that clients without a key cannot fill the
/// disk.
const REFUSED_PER_SECOND: u32 = 10;

/// Initial capacity of the buffer for each line. Longer lines grow the buffer.
const LINE_CAPACITY_BYTES: usize = 1536;

impl AccessLog {
    /// Creates an access log. `is_json` selects JSON lines instead of text lines. Three kinds of lines are each
    /// limited to `per_second` lines per second, with bursts of up to `per_second` lines. `None`: no limit.
    ///
    /// - Lines of routine requests without a tenant, and of requests with a tenant that no backend got.
    /// - Lines of requests without a tenant that no backend got. If clients need keys (`has_keys`), the limit
    ///   is at most `REFUSED_PER_SECOND` lines per second.
    /// - Lines at the start of requests.
    pub fn new(
        is_json: bool,
        line_writer: AccessLogLineWriter,
        per_second: Option<u32>,
        has_keys: bool,
    ) -> Self {
        let refused = if has_keys {
            Some(per_second.map_or(REFUSED_PER_SECOND, |limit| limit.min(REFUSED_PER_SECOND)))
        } else {
            per_second
        };
        Self {
            is_json,
            line_writer,
            rate_limit: per_second.map(GcraLimiter::new),
            refused_rate_limit: refused.map(GcraLimiter::new),
            start_rate_limit: per_second.map(GcraLimiter::new),
            omitted_since_last_line: AtomicCounter::new(),
            omitted: AtomicCounter::new(),
        }
    }

    /// Writes the access log line at the start of a request. `now`: the time at which its body was read.
    pub fn on_start(&self, record: &RequestRecord, now: Instant) {
        if self
            .start_rate_limit
            .as_ref()
            .is_some_and(|limit| !limit.try_acquire(now))
        {
            self.omitted.add(1);
            return;
        }
        let mut lines = Vec::with_capacity(LINE_CAPACITY_BYTES);
        self.write_line(&mut lines, &StartLine(record));
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

    /// Returns the number of lines that the rate limits omitted since the start of the gateway.
    pub fn omitted(&self) -> u64 {
        self.omitted.get()
    }

    fn is_rate_limited(&self, record: &RequestRecord) -> bool {
        let has_tenant = record.caller.is_some();
        let was_sent = !record.attempts.is_empty();
        // Such a line may be the only record of the tokens that a tenant used.
        if was_sent && (has_tenant || !is_routine(record)) {
            return false;
        }
        let is_refused = !was_sent && !has_tenant;
        let limit = if is_refused {
            &self.refused_rate_limit
        } else {
            &self.rate_limit
        };
        let ended = record.timings.end();
        limit
            .as_ref()
            .is_some_and(|limit| !limit.try_acquire(ended))
    }
}

impl Sink for AccessLog {
    fn finished(&self, records: &[&RequestRecord]) {
        let mut lines = Vec::with_capacity(LINE_CAPACITY_BYTES * records.len());
        for record in records {
            if self.is_rate_limited(record) {
                self.omitted_since_last_line.add(1);
                self.omitted.add(1);
                continue;
            }
            let omitted_lines = self.omitted_since_last_line.take();
            let omitted_lines = Some(omitted_lines).filter(|lines| *lines > 0);
            self.write_line(
                &mut lines,
                &AccessLogLine {
                    record,
                    omitted_lines,
                },
            );
        }
        if !lines.is_empty() {
            self.write_lines(lines);
        }
    }
}

/// Whether the request is routine: it succeeded at the first attempt, without slowness and without a stall.
fn is_routine(record: &RequestRecord) -> bool {
    record.outcome == Outcome::Ok
        && record.slow.is_none()
        && record.observed.stalls.is_empty()
        && record.attempts.len() <= 1
}

/// Returns the phase in which an incomplete response ended. `None`: the response is complete, or
/// has an error status.
fn incomplete_phase(record: &RequestRecord) -> Option<&'static str> {
    let is_incomplete = record.phase() != "done" && record.status.is_none_or(|status| status < 400);
    is_incomplete.then(|| record.phase())
}

/// The fields of options that follow the place `after` in the line.
fn option_fields(record: &RequestRecord, after: LogPlace) -> impl Iterator<Item = NoteAttribute> {
    record
        .notes
        .iter()
        .filter_map(move |note| note.log_field(after))
}

fn finish_reasons(record: &RequestRecord) -> Vec<&'static str> {
    record
        .observed
        .finish_reasons
        .iter()
        .flatten()
        .map(|reason| reason.as_str())
        .collect()
}

fn write_option_fields(json: &mut JsonObject<'_>, record: &RequestRecord, after: LogPlace) {
    for field in option_fields(record, after) {
        json.member(&format!(",\"{}\":", field.name), &field.value);
    }
}

impl LogLine for AccessLogLine<'_> {
    fn write_json(&self, json: &mut JsonObject<'_>) {
        request_log_fields::write_json(json, self.record);
        write_result(json, self.record);
        write_routing(json, self.record);
        members!(json, { "omitted_lines" ? self.omitted_lines });
        write_response(json, self.record);
        write_latencies(json, self.record);
        write_durations(json, self.record);
    }
}

fn write_result(json: &mut JsonObject<'_>, record: &RequestRecord) {
    let uninspected_reason = record.observed.uninspected_reason;
    members!(json, {
        "sample_reason" ? record.sample_reason,
        "status": record.status,
        "outcome": record.outcome,
        "termination": record.ending(),
        "closed_by": record.end.initiator(),
        "phase" ? incomplete_phase(record),
        "error" ? record.error_type(),
        "slow_cause" ? record.slow,
    });
    write_option_fields(json, record, LogPlace::SlowCause);
    // Without inspection of the response, the counts of tokens and events are unreliable.
    members!(json, { "uninspected_reason" ? uninspected_reason });
}

fn write_routing(json: &mut JsonObject<'_>, record: &RequestRecord) {
    let decision = record.decision.as_ref();
    let predicted = record.selected_candidate();
    members!(json, {
        "backend": record.backend().map(BackendId::as_str),
        "policy" ? decision.map(|decision| decision.policy()),
        "reason" ? decision.map(|decision| decision.reason()),
        "predicted_ttft_ms": predicted.map(|it| seconds_to_millis(it.ttft)),
        "predicted_cached": predicted.map(|it| it.candidate.cached.round()),
        "attempts": record.attempts.len(),
    });
    write_option_fields(json, record, LogPlace::Attempts);
}

fn write_response(json: &mut JsonObject<'_>, record: &RequestRecord) {
    let observed = &*record.observed;
    members!(json, {
        "stream": record.options.stream || observed.is_stream,
        "finish": finish_reasons(record),
        "input_tokens": observed.usage.input,
        "output_tokens": record.output_tokens(),
        "cached_tokens": observed.usage.cached,
        "reasoning_tokens": observed.usage.reasoning,
        // The source of `output_tokens`.
        "usage": observed.usage_source,
        "output_events": observed.output_events,
        "comments": observed.comments,
    });
}

fn write_latencies(json: &mut JsonObject<'_>, record: &RequestRecord) {
    let timings = &record.timings;
    let stream_ms = |at| record.stream_time_to(at).map(millis);
    let gaps = &record.observed.inter_chunk_latency;
    let itl_mean = record.observed.inter_token_latency.mean();
    members!(json, {
        "headers_ms": stream_ms(timings.headers),
        "first_event_ms": stream_ms(timings.first_event),
        "ttft_ms": record.ttft().map(millis),
        "first_answer_ms": stream_ms(timings.first_answer),
        "first_reasoning_ms": stream_ms(timings.first_reasoning),
        "first_text_ms": stream_ms(timings.first_text),
        "first_tool_call_ms": stream_ms(timings.first_tool_call),
        "tpot_ms": record.tpot().map(millis),
        "itl_mean_ms": itl_mean.map(seconds_to_millis),
        "gap_mean_ms": gaps.mean().map(seconds_to_millis),
        "gap_max_ms": gaps.max().map(seconds_to_millis),
        "stalls": record.observed.stalls.len(),
    });
}

fn write_durations(json: &mut JsonObject<'_>, record: &RequestRecord) {
    // The rate refers to the duration of the whole request.
    let rate = record
        .tokens_per_second()
        .map(|rate| (rate * 10.0).round() / 10.0);
    let phases = record.phases();
    let gateway = phases.get(RequestPhase::Gateway);
    members!(json, {
        "write_stall_ms": millis(record.observed.write_stall),
        "duration_ms": millis(record.duration()),
        "tokens_per_second": rate,
        "overhead_us": gateway.map(|span| span.took.as_micros()),
        "queued_ms" ? record.gateway_queue_wait().map(millis),
        // The part of `queued_ms` in which no backend could serve the model.
        "backend_wait_ms" ? record.backend_wait().map(millis),
        "phases" ? AccessLogPhaseTimes::from_phases(phases),
        "bytes_out": record.bytes_out,
    });
}

/// The text form of a line, with the most important fields first.
impl Display for AccessLogLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.record;
        let status = record
            .status
            .map_or("---".into(), |status| status.to_string());
        request_log_fields::write_head(f, record, &status, record.outcome.as_str())?;
        let decision = record.decision.as_ref();
        fields!(f, {
            "backend": record.backend(),
            "reason": decision.map(|decision| decision.reason()),
            "error": record.error_type(),
            "phase": incomplete_phase(record),
            "slow_cause": record.slow.map(SlowCause::as_str),
        });
        for field in option_fields(record, LogPlace::SlowCause) {
            write_field(f, field.name, Some(field.value))?;
        }
        let uninspected_reason = record.observed.uninspected_reason;
        let gap_max = record.observed.inter_chunk_latency.max();
        fields!(f, {
            "uninspected_reason": uninspected_reason.map(UninspectedReason::as_str),
            "queued_ms": record.gateway_queue_wait().map(millis),
            "backend_wait_ms": record.backend_wait().map(millis),
            "ttft_ms": record.ttft().map(millis),
            "tpot_ms": record.tpot().map(millis),
            "gap_max_ms": gap_max.map(seconds_to_millis),
            "ms": Some(millis(record.duration())),
        });
        request_log_fields::write_session(f, record)?;
        let finish = finish_reasons(record);
        let attempts = record.attempts.len();
        fields!(f, {
            "in": record.observed.usage.input,
            "out": record.output_tokens(),
            "finish": (!finish.is_empty()).then(|| finish.join(",")),
            "attempts": (attempts > 1).then_some(attempts),
        });
        for field in option_fields(record, LogPlace::Attempts) {
            write_field(f, field.name, Some(field.value))?;
        }
        write_field(f, "omitted_lines", self.omitted_lines)?;
        request_log_fields::write_ids(f, record)
    }
}

#[cfg(test)]
mod tests;
