//! How trace context comes in: which formats are read, whether a caller is believed, and which of
//! its baggage goes on.

use super::{BAGGAGE, Sampler, TRACEPARENT, TRACESTATE, TraceContext, TraceParent, b3, lists};
use crate::rate::Rate;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

/// How trace context comes in and goes on.
#[derive(Debug, Clone, PartialEq)]
pub struct Propagation {
    /// Which traces are recorded.
    pub sampler: Sampler,
    /// How many of them, unless their caller has decided. `None`: all.
    pub limit: Option<Arc<Rate>>,
    /// What a caller's trace is to ours.
    pub parent: Parent,
    /// The formats that are read.
    pub formats: Formats,
    /// The names of baggage that goes on.
    pub baggage: Box<[Box<str>]>,
}

/// What a caller's trace is to ours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Parent {
    /// Ours is part of it.
    #[default]
    Continue,
    /// Ours is a new one, which names it.
    Link,
    /// Ours is a new one.
    Ignore,
}

/// The propagators of `OTEL_PROPAGATORS` that are known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formats {
    /// `tracecontext`
    pub trace_context: bool,
    /// `baggage`
    pub baggage: bool,
    /// `b3`: the single header.
    pub b3: bool,
    /// `b3multi`
    pub b3_multi: bool,
}

/// What a caller said.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) parent: TraceParent,
    /// Whether the trace is recorded. `None`: it leaves that to us.
    pub(super) decision: Option<bool>,
    pub(super) state: Option<Box<str>>,
}

impl Propagation {
    /// Continues the caller's trace, or begins one with `random` as its id, at `now`.
    pub fn begin(&self, headers: &HeaderMap, random: u128, now: Instant) -> TraceContext {
        let said = self.formats.read(headers).filter(|_| self.parent != Parent::Ignore);
        let link =
            said.as_ref().map(|caller| caller.parent).filter(|_| self.parent == Parent::Link);
        let caller = said.filter(|_| self.parent == Parent::Continue);
        let parent = caller.as_ref().map(|caller| caller.parent);
        let trace_id = parent.map_or(random.max(1), |parent| parent.trace_id);
        let decision = caller.as_ref().and_then(|caller| caller.decision);
        let is_forwarding = self.formats.baggage && self.parent == Parent::Continue;
        TraceContext {
            trace_id,
            parent: parent.map(|parent| parent.span_id),
            link,
            is_sampled: self.is_sampled(decision, trace_id, now),
            state: caller.and_then(|caller| caller.state),
            baggage: is_forwarding
                .then(|| lists::baggage(texts(headers, &BAGGAGE), &self.baggage))
                .flatten(),
            is_passed_on: self.formats != Formats::NONE,
        }
    }

    /// Decided here, so that a replica hears of it and no trace begins that is then left out.
    fn is_sampled(&self, decision: Option<bool>, trace_id: u128, now: Instant) -> bool {
        let is_callers = self.sampler.is_parent_based && decision.is_some();
        let has_room = || is_callers || self.limit.as_ref().is_none_or(|limit| limit.take(now));
        self.sampler.decides(decision, trace_id) && has_room()
    }
}

impl Formats {
    /// None of them.
    pub const NONE: Self =
        Self { trace_context: false, baggage: false, b3: false, b3_multi: false };

    /// Reads the first of the formats in which a caller names its span.
    fn read(self, headers: &HeaderMap) -> Option<Caller> {
        let w3c = || self.trace_context.then(|| w3c(headers)).flatten();
        let single = || self.b3.then(|| b3::single(headers)).flatten();
        let multi = || self.b3_multi.then(|| b3::multi(headers)).flatten();
        w3c().or_else(single).or_else(multi)
    }
}

impl Default for Formats {
    /// `tracecontext,baggage`
    fn default() -> Self {
        Self { trace_context: true, baggage: true, ..Self::NONE }
    }
}

/// Two headers that name a parent name none.
fn w3c(headers: &HeaderMap) -> Option<Caller> {
    let mut values = headers.get_all(&TRACEPARENT).iter();
    let parent = TraceParent::parse(values.next()?.to_str().ok()?)?;
    if values.next().is_some() {
        return None;
    }
    let state = lists::trace_state(texts(headers, &TRACESTATE));
    Some(Caller { parent, decision: Some(parent.is_sampled), state })
}

