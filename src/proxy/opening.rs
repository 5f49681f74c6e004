//! What is known of a request when its head has been read.

use crate::clock;
use crate::headers::{RequestId, TRACEPARENT, TRACESTATE};
use crate::openai::Api;
use crate::record::{Asked, ModelLabel, Observed, Outcome, RequestRecord, Timings};
use crate::trace_context::{Sampler, TraceContext};
use http::{HeaderName, Method, Request};
use hyper::body::Incoming;
use std::net::IpAddr;

/// A record of which only the request's head is known. Until somebody says otherwise, its client
/// has left.
pub(super) fn record(
    request: &Request<Incoming>,
    client: IpAddr,
    api: Option<Api>,
    route: Option<&'static str>,
    sampler: Option<Sampler>,
) -> RequestRecord {
    let header =
        |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let trace = sampler.map(|sampler| {
        TraceContext::begin(header(TRACEPARENT), header(TRACESTATE), sampler, fastrand::u128(1..))
    });
    RequestRecord {
        request_id: RequestId::of(request.headers(), fastrand::u128(..)),
        trace,
        spans: [fastrand::u64(1..), fastrand::u64(1..)],
        client,
        method: method_name(request.method()),
        route,
        api,
        asked: Asked::default(),
        model: ModelLabel::other(),
        decision: None,
        attempts: Vec::new(),
        status: None,
        refusal: None,
        outcome: Outcome::Cancelled,
        started: clock::wall(),
        timings: Timings::begin(clock::now()),
        observed: Observed::default(),
        bytes_in: 0,
        bytes_out: 0,
    }
}

fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        Method::CONNECT => "CONNECT",
        Method::TRACE => "TRACE",
        _ => "_OTHER",
    }
}
