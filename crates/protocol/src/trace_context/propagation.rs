//! Extraction of trace context from request headers: the accepted formats, the trust in the
//! client's trace, and the baggage that is forwarded.

use super::context::{BAGGAGE, TRACEPARENT, TRACESTATE, TraceContext};
use super::sampler::Sampler;
use super::trace_parent::{RemoteTraceContext, TraceParent};
use super::{b3, list_headers};
use crate::headers::single_value;
use crate::limits::rate_limiter::GcraLimiter;
use crate::settings;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use std::sync::Arc;
use std::time::Instant;

/// How trace context is extracted, sampled and forwarded.
#[derive(Debug, Clone, PartialEq)]
pub struct Propagation {
    /// The head sampler: it decides at the start of a trace whether the trace is recorded.
    pub sampler: Sampler,
    /// Limit of sampled traces per second. Traces that follow the client's sampling decision are
    /// exempt. `None`: no limit.
    pub rate_limit: Option<Arc<GcraLimiter>>,
    /// Whether the gateway continues the client's trace, links to it or ignores it.
    pub parent_mode: TraceParentMode,
    /// The formats that are read from client requests.
    pub formats: PropagationFormats,
    /// Names of the baggage members that are forwarded.
    pub baggage: Box<[Box<str>]>,
}

settings! {
    /// Relation of the client's trace to the gateway's.
    #[derive(Default)]
    pub enum TraceParentMode {
        /// The gateway's spans are part of the client's trace.
        #[default]
        Continue,
        /// The gateway starts a new trace, which links to the client's span.
        Link,
        /// The gateway starts a new trace and ignores the client's.
        Ignore,
    }
}

/// The enabled propagators of `OTEL_PROPAGATORS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PropagationFormats {
    /// The W3C headers `traceparent` and `tracestate`.
    pub trace_context: bool,
    /// The W3C header `baggage`.
    pub baggage: bool,
    /// `b3`: the single B3 header.
    pub b3: bool,
    /// `b3multi`: one B3 header per field.
    pub b3_multi: bool,
}

impl Propagation {
    /// Continues the client's trace, or starts a trace with the id `random`. `now`: the time for the rate
    /// limit.
    pub fn start_trace(&self, headers: &HeaderMap, random: u128, now: Instant) -> TraceContext {
        let mut link = None;
        let mut continued = None;
        match self.parent_mode {
            TraceParentMode::Ignore => {}
            TraceParentMode::Link => {
                link = self.formats.extract(headers).map(|remote| remote.parent);
            }
            TraceParentMode::Continue => continued = self.formats.extract(headers),
        }
        let parent = continued.as_ref().map(|remote| remote.parent);
        let trace_id = parent.map_or(random.max(1), |parent| parent.trace_id);
        let decision = continued
            .as_ref()
            .and_then(|remote| remote.sampling_decision);
        let forwards_baggage =
            self.formats.baggage && self.parent_mode == TraceParentMode::Continue;
        TraceContext {
            trace_id,
            parent_span_id: parent.map(|parent| parent.span_id),
            linked_parent: link,
            is_sampled: self.should_sample(decision, trace_id, now),
            trace_state: continued.and_then(|remote| remote.trace_state),
            baggage: forwards_baggage
                .then(|| {
                    list_headers::filter_baggage(header_texts(headers, &BAGGAGE), &self.baggage)
                })
                .flatten(),
            is_propagated: self.formats.has_trace(),
        }
    }

    /// Whether to sample the trace. The decision is made at the start of the trace: the backend learns it, and
    /// a trace is recorded either whole or not at all. `decision`: the client's decision, if it sent one.
    pub fn should_sample(&self, decision: Option<bool>, trace_id: u128, now: Instant) -> bool {
        let is_decided_by_parent = self.sampler.is_parent_based && decision.is_some();
        let limiter = self.rate_limit.as_ref();
        let is_within_limit =
            || is_decided_by_parent || limiter.is_none_or(|limiter| limiter.try_acquire(now));
        self.sampler.should_sample(decision, trace_id) && is_within_limit()
    }
}

impl PropagationFormats {
    /// Trace context is neither read nor forwarded.
    pub const NONE: Self = Self {
        trace_context: false,
        baggage: false,
        b3: false,
        b3_multi: false,
    };

    /// Whether a trace format is enabled. Baggage alone does not count.
    const fn has_trace(self) -> bool {
        self.trace_context || self.b3 || self.b3_multi
    }

    /// Extracts the client's trace context from the first enabled format that has a valid context.
    /// `None`: no enabled format has a valid context.
    fn extract(self, headers: &HeaderMap) -> Option<RemoteTraceContext> {
        let w3c = || self.trace_context.then(|| extract_w3c(headers)).flatten();
        let single = || self.b3.then(|| b3::read_single_header(headers)).flatten();
        let multi = || {
            self.b3_multi
                .then(|| b3::read_multi_headers(headers))
                .flatten()
        };
        w3c().or_else(single).or_else(multi)
    }
}

