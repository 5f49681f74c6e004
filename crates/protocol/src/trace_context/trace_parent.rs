//! A reference to a span, and its form in the W3C header `traceparent`.

use crate::headers::write_hex;
use std::fmt;

/// A reference to a span: the client's span, or the gateway's span that is the parent of an
/// engine's span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace. Never zero.
    pub trace_id: u128,
    /// Id of the span. Never zero.
    pub span_id: u64,
    /// The `sampled` flag: whether the sender records the trace.
    pub is_sampled: bool,
}

/// The trace context that a client sent.
#[derive(Debug)]
pub(super) struct RemoteTraceContext {
    pub parent: TraceParent,
    /// The client's sampling decision. `None`: the client leaves the decision to the gateway.
    pub sampling_decision: Option<bool>,
    /// The filtered `tracestate`. `None`: the gateway forwards no `tracestate`.
    pub trace_state: Option<Box<str>>,
}

impl TraceParent {
    /// Parses a `traceparent` header. `None`: the header is invalid, and the gateway starts a new trace.
    pub fn parse(header: &str) -> Option<Self> {
        let mut fields = header.trim().split('-');
        let version = fields.next()?;
        let trace_id = fields.next()?;
        let span_id = fields.next()?;
        let flags = fields.next()?;
        let is_known = version == "00" && fields.next().is_none();
        let is_later = version != "00" && version != "ff" && parse_hex(version, 2).is_some();
        if !(is_known || is_later) {
            return None;
        }
        let trace_id = parse_hex(trace_id, 32).filter(|id| *id != 0)?;
        let span_id = parse_hex(span_id, 16).filter(|id| *id != 0)? as u64;
        let flags = parse_hex(flags, 2)?;
        Some(Self {
            trace_id,
            span_id,
            is_sampled: flags & 1 == 1,
        })
    }

    /// Formats the `traceparent` header without [`fmt`], which takes several times as long. The gateway
    /// sends this header with every upstream request.
    pub(super) fn to_header_bytes(self) -> [u8; 55] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&self.trace_id.to_be_bytes(), &mut text[3..35]);
        write_hex(&self.span_id.to_be_bytes(), &mut text[36..52]);
        write_hex(&[u8::from(self.is_sampled)], &mut text[53..]);
        text
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.to_header_bytes()).unwrap_or_default())
    }
}

/// Parses exactly `len` lower-case hexadecimal digits. `None`: the text has another form.
pub(super) fn parse_hex(digits: &str, len: usize) -> Option<u128> {
    let is_lower_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_valid = digits.len() == len && digits.bytes().all(is_lower_hex);
    is_valid
        .then(|| u128::from_str_radix(digits, 16).ok())
        .flatten()
}
