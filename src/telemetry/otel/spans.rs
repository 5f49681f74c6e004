//! The span tree of one request: what the client sees, the inference in it, and each time the
//! request was sent to a replica. A client that left is no error to anyone; a 4xx is one to
//! whoever asked, but not to whoever answered.

use super::attributes::{Attributes, count as number, host as host_name, text};
use super::inference;
use super::style::Style;
use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use std::borrow::Cow;
use std::time::{Instant, SystemTime};
use tokenweir_core::record::{Attempt, Kept, Outcome, RequestRecord};
use tokenweir_core::trace_context::TraceContext;

/// All spans of a request, parents first.
pub(super) fn tree(record: &RequestRecord, trace: &TraceContext, style: &Style) -> Vec<SpanData> {
    let tree = Tree::new(record, trace, style);
    let mut spans = Vec::with_capacity(2 + record.attempts.len());
    spans.push(tree.server());
    if inference::is_one(record) {
        spans.push(tree.inference());
    }
    spans
        .extend((0..).zip(&record.attempts).map(|(resend, attempt)| tree.attempt(resend, attempt)));
    spans
}

/// How many spans [`tree`] would make.
pub(super) fn count(record: &RequestRecord) -> u64 {
    1 + u64::from(inference::is_one(record)) + record.attempts.len() as u64
}

/// Whether the request or the inference is an error in [`tree`].
pub(super) fn has_error(record: &RequestRecord) -> bool {
    is_server_error(record) || (inference::is_one(record) && error_type(record).is_some())
}

/// `error.type` of the request. A replica that reports a failure inside a 200 names it itself.
pub(super) fn error_type(record: &RequestRecord) -> Option<&str> {
    let is_in_band = record.outcome == Outcome::StreamError;
    let reported = record.observed.error.as_ref().filter(|_| is_in_band);
    let named = reported.and_then(|error| error.code.as_deref().or(error.kind.as_deref()));
    named.or_else(|| record.error_type())
}

/// Why an attempt had no answer, or the error status of its answer.
pub(super) fn failure(attempt: &Attempt) -> Option<Value> {
    let error_status = attempt.status.filter(|status| *status >= 400);
    let status = || error_status.map(|status| status.to_string().into());
    attempt.failure.map(Value::from).or_else(status)
}

struct Tree<'a> {
    record: &'a RequestRecord,
    trace: &'a TraceContext,
    style: &'a Style,
    state: TraceState,
    scope: InstrumentationScope,
    end: SystemTime,
}

/// What differs between the spans of a tree.
struct Part {
    id: u64,
    parent: Option<u64>,
    kind: SpanKind,
    name: Cow<'static, str>,
    start: SystemTime,
    end: SystemTime,
    attributes: Attributes,
    events: Vec<Event>,
    is_error: bool,
}

// === impl Tree ===

impl<'a> Tree<'a> {
    fn new(record: &'a RequestRecord, trace: &'a TraceContext, style: &'a Style) -> Self {
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(style.semconv.schema_url())
            .build();
        // The caller's header is passed on unread; here it must parse, or it is left out.
        let state = trace.state.as_deref().and_then(|state| state.parse().ok());
        let end = moment(record, record.timings.ended.unwrap_or(record.timings.accepted));
        Self { record, trace, style, state: state.unwrap_or_default(), scope, end }
    }

    /// The request as the client sees it.
    fn server(&self) -> SpanData {
        let Self { record, trace, .. } = self;
        let has_head = record.timings.headers.is_some();
        let is_error = is_server_error(record);
        let is_told = is_error || record.refusal.is_some();
        let host = record.head.host_and_port();
        let attributes = Attributes::default()
            .put("http.request.method", record.method)
            .put("url.scheme", "http")
            .put_some("server.address", host.map(|(name, _)| host_name(name)))
            .put_some("server.port", host.and_then(|(_, port)| port).map(i64::from))
            .put_some(
                "network.protocol.version",
                Some(record.head.version).filter(|version| !version.is_empty()),
            )
            .put("network.peer.address", record.client.to_string())
            .put_some("user_agent.original", record.head.user_agent.as_deref().map(text))
            .put_some("url.path", record.route)
            .put_some("http.route", record.route)
            .put("client.address", record.client.to_string())
            .put_some(
                "http.request.body.size",
                record.timings.received.map(|_| number(record.bytes_in)),
            )
            .put_some("http.response.status_code", record.status.map(i64::from))
            .put_some("http.response.body.size", has_head.then(|| number(record.bytes_out)))
            .put_some("error.type", is_told.then(|| server_error_type(record)))
            .put("tokenweir.request_id", text(record.request_id.as_str()))
            .put("tokenweir.outcome", record.outcome.as_str())
            .put_some("tokenweir.tenant", record.caller.as_ref().map(|it| text(&it.tenant)))
            .put_some("tokenweir.key", record.caller.as_ref().map(|it| text(&it.key)))
            .put_some("tokenweir.kept", record.kept.map(Kept::as_str));
        let method = method_name(record.method);
        self.span(Part {
            id: record.spans[0],
            parent: trace.parent,
            kind: SpanKind::Server,
            name: match record.route {
                Some(route) => format!("{method} {route}").into(),
                None => method.into(),
            },
            start: record.started,
            end: self.end,
            attributes,
            events: Vec::new(),
            is_error,
        })
    }

