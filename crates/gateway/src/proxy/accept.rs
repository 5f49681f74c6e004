//! Accepts a request by its head, before its body is read: looks up its API route, authenticates
//! the client, checks for overload, and opens the record of the request.

use super::access::{PermitResult, Principal};
use super::configured_routes::ConfiguredRoute;
use super::overload_guard::ClientInfo;
use super::{ProxyContext, ProxyState};
use crate::local_routes;
use bytes::Bytes;
use http::header::{ALLOW, ORIGIN, USER_AGENT};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::{self, RequestId};
use tokenweir_protocol::openai::route::HEALTH_METHODS;
use tokenweir_protocol::openai::{Api, ApiRoute, RouteError};
use tokenweir_protocol::trace_context::Propagation;
use tokenweir_request::error::{GatewayError, RateLimitKind};
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::{RequestHeadAttributes, RequestRecord, ShortName, SpanIds};

/// A request whose head has been read and checked.
pub enum AcceptedRequest {
    /// The gateway answers the request itself, without a record.
    AnsweredLocally(Response<Full<Bytes>>),
    /// A request that is not answered locally. The gateway writes its record even if the client disconnects
    /// before the request is handled.
    Recorded(Box<RecordedRequest>),
}

/// A request with an open record, before its body is read.
pub struct RecordedRequest {
    /// The exchange, which owns the open record.
    pub exchange: Exchange,
    /// The authenticated client and its permissions.
    pub principal: Principal,
    /// The concurrency permit of the request, or the error for the client.
    pub permit: PermitResult,
    /// Whether a repeated request may read the response of the first request although `permit` is an error. A
    /// repetition needs no permit of its own.
    pub may_follow: bool,
    /// The API route of the request. `None`: the gateway does not serve this path with this method, and
    /// `permit` is an error.
    pub route: Option<ApiRoute>,
    /// The route that the configuration adds for the path. `None`: the path is built in, or the
    /// gateway does not serve it.
    pub configured: Option<Arc<ConfiguredRoute>>,
    /// The `Origin` header of the request, for the CORS headers of the response.
    pub origin: Option<HeaderValue>,
}

/// Accepts a request of a client by its head, and removes the API key of the gateway from the request headers.
///
/// This function is not part of [`handle_request`](super::handle_request), because hyper drops the future of
/// `handle_request` before its first poll if the client disconnects right after the last byte of the request.
/// Even then, this function has opened the record of the request.
pub fn accept_request<B>(
    context: &ProxyContext,
    client: &ClientInfo,
    request: &mut Request<B>,
) -> AcceptedRequest {
    let path = request.uri().path();
    let methods = || ApiRoute::methods(path).or_else(|| context.settings.routes.methods(path));
    if let Some(response) = context.state.access.preflight(request, methods) {
        return AcceptedRequest::AnsweredLocally(response);
    }
    let origin = request.headers().get(ORIGIN).cloned();
    let (lookup, configured) = find_route(context, request.method(), request.uri().path());
    let now = clock::now();
    let (principal, permit) = context
        .state
        .access
        .authenticate(lookup, request.headers(), now);
    let Admission { permit, may_follow } = admit(context, client, lookup, request, permit);
    let route = lookup.ok().map(|(route, _)| route);
    if let Some(route) = route
        && permit.is_ok()
        && !route.is_forwarded()
    {
        let response = answer_locally(context, &principal, route, request, origin.as_ref());
        return AcceptedRequest::AnsweredLocally(response);
    }
    let mut record = new_record(context, client, lookup, request, now);
    principal.annotate_record(&mut record, request.headers_mut());
    let exchange = Exchange::open(
        record,
        context.state.telemetry.clone(),
        &context.state.open_streams,
    );
    let recorded = RecordedRequest {
        exchange,
        principal,
        permit,
        may_follow,
        route,
        configured,
        origin,
    };
    AcceptedRequest::Recorded(Box::new(recorded))
}

/// The decision, from the request head, whether a request is admitted.
struct Admission {
    permit: PermitResult,
    may_follow: bool,
}

/// Checks the head of a request and the load of the gateway. `permit`: the result of authentication.
fn admit<B>(
    context: &ProxyContext,
    client: &ClientInfo,
    lookup: RouteLookup,
    request: &Request<B>,
    permit: PermitResult,
) -> Admission {
    let is_concurrency_limit = |error: &GatewayError| {
        matches!(
            error,
            GatewayError::RateLimited {
                limited: RateLimitKind::Concurrency,
                ..
            }
        )
    };
    let permit = match permit {
        Err(error) if !is_concurrency_limit(&error) => Err(error),
        // A repetition may exceed the concurrency limit, so these checks still apply beyond that limit.
        permit => check(context, client, lookup, request).and(permit),
    };
    let is_forwarded = lookup.is_ok_and(|(route, _)| route.is_forwarded());
    let absent = || context.state.absent_requests(client.ip);
    if permit.is_ok() && is_forwarded && context.state.overload_guard.is_client_busy(client, absent)
    {
        return Admission {
            permit: Err(GatewayError::ClientBusy),
            may_follow: true,
        };
    }
    let may_follow = permit.as_ref().is_err_and(is_concurrency_limit);
    Admission { permit, may_follow }
}

