//! The headers of B3, in which older meshes name the caller's span: one header, or one for each
//! field. They are read only; what goes on is W3C trace context, which is what engines know.

use super::propagation::Caller;
use super::{TraceParent, hex};
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

/// All of them.
pub(super) static HEADERS: [HeaderName; 6] =
    [B3, TRACE_ID, SPAN_ID, PARENT_SPAN_ID, SAMPLED, FLAGS];

const B3: HeaderName = HeaderName::from_static("b3");
const TRACE_ID: HeaderName = HeaderName::from_static("x-b3-traceid");
const SPAN_ID: HeaderName = HeaderName::from_static("x-b3-spanid");
const PARENT_SPAN_ID: HeaderName = HeaderName::from_static("x-b3-parentspanid");
const SAMPLED: HeaderName = HeaderName::from_static("x-b3-sampled");
const FLAGS: HeaderName = HeaderName::from_static("x-b3-flags");

/// Reads `b3: {trace id}-{span id}[-{decision}[-{parent span id}]]`.
pub(super) fn single(headers: &HeaderMap) -> Option<Caller> {
    let mut fields = only(headers, &B3)?.split('-');
    let (trace_id, span_id) = (fields.next()?, fields.next()?);
    let decision = fields.next();
    let is_parent = |id: &str| hex(id, 16).is_some();
    if !fields.next().is_none_or(is_parent) || fields.next().is_some() {
        return None;
    }
    caller(trace_id, span_id, decision)
}

/// Reads `x-b3-traceid` and its like.
pub(super) fn multi(headers: &HeaderMap) -> Option<Caller> {
    let is_debug = only(headers, &FLAGS) == Some("1");
    let decision = if is_debug { Some("d") } else { only(headers, &SAMPLED) };
    caller(only(headers, &TRACE_ID)?, only(headers, &SPAN_ID)?, decision)
}

fn caller(trace_id: &str, span_id: &str, decision: Option<&str>) -> Option<Caller> {
    let trace_id = hex(trace_id, 32).or_else(|| hex(trace_id, 16)).filter(|id| *id != 0)?;
    let span_id = hex(span_id, 16).filter(|id| *id != 0)? as u64;
    let decision = match decision {
        None => None,
        Some("1" | "d" | "true") => Some(true),
        Some("0" | "false") => Some(false),
        Some(_) => return None,
    };
    let parent = TraceParent { trace_id, span_id, is_sampled: decision == Some(true) };
    Some(Caller { parent, decision, state: None })
}

/// The value of a header that stands once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter().map(HeaderValue::to_str);
    let value = values.next()?.ok()?;
    values.next().is_none().then(|| value.trim())
}
