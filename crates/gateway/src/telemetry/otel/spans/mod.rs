//! The spans of one request: the server span, the inference span as its child, and one client span per attempt.
//! The parent of the client spans is the inference span or, if the request has none, the server span.
//!
//! A client disconnect does not make a span an error. A status of 4xx makes the inference span and the span of
//! the attempt an error, but not the server span.

mod attributes;
pub(super) mod conventions;
mod events;
#[cfg(test)]
mod golden_tests;
mod inference;
pub(super) mod limits;
mod record_values;
#[cfg(test)]
mod tests;
mod viewer_profiles;

use crate::telemetry::otel::resource::PROGRAM_NAME;
use attributes::{SpanAttributes, attributes, host as host_name, text};
use conventions::SpanConventions;
use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use record_values::{attempt_failure, error_type, to_wall_clock};
use std::time::SystemTime;
use tokenweir_protocol::trace_context::TraceContext;
use tokenweir_request::record::{Attempt, Outcome, RequestRecord, SampleReason};

/// Builds all spans of a finished request. A parent precedes its children.
pub(super) fn build_spans(
    record: &RequestRecord,
    trace: &TraceContext,
    conventions: &SpanConventions,
) -> Vec<SpanData> {
    let builder = SpanTreeBuilder::new(record, trace, conventions);
    let mut spans = Vec::with_capacity(span_count(record) as usize);
    spans.push(builder.server_span());
    if inference::has_inference(record) {
        spans.push(builder.inference_span());
    }
    for (leg, attempts) in [
        (Some("prefill"), &record.attempts_apart),
        (None, &record.attempts),
    ] {
        let attempts = (0..).zip(attempts);
        spans.extend(attempts.map(|(count, attempt)| builder.attempt_span(count, attempt, leg)));
    }
    spans
}

pub(super) fn span_count(record: &RequestRecord) -> u64 {
    let attempts = record.attempts.len() + record.attempts_apart.len();
    1 + u64::from(inference::has_inference(record)) + attempts as u64
}

/// Whether the server span or the inference span of the request has the span status `error`.
pub(super) fn has_error(record: &RequestRecord) -> bool {
    is_server_error(record) || (inference::has_inference(record) && error_type(record).is_some())
}

struct SpanTreeBuilder<'a> {
    record: &'a RequestRecord,
    trace: &'a TraceContext,
    conventions: &'a SpanConventions,
    trace_state: TraceState,
    scope: InstrumentationScope,
    end_time: SystemTime,
}

impl<'a> SpanTreeBuilder<'a> {
    fn new(
        record: &'a RequestRecord,
        trace: &'a TraceContext,
        conventions: &'a SpanConventions,
    ) -> Self {
        let scope = InstrumentationScope::builder(PROGRAM_NAME)
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(conventions.semconv.schema_url())
            .build();
        // Spans omit an invalid trace state. The client's header is still forwarded unchanged.
        let trace_state = trace
            .trace_state
            .as_deref()
            .and_then(|header| header.parse().ok());
        let ended = record.timings.end();
        let end_time = to_wall_clock(record, ended);
        let trace_state = trace_state.unwrap_or_default();
        Self {
            record,
            trace,
            conventions,
            trace_state,
            scope,
            end_time,
        }
    }

    /// Builds the server span: from the request head to the end of the response, as seen by the client.
    fn server_span(&self) -> SpanData {
        let record = self.record;
        let method = method_name(record.method);
        let parent = self.trace.parent_span_id;
        let attributes = server_attributes(record);
        SpanData {
            parent_span_is_remote: parent.is_some(),
            span_kind: SpanKind::Server,
            name: match record.route {
                Some(route) => format!("{method} {route}").into(),
                None => method.into(),
            },
            links: self.server_links(),
            ..self.client_span(
                record.spans.server,
                parent,
                attributes,
                is_server_error(record),
            )
        }
    }

    /// Builds the inference span: the generation of one response, over all attempts.
    fn inference_span(&self) -> SpanData {
        let record = self.record;
        let start = record.timings.received.unwrap_or(record.timings.accepted);
        let attributes = inference::span_attributes(record, self.conventions);
        let parent = Some(record.spans.server);
        let is_error = error_type(record).is_some();
        SpanData {
            name: inference::span_name(record).into(),
            start_time: to_wall_clock(record, start),
            events: to_events(events::of_inference(record, self.conventions)),
            ..self.client_span(record.spans.inference, parent, attributes, is_error)
        }
    }

    /// Builds the client span of an attempt. `resend_count`: the number of earlier attempts. `leg`: `prefill`
    /// for a request that computes the prompt, and `None` for an attempt of the request itself.
    fn attempt_span(
        &self,
        resend_count: i64,
        attempt: &Attempt,
        leg: Option<&'static str>,
    ) -> SpanData {
        let record = self.record;
        let is_decode = self.is_last(attempt) && record.has_remote_prompt;
        let (name, port) = &attempt.address;
        let route = record.route.unwrap_or_default();
        let error = self.attempt_error_type(attempt);
        let is_error = error.is_some();
        let attributes = attributes! {
            "http.request.method" => record.method,
            "url.full" => format!("http://{name}:{port}{route}"),
            "server.address" => host_name(name),
            "server.port" => *port,
            "network.protocol.version" => "1.1",
            "http.request.resend_count" => (resend_count > 0).then_some(resend_count),
            "http.response.status_code" => attempt.status,
            "error.type" => error,
            "tokenweir.backend.id" => text(attempt.backend.as_str()),
            "tokenweir.leg" => leg.or(is_decode.then_some("decode")),
        };
        let has_inference = inference::has_inference(record);
        let parent = if has_inference {
            record.spans.inference
        } else {
            record.spans.server
        };
        SpanData {
            name: method_name(record.method).into(),
            start_time: to_wall_clock(record, attempt.started),
            end_time: attempt
                .ended
                .map_or(self.end_time, |ended| to_wall_clock(record, ended)),
            events: to_events(events::of_attempt(record, attempt.span_id)),
            ..self.client_span(attempt.span_id, Some(parent), attributes, is_error)
        }
    }

