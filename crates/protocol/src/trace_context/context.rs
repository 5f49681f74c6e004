//! The trace of a request, and the headers that carry it to a backend.

use super::b3;
use super::trace_parent::TraceParent;
use crate::headers::hex_digits;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

/// Ids, sampling and forwarded headers of the trace of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// Id of the trace. Never zero.
    pub trace_id: u128,
    /// Id of the client's span. `None`: the gateway does not continue a trace of the client.
    pub parent_span_id: Option<u64>,
    /// The client's span, to which the gateway's new trace links. `None`: the trace has no link.
    pub linked_parent: Option<TraceParent>,
    /// Whether the head sampler selected this trace.
    pub is_sampled: bool,
    /// The client's `tracestate`, filtered. `None`: the gateway forwards no `tracestate`.
    pub trace_state: Option<Box<str>>,
    /// The forwarded members of the client's `baggage`. `None`: the gateway forwards no member.
    pub baggage: Option<Box<str>>,
    /// Whether `traceparent` and `tracestate` are injected into upstream requests. `false`: no trace
    /// propagation format is enabled. `baggage` does not depend on this value.
    pub is_propagated: bool,
}

pub(super) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(super) static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
pub(super) static BAGGAGE: HeaderName = HeaderName::from_static("baggage");

/// Whether a header belongs to a trace context. The names are compared as `str`, because this comparison checks
/// the length first, and most names differ in length.
fn is_context_header(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, "traceparent" | "tracestate" | "baggage") || b3::is_b3_header(name)
}

impl TraceContext {
    /// The id as 32 hexadecimal digits.
    pub fn id_text(&self) -> String {
        let digits = hex_digits(self.trace_id);
        str::from_utf8(&digits).unwrap_or_default().to_owned()
    }

    /// The `traceparent` for an upstream request whose parent is the gateway's span `span_id`.
    pub fn trace_parent(&self, span_id: u64) -> TraceParent {
        TraceParent {
            trace_id: self.trace_id,
            span_id,
            is_sampled: self.is_sampled,
        }
    }

    /// Injects this context into the headers of an upstream request, and removes the client's context in every
    /// format. `span_id`: the gateway's span, which becomes the parent of the engine's span.
    pub fn inject(&self, span_id: u64, headers: &mut HeaderMap) {
        // Most clients send none of these headers, and one scan costs less than nine removals.
        if headers.keys().any(is_context_header) {
            let names = [&TRACEPARENT, &TRACESTATE, &BAGGAGE]
                .into_iter()
                .chain(&b3::B3_HEADERS);
            names.for_each(|name| drop(headers.remove(name)));
        }
        let parent = self.trace_parent(span_id).to_header_bytes();
        let mut insert = |name: &HeaderName, text: &[u8]| {
            if let Ok(value) = HeaderValue::from_bytes(text) {
                headers.insert(name, value);
            }
        };
        if self.is_propagated {
            if let Some(state) = &self.trace_state {
                insert(&TRACESTATE, state.as_bytes());
            }
            insert(&TRACEPARENT, &parent);
        }
        if let Some(baggage) = &self.baggage {
            insert(&BAGGAGE, baggage.as_bytes());
        }
    }
}
