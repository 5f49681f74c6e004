//! Tests of spans. Most of them compare the spans of a request, rendered as text, with a golden
//! file.

use super::conventions::SpanConventions;
use super::{build_spans, span_count};
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanId, Status};
use opentelemetry_sdk::trace::SpanData;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tokenweir_protocol::openai::Api;
use tokenweir_request::record::fixtures::{at, streamed};
use tokenweir_request::record::*;

#[test]
fn embeddings_have_no_output_tokens() {
    let mut record = streamed();
    record.observed.usage.output = Some(0);
    for (api, has_output) in [
        (Api::Embeddings, false),
        (Api::Other, false),
        (Api::Chat, true),
    ] {
        record.api = Some(api);
        let spans = spans(&record);
        let mut attributes = spans.iter().flat_map(|span| &span.attributes);
        let has_tokens =
            attributes.any(|attribute| attribute.key.as_str() == "gen_ai.usage.output_tokens");
        assert_eq!(has_tokens, has_output, "{api:?}");
    }
}

#[test]
fn a_4xx_makes_the_attempt_an_error() {
    let mut record = before_output(streamed());
    record.status = Some(400);
    record.outcome = Outcome::ClientError;
    record.attempts[0].status = Some(400);
    record.attempts[0].ended = record.timings.ended;
    assert_matches_golden("backend_4xx", &record, &SpanConventions::default());
}

#[test]
fn without_a_backend_there_is_no_attempt() {
    let record = refused_by_gateway(streamed(), 503, "no_backend");
    assert_matches_golden("refused", &record, &SpanConventions::default());
}

#[test]
fn an_unknown_model_has_no_inference_span() {
    let mut record = before_output(streamed());
    record.model = ModelLabel::Unknown;
    record.attempts = Vec::new();
    assert_eq!(spans(&record).len(), 1);
    assert_eq!(span_count(&record), 1);
}

#[test]
fn truncation_fails_only_the_last_attempt() {
    let mut record = streamed();
    record.outcome = Outcome::Truncated;
    record.end = Termination::UpstreamReset;
    let retry = Attempt {
        span_id: 0xa2,
        ..record.attempts[0].clone()
    };
    record.attempts[0].status = Some(200);
    record.attempts.push(retry);
    let spans = spans(&record);
    let is_error = |span: &SpanData| matches!(span.status, Status::Error { .. });
    assert_eq!(
        spans.iter().map(is_error).collect::<Vec<_>>(),
        [true, true, false, true]
    );
}

#[test]
fn spans_have_a_valid_trace_state() {
    let mut record = streamed();
    for (state, expected) in [("a=1,b=2", "a=1,b=2"), ("no list", "")] {
        record.trace.as_mut().unwrap().trace_state = Some(state.into());
        assert_eq!(
            spans(&record)[0].span_context.trace_state().header(),
            expected
        );
    }
}

/// Builds the spans of a record with the default conventions.
pub(super) fn spans(record: &RequestRecord) -> Vec<SpanData> {
    build_spans(
        record,
        &record.trace.clone().unwrap(),
        &SpanConventions::default(),
    )
}

/// Changes a record to the record of a short response without output.
fn before_output(record: RequestRecord) -> RequestRecord {
    let accepted = record.timings.accepted;
    let timings = Timings {
        received: record.timings.received,
        routed: record.timings.routed,
        sent: record.timings.sent,
        headers: record.timings.headers,
        ended: Some(at(accepted, 61)),
        ..Timings::begin(accepted)
    };
    RequestRecord {
        timings,
        observed: RecordedObservations::default(),
        bytes_out: 150,
        ..record
    }
}

/// Changes a record to the record of a request that the gateway refused without an attempt.
pub(super) fn refused_by_gateway(
    record: RequestRecord,
    status: u16,
    refusal: &'static str,
) -> RequestRecord {
    let mut record = before_output(record);
    (record.status, record.refusal) = (Some(status), Some(refusal));
    (record.outcome, record.end) = (Outcome::Rejected, Termination::LocalReply);
    record.attempts.clear();
    record.decision = None;
    let timings = &mut record.timings;
    (timings.routed, timings.sent, timings.headers) = (None, None, None);
    record.bytes_out = 0;
    record
}

// === Rendering ===

/// Compares the spans of a record with the golden file `name`. With `UPDATE_GOLDEN=1` the file is
/// written first.
pub(super) fn assert_matches_golden(
    name: &str,
    record: &RequestRecord,
    conventions: &SpanConventions,
) {
    let file = golden_file(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, render_tree(record, conventions)).unwrap();
    }
    assert_eq!(
        render_tree(record, conventions),
        fs::read_to_string(&file).unwrap(),
        "{name}"
    );
}

pub(super) fn golden_file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/telemetry/otel/golden");
    folder.join(format!("{name}.txt"))
}

/// Renders the spans of a record as text: children below their parents, attributes sorted, times in
/// milliseconds since the start of the request.
pub(super) fn render_tree(record: &RequestRecord, conventions: &SpanConventions) -> String {
    let trace = record.trace.clone().unwrap();
    let spans = build_spans(record, &trace, conventions);
    assert_eq!(spans.len() as u64, span_count(record));
    let mut text = String::new();
    let parent = trace.parent_span_id.map_or(SpanId::INVALID, SpanId::from);
    render(&spans, parent, 0, record.started, &mut text);
    text
}

/// Appends the children of the span `parent` and all their descendants to `text`.
fn render(
    spans: &[SpanData],
    parent: SpanId,
    depth: usize,
    request_start: SystemTime,
    text: &mut String,
) {
    let since_start = |at: SystemTime| at.duration_since(request_start).unwrap().as_millis();
    let indent = "  ".repeat(depth);
    for span in spans.iter().filter(|span| span.parent_span_id == parent) {
        let id = span.span_context.span_id();
        let remote = if span.parent_span_is_remote {
            " of a caller"
        } else {
            ""
        };
        let SpanData {
            span_kind: kind,
            name,
            status,
            ..
        } = span;
        let (start, end) = (since_start(span.start_time), since_start(span.end_time));
        let status = if *status == Status::Unset {
            "unset"
        } else {
            "error"
        };
        writeln!(
            text,
            "{indent}{kind:?} `{name}` {id} {start}..{end} ms {status}{remote}"
        )
        .unwrap();
        for line in render_attributes(&span.attributes) {
            writeln!(text, "{indent}    {line}").unwrap();
        }
        for event in span.events.iter() {
            let (at, attributes) = (
                since_start(event.timestamp),
                render_attributes(&event.attributes).join(" "),
            );
            let line = format!("{indent}  @ {at} ms {} {attributes}", event.name);
            writeln!(text, "{}", line.trim_end()).unwrap();
        }
        for link in span.links.iter() {
            let context = &link.span_context;
            let (trace, span) = (context.trace_id(), context.span_id());
            writeln!(text, "{indent}  > {trace} {span}").unwrap();
        }
        render(spans, id, depth + 1, request_start, text);
    }
}

/// Renders the attributes as sorted `key=value` texts.
fn render_attributes(attributes: &[KeyValue]) -> Vec<String> {
    let mut lines: Vec<_> = attributes
        .iter()
        .map(|kv| format!("{}={}", kv.key, kv.value))
        .collect();
    lines.sort();
    lines
}