    /// Returns the attribute `error.type` of an attempt: the failure of the attempt, or the error type of the
    /// request if the last attempt has an incomplete response. `None`: no error.
    fn attempt_error_type(&self, attempt: &Attempt) -> Option<Value> {
        let outcome = self.record.outcome;
        let is_incomplete = matches!(
            outcome,
            Outcome::Truncated | Outcome::Timeout | Outcome::Shutdown
        );
        match attempt_failure(attempt) {
            None if is_incomplete && self.is_last(attempt) => self.record.error_type().map(text),
            failure => failure,
        }
    }

    fn is_last(&self, attempt: &Attempt) -> bool {
        let last = self.record.attempts.last();
        last.is_some_and(|last| last.span_id == attempt.span_id)
    }

    /// Returns the links of the server span. If the gateway starts a new trace despite a trace context from the
    /// client, the span links to the client's span.
    fn server_links(&self) -> SpanLinks {
        let mut links = SpanLinks::default();
        if let Some(client) = &self.trace.linked_parent {
            let trace = TraceId::from(client.trace_id);
            let span = SpanId::from(client.span_id);
            let flags = TraceFlags::default().with_sampled(client.is_sampled);
            let context = SpanContext::new(trace, span, flags, true, TraceState::default());
            links.links.push(Link::with_context(context));
        }
        links
    }

    /// Builds a client span without name, events and links that lasts as long as the request. `parent`: the ID
    /// of the parent span, or `None`.
    fn client_span(
        &self,
        span_id: u64,
        parent: Option<u64>,
        mut attributes: SpanAttributes,
        is_error: bool,
    ) -> SpanData {
        let span_context = SpanContext::new(
            TraceId::from(self.trace.trace_id),
            SpanId::from(span_id),
            TraceFlags::SAMPLED,
            false,
            self.trace_state.clone(),
        );
        viewer_profiles::add_identity(self.conventions, &mut attributes, self.record);
        SpanData {
            span_context,
            parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from),
            parent_span_is_remote: false,
            span_kind: SpanKind::Client,
            name: "".into(),
            start_time: self.record.started,
            end_time: self.end_time,
            attributes: attributes.into_vec(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: if is_error {
                Status::error("")
            } else {
                Status::Unset
            },
            instrumentation_scope: self.scope.clone(),
        }
    }
}

fn to_events(list: Vec<Event>) -> SpanEvents {
    let mut events = SpanEvents::default();
    events.events = list;
    events
}

fn server_attributes(record: &RequestRecord) -> SpanAttributes {
    let has_head = record.timings.headers.is_some();
    let has_error_type = is_server_error(record) || record.refusal.is_some();
    let host = record.head.host_and_port();
    let principal = record.caller.as_ref();
    let version = record.head.version;
    attributes! {
        "http.request.method" => record.method,
        "url.scheme" => "http",
        "server.address" => host.map(|(name, _)| host_name(name)),
        "server.port" => host.and_then(|(_, port)| port),
        "network.protocol.version" => (!version.is_empty()).then_some(version),
        "network.peer.address" => record.client.to_string(),
        "user_agent.original" => record.head.user_agent.as_deref().map(text),
        "url.path" => record.route,
        "http.route" => record.route,
        "client.address" => record.client.to_string(),
        "http.request.body.size" => record.timings.received.map(|_| record.bytes_in),
        "http.response.status_code" => record.status,
        "http.response.body.size" => has_head.then_some(record.bytes_out),
        "error.type" => has_error_type.then(|| server_error_type(record)),
        "tokenweir.request_id" => text(record.request_id.as_str()),
        "tokenweir.outcome" => record.outcome.as_str(),
        "tokenweir.tenant" => principal.map(|principal| text(&principal.tenant)),
        "tokenweir.key" => principal.map(|principal| text(&principal.key)),
        "tokenweir.sample_reason" => record.sample_reason.map(SampleReason::as_str),
    }
}

/// Whether the server span has the span status `error`: the response status is 5xx or the backend failed,
/// and the client did not cancel the request.
fn is_server_error(record: &RequestRecord) -> bool {
    let is_5xx = record.status.is_some_and(|status| status >= 500);
    record.outcome != Outcome::Cancelled && (is_5xx || record.outcome.is_backend_failure())
}

/// Returns the attribute `error.type` of the server span: the error type of the request or, without one, the
/// HTTP status of the response.
fn server_error_type(record: &RequestRecord) -> Value {
    match (error_type(record), record.status) {
        (Some(error), _) => text(error),
        (None, Some(status)) => status.to_string().into(),
        (None, None) => "_OTHER".into(),
    }
}

/// Returns the HTTP method as it appears in the name of a span: `HTTP` for an unknown method.
fn method_name(method: &'static str) -> &'static str {
    if method == "_OTHER" { "HTTP" } else { method }
}
