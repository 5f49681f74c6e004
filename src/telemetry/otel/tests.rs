//! The contract of the spans: what each way to end a request looks like in a trace, as text.

use super::spans;
use super::style::Style;
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanId, Status};
use opentelemetry_sdk::trace::SpanData;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::SystemTime;
use tokenweir_core::openai::{Api, Finish, Usage};
use tokenweir_core::record::sample::{at, streamed};
use tokenweir_core::record::*;

#[test]
fn an_answer_that_is_whole() {
    let mut record = streamed();
    record.api = Some(Api::Completions);
    record.route = Some("/v1/completions");
    record.asked = Asked { n: Some(2), ..Asked::default() };
    record.decision = None;
    record.timings.first_event = None;
    record.timings.first_output = None;
    record.timings.last_output = None;
    record.observed = Observed {
        usage: Usage { input: Some(12), output: Some(32), ..Usage::default() },
        usage_source: UsageSource::Exact,
        finish_reasons: vec![Some(Finish::Stop), Some(Finish::Length)],
        is_terminal: true,
        response_id: Some("cmpl-1".into()),
        ..Observed::default()
    };
    assert_is_golden("whole_ok", &record, &Style::default());
}

#[test]
fn a_4xx_of_the_replica_is_an_error_to_whoever_asked_it() {
    let mut record = before_output(streamed());
    record.status = Some(400);
    record.outcome = Outcome::ClientError;
    record.attempts[0].status = Some(400);
    record.attempts[0].ended = record.timings.ended;
    assert_is_golden("backend_4xx", &record, &Style::default());
}

#[test]
fn a_request_that_no_replica_can_take_has_no_attempt() {
    let mut record = before_output(streamed());
    record.status = Some(503);
    record.refusal = Some("no_backend");
    record.outcome = Outcome::Rejected;
    record.end = End::Refused;
    record.attempts = Vec::new();
    record.decision = None;
    record.timings.routed = None;
    record.timings.sent = None;
    record.timings.headers = None;
    record.bytes_out = 0;
    assert_is_golden("refused", &record, &Style::default());
}

#[test]
fn a_wait_for_a_replica_with_room_is_a_phase_and_two_events() {
    let mut record = streamed();
    let accepted = record.timings.accepted;
    record.timings.queued = Some(at(accepted, 2));
    record.timings.dequeued = Some(at(accepted, 7));
    assert_is_golden("queued", &record, &Style::default());
}

#[test]
fn a_request_that_found_no_room_has_no_attempt() {
    let mut record = before_output(streamed());
    let accepted = record.timings.accepted;
    record.status = Some(429);
    record.refusal = Some("queue_timeout");
    record.outcome = Outcome::Rejected;
    record.end = End::Refused;
    record.attempts = Vec::new();
    record.decision = None;
    record.timings.queued = Some(at(accepted, 2));
    record.timings.dequeued = Some(at(accepted, 9));
    record.timings.routed = None;
    record.timings.sent = None;
    record.timings.headers = None;
    record.bytes_out = 0;
    assert_is_golden("queue_timeout", &record, &Style::default());
}

#[test]
fn a_request_for_an_unknown_model_is_no_inference() {
    let mut record = before_output(streamed());
    record.model = ModelLabel::other();
    record.attempts = Vec::new();
    let trace = record.trace.clone().unwrap();
    assert_eq!(spans::tree(&record, &trace, &Style::default()).len(), 1);
    assert_eq!(spans::count(&record), 1);
}

#[test]
fn a_stream_that_was_cut_is_an_error_of_the_last_attempt_only() {
    let mut record = streamed();
    record.outcome = Outcome::Truncated;
    record.end = End::Broken;
    let retry = Attempt { span: 0xa2, ..record.attempts[0].clone() };
    record.attempts[0].status = Some(200);
    record.attempts.push(retry);
    let trace = record.trace.clone().unwrap();
    let spans = spans::tree(&record, &trace, &Style::default());
    let is_error = |span: &SpanData| matches!(span.status, Status::Error { .. });
    assert_eq!(spans.iter().map(is_error).collect::<Vec<_>>(), [true, true, false, true]);
}

#[test]
fn the_state_of_the_caller_is_kept_if_it_can_be_read() {
    let record = streamed();
    let mut trace = record.trace.clone().unwrap();
    for (state, kept) in [("a=1,b=2", "a=1,b=2"), ("no list", "")] {
        trace.state = Some(state.into());
        let spans = spans::tree(&record, &trace, &Style::default());
        assert_eq!(spans[0].span_context.trace_state().header(), kept);
    }
}

/// The same, but the answer is short and has no output.
pub(super) fn before_output(record: RequestRecord) -> RequestRecord {
    let accepted = record.timings.accepted;
    let timings = Timings {
        received: record.timings.received,
        routed: record.timings.routed,
        sent: record.timings.sent,
        headers: record.timings.headers,
        ended: Some(at(accepted, 61)),
        ..Timings::begin(accepted)
    };
    RequestRecord { timings, observed: Observed::default(), bytes_out: 150, ..record }
}

// === Text ===

/// Compares a tree with the one in a file. `UPDATE_GOLDEN=1` writes the file instead.
pub(super) fn assert_is_golden(name: &str, record: &RequestRecord, style: &Style) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/telemetry/otel/golden");
    let file = folder.join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, rendered(record, style)).unwrap();
    }
    assert_eq!(rendered(record, style), fs::read_to_string(&file).unwrap(), "{name}");
}

/// A tree as text: children under their parents, attributes sorted, times since the beginning.
fn rendered(record: &RequestRecord, style: &Style) -> String {
    let trace = record.trace.clone().unwrap();
    let spans = spans::tree(record, &trace, style);
    assert_eq!(spans.len() as u64, spans::count(record));
    let mut text = String::new();
    let parent = trace.parent.map_or(SpanId::INVALID, SpanId::from);
    render(&spans, parent, 0, record.started, &mut text);
    text
}

fn render(spans: &[SpanData], parent: SpanId, depth: usize, zero: SystemTime, text: &mut String) {
    let since = |at: SystemTime| at.duration_since(zero).unwrap().as_millis();
    let indent = "  ".repeat(depth);
    for span in spans.iter().filter(|span| span.parent_span_id == parent) {
        let id = span.span_context.span_id();
        let remote = if span.parent_span_is_remote { " of a caller" } else { "" };
        let SpanData { span_kind: kind, name, status, .. } = span;
        let (start, end) = (since(span.start_time), since(span.end_time));
        let status = if *status == Status::Unset { "unset" } else { "error" };
        writeln!(text, "{indent}{kind:?} `{name}` {id} {start}..{end} ms {status}{remote}")
            .unwrap();
        for line in lines(&span.attributes) {
            writeln!(text, "{indent}    {line}").unwrap();
        }
        for event in span.events.iter() {
            let (at, attributes) = (since(event.timestamp), lines(&event.attributes).join(" "));
            let line = format!("{indent}  @ {at} ms {} {attributes}", event.name);
            writeln!(text, "{}", line.trim_end()).unwrap();
        }
        for link in span.links.iter() {
            let context = &link.span_context;
            let (trace, span) = (context.trace_id(), context.span_id());
            writeln!(text, "{indent}  > {trace} {span}").unwrap();
        }
        render(spans, id, depth + 1, zero, text);
    }
}

fn lines(attributes: &[KeyValue]) -> Vec<String> {
    let mut lines: Vec<_> =
        attributes.iter().map(|kv| format!("{}={}", kv.key, kv.value)).collect();
    lines.sort();
    lines
}