    /// What the client wanted: one generation, whatever it took.
    fn inference(&self) -> SpanData {
        let record = self.record;
        let start = record.timings.received.unwrap_or(record.timings.accepted);
        self.span(Part {
            id: record.spans[1],
            parent: Some(record.spans[0]),
            kind: SpanKind::Client,
            name: inference::name(record).into(),
            start: moment(record, start),
            end: self.end,
            attributes: inference::attributes(record, self.style),
            events: inference::events(record, self.style),
            is_error: error_type(record).is_some(),
        })
    }

    /// The request was sent to a replica, for the `resend`th time after the first.
    fn attempt(&self, resend: i64, attempt: &Attempt) -> SpanData {
        let record = self.record;
        let (name, port) = &attempt.address;
        let route = record.route.unwrap_or_default();
        let error = self.attempt_error(attempt);
        let is_error = error.is_some();
        let attributes = Attributes::default()
            .put("http.request.method", record.method)
            .put("url.full", format!("http://{name}:{port}{route}"))
            .put("server.address", host_name(name))
            .put("server.port", i64::from(*port))
            .put("network.protocol.version", "1.1")
            .put_some("http.request.resend_count", (resend > 0).then_some(resend))
            .put_some("http.response.status_code", attempt.status.map(i64::from))
            .put_some("error.type", error)
            .put("tokenweir.backend.id", text(attempt.backend.as_str()));
        let parent = record.spans[usize::from(inference::is_one(record))];
        self.span(Part {
            id: attempt.span,
            parent: Some(parent),
            kind: SpanKind::Client,
            name: method_name(record.method).into(),
            start: moment(record, attempt.started),
            end: attempt.ended.map_or(self.end, |ended| moment(record, ended)),
            attributes,
            events: Vec::new(),
            is_error,
        })
    }

    /// `error.type` of an attempt: what it met, or that the answer to the last one was cut.
    fn attempt_error(&self, attempt: &Attempt) -> Option<Value> {
        let record = self.record;
        let is_last = record.attempts.last().is_some_and(|last| last.span == attempt.span);
        let is_cut =
            matches!(record.outcome, Outcome::Truncated | Outcome::Timeout | Outcome::Shutdown);
        let cut = || record.error_type().filter(|_| is_last && is_cut).map(text);
        failure(attempt).or_else(cut)
    }

    /// The request as the client sees it names the caller's trace, if it is not part of it.
    fn links(&self, kind: &SpanKind) -> SpanLinks {
        let mut links = SpanLinks::default();
        if let Some(caller) = self.trace.link.filter(|_| *kind == SpanKind::Server) {
            let flags = TraceFlags::default().with_sampled(caller.is_sampled);
            let (trace, span) = (TraceId::from(caller.trace_id), SpanId::from(caller.span_id));
            let context = SpanContext::new(trace, span, flags, true, TraceState::default());
            links.links.push(Link::with_context(context));
        }
        links
    }

    fn span(&self, part: Part) -> SpanData {
        let trace_id = TraceId::from(self.trace.trace_id);
        let (id, state) = (SpanId::from(part.id), self.state.clone());
        let links = self.links(&part.kind);
        let mut events = SpanEvents::default();
        events.events = part.events;
        SpanData {
            span_context: SpanContext::new(trace_id, id, TraceFlags::SAMPLED, false, state),
            parent_span_id: part.parent.map_or(SpanId::INVALID, SpanId::from),
            parent_span_is_remote: part.kind == SpanKind::Server && part.parent.is_some(),
            span_kind: part.kind,
            name: part.name,
            start_time: part.start,
            end_time: part.end,
            attributes: part.attributes.into_vec(),
            dropped_attributes_count: 0,
            events,
            links,
            status: if part.is_error { Status::error("") } else { Status::Unset },
            instrumentation_scope: self.scope.clone(),
        }
    }
}

/// A moment of a request on the wall clock. What came before the request counts as its begin.
pub(super) fn moment(record: &RequestRecord, instant: Instant) -> SystemTime {
    let since = instant.saturating_duration_since(record.timings.accepted);
    record.started.checked_add(since).unwrap_or(record.started)
}

/// The server's view: it failed if it said so, or if what it had begun did not come whole.
fn is_server_error(record: &RequestRecord) -> bool {
    let is_5xx = record.status.is_some_and(|status| status >= 500);
    record.outcome != Outcome::Cancelled && (is_5xx || record.outcome.is_backend_failure())
}

fn server_error_type(record: &RequestRecord) -> Value {
    match (error_type(record), record.status) {
        (Some(error), _) => text(error),
        (None, Some(status)) => status.to_string().into(),
        (None, None) => "_OTHER".into(),
    }
}

/// The method in a span's name.
fn method_name(method: &'static str) -> &'static str {
    if method == "_OTHER" { "HTTP" } else { method }
}
