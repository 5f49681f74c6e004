//! W3C trace context: who asked for this trace, which ids our spans have, and whether it is
//! sampled. The ids are made when a request arrives, because they travel upstream; the spans
//! themselves are made when it has ended.

use std::fmt;

/// The trace that a request belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// Never zero.
    pub trace_id: u128,
    /// The caller's span, if the caller sent one.
    pub parent: Option<u64>,
    /// Whether the spans of this trace are recorded from here on.
    pub is_sampled: bool,
    /// The caller's `tracestate`, unread.
    pub state: Option<Box<str>>,
}

/// The caller's side of a `traceparent` header.
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

/// Longest `tracestate` that is passed on.
const MAX_STATE: usize = 512;

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

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace_id, span_id, is_sampled } = self;
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{:02x}", u8::from(*is_sampled))
    }
}

fn hex(digits: &str, len: usize) -> Option<u128> {
    let is_lower_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_valid = digits.len() == len && digits.bytes().all(is_lower_hex);
    is_valid.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

// === impl TraceContext ===

impl TraceContext {
    /// Continues the caller's trace, or begins one with `random` as its id.
    pub fn begin(
        parent: Option<&str>,
        state: Option<&str>,
        sampler: Sampler,
        random: u128,
    ) -> Self {
        let parent = parent.and_then(TraceParent::parse);
        let trace_id = parent.map_or(random.max(1), |parent| parent.trace_id);
        let is_sampled = sampler.decides(parent.map(|parent| parent.is_sampled), trace_id);
        let state = state.filter(|state| parent.is_some() && state.len() <= MAX_STATE);
        Self {
            trace_id,
            parent: parent.map(|parent| parent.span_id),
            is_sampled,
            state: state.filter(|state| !state.is_empty()).map(Into::into),
        }
    }

    /// The header for a callee whose caller is our span `span_id`.
    pub fn header(&self, span_id: u64) -> TraceParent {
        TraceParent { trace_id: self.trace_id, span_id, is_sampled: self.is_sampled }
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
    const HALF: Sampler = Sampler { is_parent_based: true, ratio: 0.5 };

    #[test]
    fn a_header_survives_the_round_trip() {
        assert_eq!(
            TraceParent::parse(HEADER).map(|parent| parent.to_string()),
            Some(HEADER.into())
        );
    }

    #[test]
    fn malformed_headers_begin_a_new_trace() {
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
            let trace = TraceContext::begin(Some(bad), Some("a=1"), HALF, 7);
            assert_eq!((trace.trace_id, trace.parent, trace.state), (7, None, None), "{bad}");
        }
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more";
        assert!(TraceParent::parse(later).is_some());
    }

    #[test]
    fn the_callers_decision_is_followed_only_if_the_sampler_is_parent_based() {
        let never = Sampler { is_parent_based: true, ratio: 0.0 };
        assert!(TraceContext::begin(Some(HEADER), None, never, 1).is_sampled);
        let never = Sampler { is_parent_based: false, ratio: 0.0 };
        assert!(!TraceContext::begin(Some(HEADER), None, never, 1).is_sampled);
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
