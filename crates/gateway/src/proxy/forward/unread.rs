//! Forwards requests whose body the gateway does not read: uploads to a configured route with a fixed model,
//! and WebSocket connections. Each is sent to one backend once, because the gateway does not store the bytes.

use super::inbound::InboundRequest;
use super::route::find_route;
use crate::backend::pool::BackendRequirements;
use crate::proxy::attempt::{ForwardResult, PreparedRequest};
use crate::proxy::configured_routes::UnreadBody;
use crate::proxy::request::{
    EngineControlCheck, ForwardedBody, IncomingBody, PromptBody, ReadRequest, RequestDeadlines,
    RequestSettings, UpstreamBody, body, hash_prompt,
};
use crate::proxy::{ProxyContext, relay};
use http::{StatusCode, request};
use std::time::Duration;
use tokenweir_net::request_stream::RequestStream;
use tokenweir_protocol::clock;
use tokenweir_protocol::http1::{RequestFraming, websocket};
use tokenweir_protocol::openai::RequestFields;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;

/// Forwards an upload to a backend of the fixed model of its route. `route_total`: the route's timeout of the
/// whole request. Each chunk of the body is forwarded on arrival, but only as fast as the backend reads.
pub(super) async fn forward_body<B: IncomingBody + Send + 'static>(
    inbound: InboundRequest<'_, B>,
    exchange: &mut Exchange,
    unread: &UnreadBody,
    route_total: Option<Duration>,
) -> ForwardResult {
    let settings = &inbound.context.settings;
    let max_bytes = unread.max_bytes.unwrap_or(settings.max_body_bytes);
    let declared = body::declared_length(inbound.head, max_bytes)?;
    let framing = match declared {
        _ if inbound.body.is_end_stream() => RequestFraming::Length(0),
        Some(length) => RequestFraming::Length(length as u64),
        None => RequestFraming::Chunked,
    };
    let idle_timeout = Some(settings.body_idle_timeout);
    let limits = TimeLimits {
        total: route_total,
        idle: None,
    };
    let inbound = inbound.map(|body| {
        let received = exchange.count_forwarded_bytes();
        let body = ForwardedBody::new(body, received, max_bytes, idle_timeout);
        RequestStream::new(body, framing)
    });
    forward(inbound, exchange, Some(&unread.model), limits).await
}

/// Forwards the opening handshake of a WebSocket and, once the backend has accepted it, the bytes in both
/// directions. The query parameter `model` names the model, if present.
pub(super) async fn forward_websocket<B: IncomingBody + Send + 'static>(
    inbound: InboundRequest<'_, B>,
    exchange: &mut Exchange,
) -> ForwardResult {
    let accept = websocket::expected_accept(inbound.head).ok_or(GatewayError::WebSocketRequired)?;
    // The gateway does not read WebSocket events, in which a client can name any model. So the client needs
    // access to all models.
    if !inbound.principal.allowed_models().allow(None) {
        let model = "a model of a WebSocket, whose events the gateway does not read,".to_owned();
        return Err(GatewayError::ModelNotAllowed { model });
    }
    let model = query_value(inbound.head.uri.query().unwrap_or_default(), "model");
    let idle = Some(inbound.context.settings.websocket_idle_timeout);
    let limits = TimeLimits { total: None, idle };
    let inbound = inbound.map(|body| {
        let body = ForwardedBody::new(body, exchange.count_forwarded_bytes(), usize::MAX, None);
        RequestStream::new(body, RequestFraming::Upgrade)
    });
    let forwarded = forward(inbound, exchange, model.as_deref(), limits).await?;
    let response = &forwarded.response;
    let is_switching = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_switching && !websocket::is_accepted(response.headers(), &accept) {
        return Err(GatewayError::Garbage);
    }
    Ok(forwarded)
}

struct TimeLimits {
    /// Timeout of the whole request, from its route. `None`: the timeout of the model or, if it has none, the
    /// global timeout.
    total: Option<Duration>,
    /// Maximum time without bytes in either direction. `None`: the request is no WebSocket.
    idle: Option<Duration>,
}

async fn forward(
    inbound: InboundRequest<'_, RequestStream>,
    exchange: &mut Exchange,
    model: Option<&str>,
    limits: TimeLimits,
) -> ForwardResult {
    let InboundRequest {
        context,
        principal,
        head,
        body,
    } = inbound;
    let ProxyContext {
        state, settings, ..
    } = &**context;
    let fields = begin(exchange, settings, head, model);
    let route = find_route(context, principal, exchange, head, &fields, &[]).await?;
    let record = exchange.record();
    let model = route.name(model);
    state.recording.log_start(record);
    let read = ReadRequest {
        principal,
        route: &route,
        head,
        fields: &fields,
    };
    let control = EngineControlCheck::check(&state.access, record, &read, &[])?;
    let prompt = hash_prompt(&read, None, &PromptBody::default(), &state.pool.facets);
    let no_body = state.body_memory.no_body(principal.party(record.client));
    let upstream = UpstreamBody::new(no_body, record, &read, Vec::new())?;
    let headers = &mut head.headers;
    let requirements = BackendRequirements {
        model,
        path: record.route,
        session: settings.session_hash(headers, &fields),
        ..BackendRequirements::none(&prompt, fastrand::u64(..))
    };
    let deadlines = RequestDeadlines::new(record, headers, settings, &route.policy, limits.total);
    let leased = state.admission.lease(record, headers, requirements).await?;
    control.strip_headers(headers);
    let stream_policy = exchange.policy();
    deadlines.apply(&route.policy, stream_policy);
    stream_policy.idle = limits.idle.or(stream_policy.idle);
    let prepared = PreparedRequest {
        context,
        head,
        fields: &fields,
        body: &upstream,
        requirements: &requirements,
        deadlines: deadlines.attempt.without_client(),
        backend_model: model,
        is_lookup: false,
        early: None,
        response_headers_timeout: route.policy.response_headers,
    };
    relay::send_unread(exchange, &prepared, body, leased).await
}

/// Records that the gateway has read all that it reads of the request. Returns the known fields.
fn begin(
    exchange: &mut Exchange,
    settings: &RequestSettings,
    head: &request::Parts,
    model: Option<&str>,
) -> RequestFields {
    let fields = RequestFields {
        model: model.map(Into::into),
        ..RequestFields::default()
    };
    let record = exchange.record();
    record.timings.received = Some(clock::now());
    record.options = settings.options(&head.headers, &fields);
    fields
}

/// The first value of a query parameter, percent-decoded.
fn query_value(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    let value = value.replace('+', " ");
    Some(
        percent_encoding::percent_decode_str(&value)
            .decode_utf8_lossy()
            .into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_a_websocket_is_decoded() {
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
