//! Forwards requests whose body the gateway does not read: uploads to a configured route with a fixed
//! model, and WebSocket connections. Both are sent to one backend once, because their bytes are not kept.

use super::access::Principal;
use super::context::ProxyContext;
use super::relay::{self, PreparedRequest};
use super::request::body::{self, IncomingBody};
use super::request::configured_routes::UnreadBody;
use super::request::engine_control::EngineControlCheck;
use super::request::features;
use super::request::forwarded_body::ForwardedBody;
use super::request::upstream_body::UpstreamBody;
use super::steps;
use crate::backend::Lease;
use crate::backend::pool::BackendRequirements;
use bytes::Bytes;
use http::{Response, StatusCode, request};
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::error::GatewayError;
use tokenweir_core::http1::{RequestFraming, websocket};
use tokenweir_core::observe::{Exchange, PrefetchedBody};
use tokenweir_core::openai::request_fields::RequestFields;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_net::request_stream::RequestStream;

type UnreadResponse = Result<(Response<PrefetchedBody<BackendBody>>, Lease), GatewayError>;

/// Forwards an upload to a backend of the fixed model of its route. `route_total`: the timeout of the
/// whole request that the route has. The parts of the body are forwarded as they arrive, and only as
/// fast as the backend reads them.
pub(super) async fn forward_body<B: IncomingBody + Send + 'static>(
    context: &ProxyContext,
    principal: &Principal,
    exchange: &mut Exchange,
    (unread, route_total): (&UnreadBody, Option<Duration>),
    (head, body): (&mut request::Parts, B),
) -> UnreadResponse {
    let max_bytes = unread.max_bytes.unwrap_or(context.settings.max_body_bytes);
    let length = body::declared_length(head, max_bytes)?;
    let is_empty = body.is_end_stream();
    let received = exchange.count_forwarded_bytes();
    let idle_timeout = context.settings.body_idle_timeout;
    let body = ForwardedBody::new(body, received).with_limits(max_bytes, idle_timeout);
    let length = if is_empty { Some(0) } else { length };
    let framing =
        length.map_or(RequestFraming::Chunked, |length| RequestFraming::Length(length as u64));
    let stream = RequestStream::new(body, framing);
    let limits = TimeLimits { total: route_total, idle: None };
    forward(context, principal, exchange, (head, stream), Some(&unread.model), limits).await
}

/// Forwards the opening handshake of a WebSocket and, once the backend has accepted it, the bytes of
/// both sides. The model is the parameter `model` of the query, if there is one.
pub(super) async fn forward_websocket<B: IncomingBody + Send + 'static>(
    context: &ProxyContext,
    principal: &Principal,
    exchange: &mut Exchange,
    (head, body): (&mut request::Parts, B),
) -> UnreadResponse {
    let accept = websocket::expected_accept(head).ok_or(GatewayError::WebSocketRequired)?;
    // A client can name a model in an event, which the gateway does not read.
    if !principal.allowed_models().allow(None) {
        let model = "a model of a WebSocket, whose events the gateway does not read,".to_owned();
        return Err(GatewayError::ModelNotAllowed { model });
    }
    let model = query_value(head.uri.query().unwrap_or_default(), "model");
    let received = exchange.count_forwarded_bytes();
    let stream = RequestStream::new(ForwardedBody::new(body, received), RequestFraming::Upgrade);
    let limits = TimeLimits { total: None, idle: Some(context.settings.websocket_idle_timeout) };
    let forwarding =
        forward(context, principal, exchange, (head, stream), model.as_deref(), limits);
    let (response, lease) = forwarding.await?;
    let is_switching = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_switching && !websocket::is_accepted(response.headers(), &accept) {
        return Err(GatewayError::Garbage);
    }
    Ok((response, lease))
}

/// The time limits of a request.
struct TimeLimits {
    /// Timeout of the whole request, from its route. `None`: that of the model, or else the global
    /// one.
    total: Option<Duration>,
    /// Maximum time without bytes in both directions. `None`: the response is no WebSocket.
    idle: Option<Duration>,
}

async fn forward(
    context: &ProxyContext,
    principal: &Principal,
    exchange: &mut Exchange,
    (head, stream): (&mut request::Parts, RequestStream),
    model: Option<&str>,
    limits: TimeLimits,
) -> UnreadResponse {
    let state = &context.state;
    let fields = RequestFields { model: model.map(Into::into), ..RequestFields::default() };
    let record = exchange.record();
    record.timings.received = Some(clock::now());
    record.options = steps::request_options(&context.settings, &head.headers, &fields);
    let route = steps::allowed_model_route(context, principal, record, &fields)?;
    steps::log_start(context, record);
    let no_body = Bytes::new();
    let control_check = EngineControlCheck::check(
        &state.access,
        principal,
        route.permissions,
        record,
        &fields,
        &no_body,
    )?;
    let key = state.pool.peer_key();
    let prompt = features::hash_prompt(&fields, &route, None, &no_body, key);
    let body = UpstreamBody::new(no_body, None, &head.headers, &fields, &route, Vec::new())?;
    let requirements = BackendRequirements {
        model,
        prompt: &prompt,
        is_stream: false,
        backend: None,
        session: features::session_hash(&head.headers, &context.settings.session_headers, &fields),
        seed: fastrand::u64(..),
    };
    let deadlines =
        steps::request_deadlines(context, record, &head.headers, &route.policy, limits.total);
    let lease = steps::wait_for_lease(context, record, &head.headers, requirements).await?;
    control_check.strip_headers(&mut head.headers);
    let policy = exchange.policy();
    steps::apply_route_policy(policy, &route.policy, deadlines);
    policy.idle = limits.idle.or(policy.idle);
    let prepared = PreparedRequest {
        head,
        fields: &fields,
        body,
        requirements,
        deadline: deadlines.first_output,
        backend_model: model,
        is_lookup: false,
        response_headers_timeout: route.policy.response_headers,
    };
    relay::send_unread(context, exchange, &prepared, stream, lease).await
}

/// The first value of a parameter in a query, decoded.
fn query_value(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    let value = value.replace('+', " ");
    Some(percent_encoding::percent_decode_str(&value).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_in_the_query_is_decoded() {
        for (query, expected) in [
            ("model=tiny", Some("tiny")),
            ("a=b&model=org%2Fname%3A1&model=x", Some("org/name:1")),
            ("models=tiny&mode=l", None),
            ("", None),
        ] {
            assert_eq!(query_value(query, "model").as_deref(), expected, "{query}");
        }
    }
}