fn texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().map(HeaderValue::to_str).filter_map(Result::ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use std::time::Duration;

    const TRACE: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;
    const SPAN: u64 = 0xb7ad_6b71_6920_3331;
    const W3C: (&str, &str) =
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    const ALL: Formats = Formats { trace_context: true, baggage: true, b3: true, b3_multi: true };
    const IDS: [(&str, &str); 2] =
        [("x-b3-traceid", "0af7651916cd43dd8448eb211c80319c"), ("x-b3-spanid", "b7ad6b7169203331")];

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn propagation(ratio: f64) -> Propagation {
        Propagation {
            sampler: Sampler { is_parent_based: true, ratio },
            limit: None,
            parent: Parent::Continue,
            formats: ALL,
            baggage: ["tier".into()].into(),
        }
    }

    fn begin(ratio: f64, pairs: &[(&'static str, &str)]) -> TraceContext {
        propagation(ratio).begin(&headers(pairs), 7, clock::origin())
    }

    #[test]
    fn the_callers_decision_is_followed_only_if_the_sampler_is_parent_based() {
        assert!(begin(0.0, &[W3C]).is_sampled);
        let mut never = propagation(0.0);
        never.sampler.is_parent_based = false;
        assert!(!never.begin(&headers(&[W3C]), 7, clock::origin()).is_sampled);
    }

    #[test]
    fn each_format_names_the_callers_span() {
        for (b3, decided) in [
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1", Some(true)),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-d", Some(true)),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0-00f067aa0ba902b7", Some(false)),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", None),
        ] {
            let (never, always) = (begin(0.0, &[("b3", b3)]), begin(1.0, &[("b3", b3)]));
            assert_eq!((never.trace_id, never.parent), (TRACE, Some(SPAN)), "{b3}");
            let expected = (decided.unwrap_or(false), decided.unwrap_or(true));
            assert_eq!((never.is_sampled, always.is_sampled), expected, "{b3}");
        }
        for (more, is_sampled) in [
            (("x-b3-sampled", "1"), true),
            (("x-b3-flags", "1"), true),
            (("x-b3-sampled", "0"), false),
        ] {
            let trace = begin(0.0, &[IDS[0], IDS[1], more]);
            let expected = (TRACE, Some(SPAN), is_sampled);
            assert_eq!((trace.trace_id, trace.parent, trace.is_sampled), expected, "{more:?}");
        }
        let short = begin(0.0, &[("b3", "8448eb211c80319c-b7ad6b7169203331-1")]);
        assert_eq!(short.trace_id, 0x8448_eb21_1c80_319c);
    }

    #[test]
    fn what_cannot_be_read_begins_a_new_trace() {
        for bad in [
            &[W3C, W3C][..],
            &[("traceparent", "hello")],
            &[("b3", "1")],
            &[("b3", "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-x")],
            &[("b3", "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1-zz")],
            &[("b3", "0-0-1")],
            &[IDS[0]],
            &[IDS[0], IDS[0], IDS[1]],
        ] {
            let trace = begin(1.0, &[bad, &[("tracestate", "a=1")]].concat());
            assert_eq!((trace.trace_id, trace.parent, trace.state), (7, None, None), "{bad:?}");
        }
    }

    #[test]
    fn a_format_that_is_not_asked_for_is_not_read() {
        let formats = Formats::default();
        let trace = Propagation { formats, ..propagation(1.0) }.begin(
            &headers(&[IDS[0], IDS[1], ("baggage", "tier=a")]),
            7,
            clock::origin(),
        );
        assert_eq!((trace.trace_id, trace.baggage.as_deref()), (7, Some("tier=a")));
        let none = Propagation { formats: Formats::NONE, ..propagation(1.0) };
        let trace = none.begin(&headers(&[W3C, ("baggage", "tier=a")]), 7, clock::origin());
        assert_eq!((trace.trace_id, trace.baggage, trace.is_passed_on), (7, None, false));
    }

    #[test]
    fn a_caller_that_is_not_believed_changes_nothing_but_a_link() {
        let said = headers(&[W3C, ("tracestate", "a=1"), ("baggage", "tier=a")]);
        for parent in [Parent::Link, Parent::Ignore] {
            let trace = Propagation { parent, ..propagation(0.0) }.begin(&said, 7, clock::origin());
            assert_eq!((trace.trace_id, trace.parent, trace.is_sampled), (7, None, false));
            assert_eq!((trace.state, trace.baggage), (None, None));
            let link = trace.link.map(|link| (link.trace_id, link.span_id));
            assert_eq!(link, (parent == Parent::Link).then_some((TRACE, SPAN)));
        }
    }

    #[test]
    fn what_goes_on_is_ours_and_nothing_else() {
        let mut sent =
            headers(&[W3C, ("tracestate", "a=1"), ("baggage", "x=1,tier=a"), ("b3", "0")]);
        let trace = begin(1.0, &[W3C, ("tracestate", "a=1"), ("baggage", "x=1,tier=a")]);
        trace.pass_on(0xa1, &mut sent);
        let ours = "00-0af7651916cd43dd8448eb211c80319c-00000000000000a1-01";
        let expected =
            headers(&[("traceparent", ours), ("tracestate", "a=1"), ("baggage", "tier=a")]);
        assert_eq!(sent, expected);
        TraceContext { is_passed_on: false, ..trace }.pass_on(0xa1, &mut sent);
        assert!(sent.is_empty());
    }

    #[test]
    fn beyond_the_limit_only_what_a_caller_has_sampled_is_recorded() {
        let now = clock::origin();
        let limit = Some(Arc::new(Rate::new(10, now)));
        let limited = Propagation { limit, ..propagation(0.5) };
        let mut random = fastrand::Rng::with_seed(1);
        let mut sampled = |pairs: &[(&'static str, &str)]| {
            let headers = headers(pairs);
            let ids = std::iter::repeat_with(|| random.u128(1..)).take(1_000);
            ids.filter(|id| limited.begin(&headers, *id, now).is_sampled).count()
        };
        assert_eq!([sampled(&[]), sampled(&[]), sampled(&[W3C])], [10, 0, 1_000]);
        let later = now + Duration::from_millis(500);
        assert!((0..64).any(|id| limited.begin(&headers(&[]), id << 58 | 1, later).is_sampled));
    }
}
