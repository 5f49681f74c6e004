//! What is known of a request when its head has been read.

use super::Gateway;
use crate::clock;
use crate::headers::RequestId;
use crate::openai::Api;
use crate::record::{Head, RequestRecord};
use crate::trace_context::Propagation;
use http::{Method, Request};
use hyper::body::Incoming;
use std::net::IpAddr;

/// A record of which only the request's head is known. Until somebody says otherwise, its client
/// has left.
pub(super) fn record(
    request: &Request<Incoming>,
    client: IpAddr,
    api: Option<Api>,
    route: Option<&'static str>,
    gateway: &Gateway,
) -> RequestRecord {
    let now = clock::now();
    let begin =
        |propagation: &Propagation| propagation.begin(request.headers(), fastrand::u128(1..), now);
    let trace = gateway.propagation.as_ref().map(begin);
    let request_id = RequestId::of(request.headers(), fastrand::u128(..));
    let method = method_name(request.method());
    RequestRecord {
        head: trace.as_ref().map(|_| Head::of(request)).unwrap_or_default(),
        trace,
        spans: [fastrand::u64(1..), fastrand::u64(1..)],
        route,
        api,
        tier: gateway.tiers.of(request.headers()),
        ..RequestRecord::begin(request_id, client, method, clock::wall(), now)
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
