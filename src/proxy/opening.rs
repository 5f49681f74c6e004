//! What is known of a request when its head has been read.

use super::access::{Entry, Visitor};
use super::{Gateway, Peer};
use crate::own;
use bytes::Bytes;
use http::header::ORIGIN;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use std::net::IpAddr;
use tokenweir_core::access::Place;
use tokenweir_core::clock;
use tokenweir_core::error::Error;
use tokenweir_core::headers::{self, RequestId};
use tokenweir_core::observe::Exchange;
use tokenweir_core::openai::Api;
use tokenweir_core::openai::route::{NoRoute, Route};
use tokenweir_core::record::{Head, RequestRecord};
use tokenweir_core::trace_context::Propagation;

/// A request whose head has been read.
pub enum Opened {
    /// The gateway answers it itself, and keeps no record.
    Answered(Response<Full<Bytes>>),
    /// All others: what is dropped from now on leaves a record.
    Recorded(Recorded),
}

/// A request on record, before its body is read.
pub struct Recorded {
    pub(super) exchange: Exchange,
    pub(super) visitor: Visitor,
    /// Its place among its tenant's, or why it is not forwarded.
    pub(super) entered: Result<Option<Place>, Error>,
    pub(super) origin: Option<HeaderValue>,
}

/// Opens a request of a client, and takes from its headers what is for the gateway only.
///
/// It is no part of [`handle`](super::handle), because hyper drops that before it has begun if a
/// client leaves with the last byte of its request.
pub fn open<B>(gateway: &Gateway, peer: &Peer, request: &mut Request<B>) -> Opened {
    if let Some(answer) = gateway.access.preflight(request) {
        return Opened::Answered(answer);
    }
    let origin = request.headers().get(ORIGIN).cloned();
    let has_host = headers::has_one_host(request.version(), request.uri(), request.headers());
    let route = Route::of(request.method(), request.uri().path());
    let Entry { visitor, place } = gateway.access.enter(route, request.headers(), clock::now());
    let entered = match (route, place) {
        (_, Err(error)) => Err(error),
        _ if !has_host => Err(Error::BadHead),
        (Err(no_route), _) => Err(refusal(no_route, request.uri().path())),
        // With this one, which is not counted yet.
        (Ok((Route::Forward(_), _)), Ok(place)) => {
            gateway.gate.pass(gateway.live.open() + 1, peer).map(|()| place)
        }
        (Ok(_), Ok(place)) => Ok(place),
    };
    let api = match (route, &entered) {
        (Ok((Route::Forward(api), _)), _) => Some(api),
        (Ok((own, _)), Ok(_)) => {
            let mut answer = own::answer(own, &gateway.pool, visitor.models());
            gateway.access.cors().apply(origin.as_ref(), answer.headers_mut());
            return Opened::Answered(answer);
        }
        _ => None,
    };
    let path = route.ok().map(|(_, path)| path);
    let mut record = record(request, peer.ip, api, path, gateway);
    visitor.sign(&mut record, request.headers_mut());
    let exchange = Exchange::open(record, gateway.sink.clone(), &gateway.live);
    Opened::Recorded(Recorded { exchange, visitor, entered, origin })
}

fn refusal(no_route: NoRoute, path: &str) -> Error {
    match no_route {
        NoRoute::NotFound => Error::NotFound { path: path.chars().take(200).collect() },
        NoRoute::MethodNotAllowed(allow) => Error::MethodNotAllowed { allow },
    }
}

/// A record of which only the request's head is known. Until somebody says otherwise, its client
/// has left.
fn record<B>(
    request: &Request<B>,
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
