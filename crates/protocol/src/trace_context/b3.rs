//! Extraction of B3 trace context in its single-header and multi-header formats, which older service meshes
//! send. The gateway sends only W3C trace context to backends, because engines support it.

use super::trace_parent::{RemoteTraceContext, TraceParent, parse_hex};
use crate::headers::single_value;
use http::HeaderMap;
use http::header::HeaderName;

pub(super) static B3_HEADERS: [HeaderName; 6] =
    [B3_SINGLE, TRACE_ID, SPAN_ID, PARENT_SPAN_ID, SAMPLED, FLAGS];

const B3_SINGLE: HeaderName = HeaderName::from_static("b3");
const TRACE_ID: HeaderName = HeaderName::from_static("x-b3-traceid");
const SPAN_ID: HeaderName = HeaderName::from_static("x-b3-spanid");
const PARENT_SPAN_ID: HeaderName = HeaderName::from_static("x-b3-parentspanid");
const SAMPLED: HeaderName = HeaderName::from_static("x-b3-sampled");
const FLAGS: HeaderName = HeaderName::from_static("x-b3-flags");

pub(super) fn is_b3_header(name: &str) -> bool {
    name == "b3" || (name.starts_with("x-b3-") && B3_HEADERS.iter().any(|header| header == name))
}

/// Reads `b3: {trace id}-{span id}[-{decision}[-{parent span id}]]`. `None`: the header is missing or invalid.
pub(super) fn read_single_header(headers: &HeaderMap) -> Option<RemoteTraceContext> {
    let mut fields = single_value(headers, &B3_SINGLE)?.split('-');
    let trace_id = fields.next()?;
    let span_id = fields.next()?;
    let decision = fields.next();
    let is_span_id = |id: &str| parse_hex(id, 16).is_some();
    if !fields.next().is_none_or(is_span_id) || fields.next().is_some() {
        return None;
    }
    parse_remote_context(trace_id, span_id, decision)
}

/// Reads the `x-b3-*` headers. `None`: an id is missing or a value is invalid.
pub(super) fn read_multi_headers(headers: &HeaderMap) -> Option<RemoteTraceContext> {
    let is_debug = single_value(headers, &FLAGS) == Some("1");
    let decision = if is_debug {
        Some("d")
    } else {
        single_value(headers, &SAMPLED)
    };
    parse_remote_context(
        single_value(headers, &TRACE_ID)?,
        single_value(headers, &SPAN_ID)?,
        decision,
    )
}

fn parse_remote_context(
    trace_id: &str,
    span_id: &str,
    decision: Option<&str>,
) -> Option<RemoteTraceContext> {
    let trace_id = parse_hex(trace_id, 32)
        .or_else(|| parse_hex(trace_id, 16))
        .filter(|id| *id != 0)?;
    let span_id = parse_hex(span_id, 16).filter(|id| *id != 0)? as u64;
    let decision = match decision {
        None => None,
        Some("1" | "d" | "true") => Some(true),
        Some("0" | "false") => Some(false),
        Some(_) => return None,
    };
    let parent = TraceParent {
        trace_id,
        span_id,
        is_sampled: decision == Some(true),
    };
    Some(RemoteTraceContext {
        parent,
        sampling_decision: decision,
        trace_state: None,
    })
}
