//! Forwards requests whose body the gateway does not read: uploads to a configured route with a fixed
//! model, and WebSocket connections. Both are sent to one backend once, because their bytes are not kept.

use super::access::Principal;
use super::context::ProxyContext;
use super::relay::{self, ForwardResult, PreparedRequest};
use super::request::body::{self, IncomingBody};
use super::request::configured_routes::UnreadBody;
use super::request::deadline::RequestDeadlines;
use super::request::engine_control::EngineControlCheck;
use super::request::features::{self, PromptBody};
use super::request::forwarded_body::ForwardedBody;
use super::request::upstream_body::UpstreamBody;
use crate::backend::pool::BackendRequirements;
use http::{StatusCode, request};
use std::time::Duration;
use tokenweir_net::request_stream::RequestStream;
use tokenweir_protocol::clock;
use tokenweir_protocol::http1::{RequestFraming, websocket};
use tokenweir_protocol::openai::request_fields::RequestFields;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;

/// Forwards an upload to a backend of the fixed model of its route. `route_total`: the route's timeout
/// for the whole request. The parts of the body are forwarded as they arrive, and only as fast as the
/// backend reads them.
pub(super) async fn forward_body<B: IncomingBody + Send + 'static>(
    context: &ProxyContext,
    principal: &Principal,
    exchange: &mut Exchange,
    (unread, route_total): (&UnreadBody, Option<Duration>),
    (head, body): (&mut request::Parts, B),
) -> ForwardResult {
    let max_bytes = unread.max_bytes.unwrap_or(context.settings.max_body_bytes);
    let length = body::declared_length(head, max_bytes)?;
    let is_empty = body.is_end_stream();
    let received = exchange.count_forwarded_bytes();
    let idle_timeout = Some(context.settings.body_idle_timeout);
    let body = ForwardedBody::new(body, received, max_bytes, idle_timeout);
    let length = if is_empty { Some(0) } else { length };
    let framing =
        length.map_or(RequestFraming::Chunked, |length| RequestFraming::Length(length as u64));
    let stream = RequestStream::new(body, framing);
    let limits = TimeLimits { total: route_total, idle: None };
    forward(context, principal, exchange, (head, stream), Some(&unread.model), limits).await
}

/// Forwards the opening handshake of a WebSocket and, once the backend has accepted it, the bytes in
/// both directions. The model is the parameter `model` of the query, if there is one.
pub(super) async fn forward_websocket<B: IncomingBody + Send + 'static>(
    context: &ProxyContext,
    principal: &Principal,
    exchange: &mut Exchange,
    (head, body): (&mut request::Parts, B),
) -> ForwardResult {
    let accept = websocket::expected_accept(head).ok_or(GatewayError::WebSocketRequired)?;
    // A client can name any model in a WebSocket event, and the gateway does not read these events.
    if !principal.allowed_models().allow(None) {
        let model = "a model of a WebSocket, whose events the gateway does not read,".to_owned();
        return Err(GatewayError::ModelNotAllowed { model });
    }
    let model = query_value(head.uri.query().unwrap_or_default(), "model");
    let received = exchange.count_forwarded_bytes();
    let body = ForwardedBody::new(body, received, usize::MAX, None);
    let stream = RequestStream::new(body, RequestFraming::Upgrade);
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
    /// Timeout of the whole request, from its route. `None`: the timeout of the model, or else the
    /// global timeout.
    total: Option<Duration>,
    /// Maximum time without bytes in either direction. `None`: the response is no WebSocket.
    idle: Option<Duration>,
}

async fn forward(
    context: &ProxyContext,
    principal: &Principal,
    exchange: &mut Exchange,
    (head, stream): (&mut request::Parts, RequestStream),
    model: Option<&str>,
    limits: TimeLimits,
) -> ForwardResult {
    let ProxyContext { state, settings, .. } = context;
    let (access, pool) = (&state.access, &state.pool);
    let fields = RequestFields { model: model.map(Into::into), ..RequestFields::default() };
    let record = exchange.record();
    record.timings.received = Some(clock::now());
    record.options = settings.options(&head.headers, &fields);
    let mut route = principal.model_route(pool, record, &fields)?;
    if route.absent_since.is_some() {
        // Boxed, because few requests need the memory of this future.
        Box::pin(pool.read_models_again()).await;
        route = principal.model_route(pool, record, &fields)?;
    }
    state.recording.log_start(record);
    let no_body = state.body_memory.no_body(principal.party(record.client));
    let control = EngineControlCheck::check(access, principal, &route, record, &fields, &no_body)?;
    let prompt = PromptBody::default();
    let prompt = features::hash_prompt(&fields, &route, None, &prompt, &pool.facets);
    let body = UpstreamBody::new(no_body, record, head, &fields, &route, Vec::new())?;
    let requirements = BackendRequirements {
        model,
        path: record.route,
        session: features::session_hash(&head.headers, &settings.session_headers, &fields),
        ..BackendRequirements::none(&prompt, fastrand::u64(..))
    };
    let (headers, policy) = (&head.headers, &route.policy);
    let deadlines = RequestDeadlines::new(record, headers, settings, policy, limits.total);
    let lease = state.admission.lease(record, headers, requirements).await?;
    control.strip_headers(&mut head.headers);
    let stream_policy = exchange.policy();
    deadlines.apply(policy, stream_policy);
    stream_policy.idle = limits.idle.or(stream_policy.idle);
    let prepared = PreparedRequest {
        context,
        head,
        fields: &fields,
        body,
        requirements: &requirements,
        deadlines: deadlines.attempt.without_client(),
        backend_model: model,
        is_lookup: false,
        early: None,
        response_headers_timeout: policy.response_headers,
    };
    relay::send_unread(exchange, &prepared, stream, lease).await
}

/// The first value of a parameter in a query, percent-decoded.
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
    fn the_model_in_the_query_of_a_websocket_request_is_percent_decoded() {
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