/// The gateway's own answer to a request for this route.
fn answer_locally<B>(
    context: &ProxyContext,
    principal: &Principal,
    route: ApiRoute,
    request: &Request<B>,
    origin: Option<&HeaderValue>,
) -> Response<Full<Bytes>> {
    let ProxyState { pool, access, .. } = &context.state;
    let allowed = principal.allowed_models();
    let mut response = local_routes::respond(route, request.uri().path(), pool, allowed);
    access.cors.apply(origin, response.headers_mut());
    if request.method() == Method::OPTIONS {
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static(HEALTH_METHODS));
    }
    response
}

/// The route of a request and the path to record, or the reason why the request has no route.
type RouteLookup = Result<(ApiRoute, &'static str), RouteError>;

/// The route of a request, and the configured route if the configuration adds the path.
fn find_route(
    context: &ProxyContext,
    method: &Method,
    path: &str,
) -> (RouteLookup, Option<Arc<ConfiguredRoute>>) {
    match ApiRoute::lookup(method, path) {
        Err(RouteError::NotFound) => match context.settings.routes.lookup(method, path) {
            Ok(route) => (Ok((ApiRoute::Forward(Api::Other), route.path)), Some(route)),
            Err(error) => (Err(error), None),
        },
        route => (route, None),
    }
}

/// Checks the head of a request and the load of the gateway.
fn check<B>(
    context: &ProxyContext,
    client: &ClientInfo,
    route: RouteLookup,
    request: &Request<B>,
) -> Result<(), GatewayError> {
    if !headers::has_valid_host(request.version(), request.uri(), request.headers()) {
        return Err(GatewayError::BadHead);
    }
    let (route, _) = route.map_err(|no_route| no_route_error(context, no_route, request))?;
    if !route.is_forwarded() {
        return Ok(());
    }
    if headers::has_passed(request.headers(), &context.state.pool.hop) {
        return Err(GatewayError::Loop);
    }
    // `open_streams.open()` does not include this request yet.
    context
        .state
        .overload_guard
        .check(context.state.open_streams.open() + 1, client)
}

fn no_route_error<B>(
    context: &ProxyContext,
    no_route: RouteError,
    request: &Request<B>,
) -> GatewayError {
    let path = request.uri().path();
    match no_route {
        RouteError::NotFound => GatewayError::NotFound {
            path: path.chars().take(200).collect(),
            nearest: ApiRoute::nearest_path(path, context.settings.routes.paths()),
        },
        // The status 426 makes clients that prefer a WebSocket fall back to HTTP. After 405, they would try the
        // WebSocket again.
        RouteError::MethodNotAllowed(allow) if headers::asks_for_upgrade(request.headers()) => {
            GatewayError::UpgradeNotOffered { allow }
        }
        RouteError::MethodNotAllowed(allow) => GatewayError::MethodNotAllowed { allow },
    }
}

/// A new record with the attributes of the request head. The initial outcome is a client disconnect, which
/// remains if the request is dropped before it is handled.
fn new_record<B>(
    context: &ProxyContext,
    client: &ClientInfo,
    lookup: RouteLookup,
    request: &Request<B>,
    now: Instant,
) -> Box<RequestRecord> {
    let start_trace = |propagation: &Propagation| {
        propagation.start_trace(request.headers(), fastrand::u128(1..), now)
    };
    let trace = context
        .state
        .recording
        .propagation
        .as_ref()
        .map(start_trace);
    let request_id = RequestId::from_headers(request.headers(), fastrand::u128(..));
    let method = method_name(request.method());
    // The fields are assigned one by one, because a struct expression would copy the whole record.
    let mut record = RequestRecord::begin(request_id, client.ip, method, clock::wall_time(), now);
    if trace.is_some() {
        record.head = RequestHeadAttributes::from_request(request);
    }
    record.program = ShortName::of_header(request.headers(), &USER_AGENT);
    record.trace = trace;
    record.spans = SpanIds {
        server: fastrand::u64(1..),
        inference: fastrand::u64(1..),
    };
    if let Ok((route, path)) = lookup {
        record.route = Some(path);
        record.api = match route {
            ApiRoute::Forward(api) => Some(api),
            ApiRoute::StoredResponse | ApiRoute::Realtime => Some(Api::Http),
            _ => None,
        };
    }
    record.tier = context.settings.tiers.resolve(request.headers());
    record
}

/// The name of the method for the record. `_OTHER`: the method is not one that HTTP defines.
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