impl Default for PropagationFormats {
    /// `tracecontext,baggage`, the default of OpenTelemetry.
    fn default() -> Self {
        Self {
            trace_context: true,
            baggage: true,
            ..Self::NONE
        }
    }
}

/// Extracts W3C trace context. `None`: there is no valid `traceparent`, or more than one.
fn extract_w3c(headers: &HeaderMap) -> Option<RemoteTraceContext> {
    let parent = TraceParent::parse(single_value(headers, &TRACEPARENT)?)?;
    let state = list_headers::filter_trace_state(header_texts(headers, &TRACESTATE));
    Some(RemoteTraceContext {
        parent,
        sampling_decision: Some(parent.is_sampled),
        trace_state: state,
    })
}

fn header_texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .map(HeaderValue::to_str)
        .filter_map(Result::ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::test_input::header_map;
    use std::time::Duration;

    const TRACE_ID: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;
    const SPAN_ID: u64 = 0xb7ad_6b71_6920_3331;
    const W3C_HEADER: (&str, &str) = (
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    );
    const ALL_FORMATS: PropagationFormats = PropagationFormats {
        trace_context: true,
        baggage: true,
        b3: true,
        b3_multi: true,
    };
    const B3_ID_HEADERS: [(&str, &str); 2] = [
        ("x-b3-traceid", "0af7651916cd43dd8448eb211c80319c"),
        ("x-b3-spanid", "b7ad6b7169203331"),
    ];

    fn propagation(ratio: f64) -> Propagation {
        Propagation {
            sampler: Sampler {
                is_parent_based: true,
                ratio,
            },
            rate_limit: None,
            parent_mode: TraceParentMode::Continue,
            formats: ALL_FORMATS,
            baggage: ["tier".into()].into(),
        }
    }

    /// The trace of a request with these headers.
    fn start(propagation: &Propagation, pairs: &[(&'static str, &str)]) -> TraceContext {
        propagation.start_trace(&header_map(pairs), 7, clock::epoch())
    }

    fn started_trace(ratio: f64, pairs: &[(&'static str, &str)]) -> TraceContext {
        start(&propagation(ratio), pairs)
    }

    #[test]
    fn only_parent_based_samplers_follow_the_client() {
        assert!(started_trace(0.0, &[W3C_HEADER]).is_sampled);
        assert!(
            propagation(1.0).sampler.should_sample(None, u128::MAX),
            "all without a parent"
        );
        let mut never = propagation(0.0);
        never.sampler.is_parent_based = false;
        assert!(!start(&never, &[W3C_HEADER]).is_sampled);
    }

    #[test]
    fn each_format_gives_trace_and_parent_span() {
        for (b3, decided) in [
            (
                "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
                Some(true),
            ),
            (
                "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-d",
                Some(true),
            ),
            (
                "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0-00f067aa0ba902b7",
                Some(false),
            ),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", None),
        ] {
            let never = started_trace(0.0, &[("b3", b3)]);
            let always = started_trace(1.0, &[("b3", b3)]);
            assert_eq!(
                (never.trace_id, never.parent_span_id),
                (TRACE_ID, Some(SPAN_ID)),
                "{b3}"
            );
            let expected = (decided.unwrap_or(false), decided.unwrap_or(true));
            assert_eq!((never.is_sampled, always.is_sampled), expected, "{b3}");
        }
        for (more, is_sampled) in [
            (("x-b3-sampled", "1"), true),
            (("x-b3-flags", "1"), true),
            (("x-b3-sampled", "0"), false),
        ] {
            let trace = started_trace(0.0, &[B3_ID_HEADERS[0], B3_ID_HEADERS[1], more]);
            let expected = (TRACE_ID, Some(SPAN_ID), is_sampled);
            assert_eq!(
                (trace.trace_id, trace.parent_span_id, trace.is_sampled),
                expected,
                "{more:?}"
            );
        }
        let short = started_trace(0.0, &[("b3", "8448eb211c80319c-b7ad6b7169203331-1")]);
        assert_eq!(short.trace_id, 0x8448_eb21_1c80_319c);
    }

    #[test]
    fn invalid_headers_start_a_new_trace() {
        for invalid in [
            &[W3C_HEADER, W3C_HEADER][..],
            &[("traceparent", "hello")],
            &[("traceparent", "")],
            &[("traceparent", "00")],
            &[("traceparent", "00-0-0-01")],
            &[(
                "traceparent",
                "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            )],
            &[(
                "traceparent",
                "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            )],
            &[(
                "traceparent",
                "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            )],
            &[(
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            )],
            &[(
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            )],
            &[(
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
            )],
            &[("b3", "1")],
            &[("b3", "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-x")],
            &[(
                "b3",
                "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1-zz",
            )],
            &[("b3", "0-0-1")],
            &[B3_ID_HEADERS[0]],
            &[B3_ID_HEADERS[0], B3_ID_HEADERS[0], B3_ID_HEADERS[1]],
        ] {
            let trace = started_trace(1.0, &[invalid, &[("tracestate", "a=1")]].concat());
            assert_eq!(
                (trace.trace_id, trace.parent_span_id, trace.trace_state),
                (7, None, None),
                "{invalid:?}"
            );
        }
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more";
        assert_eq!(
            started_trace(1.0, &[("traceparent", later)]).trace_id,
            TRACE_ID
        );
    }

    #[test]
    fn headers_of_disabled_formats_are_not_read() {
        let default = Propagation {
            formats: PropagationFormats::default(),
            ..propagation(1.0)
        };
        let trace = start(
            &default,
            &[B3_ID_HEADERS[0], B3_ID_HEADERS[1], ("baggage", "tier=a")],
        );
        assert_eq!(
            (trace.trace_id, trace.baggage.as_deref()),
            (7, Some("tier=a"))
        );
        let none = Propagation {
            formats: PropagationFormats::NONE,
            ..propagation(1.0)
        };
        let trace = start(&none, &[W3C_HEADER, ("baggage", "tier=a")]);
        assert_eq!(
            (trace.trace_id, trace.baggage, trace.is_propagated),
            (7, None, false)
        );
    }

    #[test]
    fn baggage_alone_sends_no_trace_header() {
        let formats = PropagationFormats {
            baggage: true,
            ..PropagationFormats::NONE
        };
        let received = [W3C_HEADER, ("tracestate", "a=1"), ("baggage", "tier=a")];
        let mut sent = header_map(&received);
        start(
            &Propagation {
                formats,
                ..propagation(1.0)
            },
            &received,
        )
        .inject(0xa1, &mut sent);
        assert_eq!(sent, header_map(&[("baggage", "tier=a")]));
    }

    #[test]
    fn an_ignored_trace_adds_at_most_a_link() {
        let received = [W3C_HEADER, ("tracestate", "a=1"), ("baggage", "tier=a")];
        for parent_mode in [TraceParentMode::Link, TraceParentMode::Ignore] {
            let trace = start(
                &Propagation {
                    parent_mode,
                    ..propagation(0.0)
                },
                &received,
            );
            assert_eq!(
                (trace.trace_id, trace.parent_span_id, trace.is_sampled),
                (7, None, false)
            );
            assert_eq!((trace.trace_state, trace.baggage), (None, None));
            let link = trace
                .linked_parent
                .map(|link| (link.trace_id, link.span_id));
            assert_eq!(
                link,
                (parent_mode == TraceParentMode::Link).then_some((TRACE_ID, SPAN_ID))
            );
        }
    }

    #[test]
    fn upstream_requests_have_only_the_gateways_context() {
        let received = [W3C_HEADER, ("tracestate", "a=1"), ("baggage", "x=1,tier=a")];
        let mut sent = header_map(&[&received[..], &[("b3", "0")]].concat());
        let trace = started_trace(1.0, &received);
        trace.inject(0xa1, &mut sent);
        let injected = "00-0af7651916cd43dd8448eb211c80319c-00000000000000a1-01";
        let expected = header_map(&[
            ("traceparent", injected),
            ("tracestate", "a=1"),
            ("baggage", "tier=a"),
        ]);
        assert_eq!(sent, expected);
        TraceContext {
            is_propagated: false,
            ..trace
        }
        .inject(0xa1, &mut sent);
        assert_eq!(
            sent,
            header_map(&[("baggage", "tier=a")]),
            "baggage is a propagator of its own"
        );
    }

    #[test]
    fn beyond_the_limit_only_sampled_traces_count() {
        let now = clock::epoch();
        let limiter = Some(Arc::new(GcraLimiter::new(10)));
        let limited = Propagation {
            rate_limit: limiter,
            ..propagation(0.5)
        };
        let mut random = fastrand::Rng::with_seed(1);
        let mut sampled = |pairs: &[(&'static str, &str)]| {
            let headers = header_map(pairs);
            let ids = std::iter::repeat_with(|| random.u128(1..)).take(1_000);
            ids.filter(|id| limited.start_trace(&headers, *id, now).is_sampled)
                .count()
        };
        assert_eq!(
            [sampled(&[]), sampled(&[]), sampled(&[W3C_HEADER])],
            [10, 0, 1_000]
        );
        let later = now + Duration::from_millis(500);
        assert!((0..64).any(|id| {
            limited
                .start_trace(&header_map(&[]), id << 58 | 1, later)
                .is_sampled
        }));
    }
}
