//! Trace context: the trace of a request, the ids of the gateway's spans, the head sampling
//! decision, and the context that is injected into upstream requests.
//!
//! Ids are generated when a request arrives, because they travel upstream. The spans are created
//! when the request has ended.

mod b3;
mod list_headers;
mod propagation;

pub use propagation::{Propagation, PropagationFormats, TraceParentMode};

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use std::fmt;

/// The trace of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// Never zero.
    pub trace_id: u128,
    /// The client's span, if its trace is continued.
    pub parent_span_id: Option<u64>,
    /// The client's span, if its trace is linked instead of continued.
    pub linked_parent: Option<TraceParent>,
    /// Whether the head sampler selected this trace.
    pub is_sampled: bool,
    /// The client's `tracestate`, filtered.
    pub trace_state: Option<Box<str>>,
    /// The members of the client's `baggage` that are forwarded.
    pub baggage: Option<Box<str>>,
    /// Whether any of this is injected into upstream requests.
    pub is_propagated: bool,
}

/// A reference to a span: the client's, or the parent of an engine's span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Never zero.
    pub trace_id: u128,
    /// Never zero.
    pub span_id: u64,
    /// The `sampled` flag.
    pub is_sampled: bool,
}

/// The head sampler, as `OTEL_TRACES_SAMPLER` configures it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Follow the client's decision if there is one.
    pub is_parent_based: bool,
    /// Share of traces from 0 to 1, selected by trace id.
    pub ratio: f64,
}

static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
static BAGGAGE: HeaderName = HeaderName::from_static("baggage");

// === impl TraceParent ===

impl TraceParent {
    /// Parses a `traceparent` header. `None` if it is invalid: then the gateway starts a new trace.
    pub fn parse(header: &str) -> Option<Self> {
        let mut fields = header.trim().split('-');
        let (version, trace_id) = (fields.next()?, fields.next()?);
        let (span_id, flags) = (fields.next()?, fields.next()?);
        let is_known = version == "00" && fields.next().is_none();
        let is_later = version != "00" && version != "ff" && parse_hex(version, 2).is_some();
        if !(is_known || is_later) {
            return None;
        }
        let trace_id = parse_hex(trace_id, 32).filter(|id| *id != 0)?;
        let span_id = parse_hex(span_id, 16).filter(|id| *id != 0)? as u64;
        let flags = parse_hex(flags, 2)?;
        Some(Self { trace_id, span_id, is_sampled: flags & 1 == 1 })
    }
}

impl TraceParent {
    /// Formats the header. It is sent with every upstream request, and formatting numbers through
    /// [`fmt`] takes several times as long.
    fn to_header_bytes(self) -> [u8; 55] {
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

fn write_hex(bytes: &[u8], digits: &mut [u8]) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(digits.chunks_exact_mut(2)) {
        let halves = [byte >> 4, byte & 0xf];
        pair.copy_from_slice(&halves.map(|half| DIGITS[usize::from(half)]));
    }
}

fn parse_hex(digits: &str, len: usize) -> Option<u128> {
    let is_lower_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_valid = digits.len() == len && digits.bytes().all(is_lower_hex);
    is_valid.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

// === impl TraceContext ===

impl TraceContext {
    /// The `traceparent` for an upstream request whose parent is the gateway's span `span_id`.
    pub fn trace_parent(&self, span_id: u64) -> TraceParent {
        TraceParent { trace_id: self.trace_id, span_id, is_sampled: self.is_sampled }
    }

    /// Injects this context into the headers of an upstream request, and removes the client's
    /// context in every format.
    pub fn inject(&self, span_id: u64, headers: &mut HeaderMap) {
        let context_headers =
            || [&TRACEPARENT, &TRACESTATE, &BAGGAGE].into_iter().chain(&b3::B3_HEADERS);
        // Most clients send none of them, and one scan costs less than nine removals.
        if headers.keys().any(|name| context_headers().any(|header| header == name)) {
            context_headers().for_each(|name| drop(headers.remove(name)));
        }
        if !self.is_propagated {
            return;
        }
        let parent = self.trace_parent(span_id).to_header_bytes();
        let values = [(&TRACESTATE, &self.trace_state), (&BAGGAGE, &self.baggage)];
        let values = values.map(|(name, text)| (name, text.as_deref().map(str::as_bytes)));
        for (name, text) in values.into_iter().chain([(&TRACEPARENT, Some(&parent[..]))]) {
            if let Some(value) = text.and_then(|text| HeaderValue::from_bytes(text).ok()) {
                headers.insert(name, value);
            }
        }
    }
}

// === impl Sampler ===

impl Sampler {
    /// Whether to sample a trace, given the decision of its parent.
    pub fn should_sample(self, parent: Option<bool>, trace_id: u128) -> bool {
        if let (true, Some(decision)) = (self.is_parent_based, parent) {
            return decision;
        }
        // The rule of the OpenTelemetry SDKs: compare the low 63 bits of the id with the ratio.
        let low = (trace_id as u64) >> 1;
        self.ratio >= 1.0 || (low as f64) < self.ratio * 2f64.powi(63)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_header_survives_the_round_trip() {
        assert_eq!(
            TraceParent::parse(HEADER).map(|parent| parent.to_string()),
            Some(HEADER.into())
        );
    }

    #[test]
    fn malformed_headers_are_none() {
        for invalid in [
            "",
            "00",
            "00-0-0-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
        ] {
            assert_eq!(TraceParent::parse(invalid), None, "{invalid}");
        }
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more";
        assert!(TraceParent::parse(later).is_some());
    }

    #[test]
    fn the_sampling_ratio_is_respected() {
        let always = Sampler { is_parent_based: true, ratio: 1.0 };
        assert!(always.should_sample(None, u128::MAX));
        let quarter = Sampler { is_parent_based: true, ratio: 0.25 };
        let mut random = fastrand::Rng::with_seed(1);
        let ids = std::iter::repeat_with(|| random.u128(..)).take(20_000);
        let sampled = ids.filter(|id| quarter.should_sample(None, *id)).count();
        assert!((4_700..5_300).contains(&sampled), "{sampled}");
    }
}
