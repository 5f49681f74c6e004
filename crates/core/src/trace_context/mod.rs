//! Trace context: who asked for this trace, which ids our spans have, whether its head is sampled,
//! and what of it goes on to a replica. The ids are made when a request arrives, because they travel
//! upstream; the spans themselves are made when it has ended.

mod b3;
mod lists;
mod propagation;

pub use propagation::{Formats, Parent, Propagation};

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use std::fmt;

/// The trace that a request belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// Never zero.
    pub trace_id: u128,
    /// The caller's span, if its trace is continued.
    pub parent: Option<u64>,
    /// The caller's span, if its trace is not continued but named.
    pub link: Option<TraceParent>,
    /// Whether the spans of this trace are recorded from here on, whatever happens.
    pub is_sampled: bool,
    /// The caller's `tracestate`.
    pub state: Option<Box<str>>,
    /// What of the caller's `baggage` goes on.
    pub baggage: Option<Box<str>>,
    /// Whether any of this goes on to a replica.
    pub is_passed_on: bool,
}

/// A span of the caller's, or one that a callee is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Never zero.
    pub trace_id: u128,
    /// Never zero.
    pub span_id: u64,
    /// The sampled flag.
    pub is_sampled: bool,
}

/// Which traces are recorded: the samplers of `OTEL_TRACES_SAMPLER`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Follow the caller's decision where there is one.
    pub is_parent_based: bool,
    /// Share of traces, from 0 to 1, decided by the trace id.
    pub ratio: f64,
}

static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
static BAGGAGE: HeaderName = HeaderName::from_static("baggage");

// === impl TraceParent ===

impl TraceParent {
    /// Reads a header. `None` if it is not valid: the trace then begins here.
    pub fn parse(header: &str) -> Option<Self> {
        let mut fields = header.trim().split('-');
        let (version, trace_id) = (fields.next()?, fields.next()?);
        let (span_id, flags) = (fields.next()?, fields.next()?);
        let is_known = version == "00" && fields.next().is_none();
        let is_later = version != "00" && version != "ff" && hex(version, 2).is_some();
        if !(is_known || is_later) {
            return None;
        }
        let trace_id = hex(trace_id, 32).filter(|id| *id != 0)?;
        let span_id = hex(span_id, 16).filter(|id| *id != 0)? as u64;
        let flags = hex(flags, 2)?;
        Some(Self { trace_id, span_id, is_sampled: flags & 1 == 1 })
    }
}

impl TraceParent {
    /// As a header has it. Every request that is sent to a replica has one, and formatting
    /// numbers through [`fmt`] would cost several times as much.
    fn text(self) -> [u8; 55] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&self.trace_id.to_be_bytes(), &mut text[3..35]);
        write_hex(&self.span_id.to_be_bytes(), &mut text[36..52]);
        write_hex(&[u8::from(self.is_sampled)], &mut text[53..]);
        text
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).unwrap_or_default())
    }
}

fn write_hex(bytes: &[u8], digits: &mut [u8]) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(digits.chunks_exact_mut(2)) {
        let halves = [byte >> 4, byte & 0xf];
        pair.copy_from_slice(&halves.map(|half| DIGITS[usize::from(half)]));
    }
}

fn hex(digits: &str, len: usize) -> Option<u128> {
    let is_lower_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_valid = digits.len() == len && digits.bytes().all(is_lower_hex);
    is_valid.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

// === impl TraceContext ===

impl TraceContext {
    /// The header for a callee whose caller is our span `span_id`.
    pub fn header(&self, span_id: u64) -> TraceParent {
        TraceParent { trace_id: self.trace_id, span_id, is_sampled: self.is_sampled }
    }

    /// Puts this context into the headers for a callee, in place of the caller's in any format.
    pub fn pass_on(&self, span_id: u64, headers: &mut HeaderMap) {
        let formats = || [&TRACEPARENT, &TRACESTATE, &BAGGAGE].into_iter().chain(&b3::HEADERS);
        // Most callers send none of them, and to look once costs less than to remove nine.
        if headers.keys().any(|name| formats().any(|other| other == name)) {
            formats().for_each(|name| drop(headers.remove(name)));
        }
        if !self.is_passed_on {
            return;
        }
        let parent = self.header(span_id).text();
        let texts = [(&TRACESTATE, &self.state), (&BAGGAGE, &self.baggage)];
        let texts = texts.map(|(name, text)| (name, text.as_deref().map(str::as_bytes)));
        for (name, text) in texts.into_iter().chain([(&TRACEPARENT, Some(&parent[..]))]) {
            if let Some(value) = text.and_then(|text| HeaderValue::from_bytes(text).ok()) {
                headers.insert(name, value);
            }
        }
    }
}

// === impl Sampler ===

impl Sampler {
    /// Whether a trace is recorded, given the caller's decision.
    pub fn decides(self, parent: Option<bool>, trace_id: u128) -> bool {
        if let (true, Some(decision)) = (self.is_parent_based, parent) {
            return decision;
        }
        // The rule of the OpenTelemetry SDKs: the low 63 bits of the id against the ratio.
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
        for bad in [
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
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more";
        assert!(TraceParent::parse(later).is_some());
    }

    #[test]
    fn the_ratio_is_kept() {
        let always = Sampler { is_parent_based: true, ratio: 1.0 };
        assert!(always.decides(None, u128::MAX));
        let quarter = Sampler { is_parent_based: true, ratio: 0.25 };
        let mut random = fastrand::Rng::with_seed(1);
        let ids = std::iter::repeat_with(|| random.u128(..)).take(20_000);
        let kept = ids.filter(|id| quarter.decides(None, *id)).count();
        assert!((4_700..5_300).contains(&kept), "{kept}");
    }
}
