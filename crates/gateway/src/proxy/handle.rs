//! Handles one accepted request: reads its body, sends the request to a backend, and makes the head
//! of the response.

use super::accept::RecordedRequest;
use super::access::Principal;
use super::admission::BegunStream;
use super::context::ProxyContext;
use super::lookup;
use super::relay::{self, ForwardResult, PreparedRequest, StreamContinuation};
use super::request::body::{self, IncomingBody};
use super::request::configured_routes::ConfiguredRoute;
use super::request::continuation;
use super::request::deadline::RequestDeadlines;
use super::request::engine_control::EngineControlCheck;
use super::request::features::{self, PromptBody};
use super::request::upstream_body::UpstreamBody;
use super::response::{EarlyResponse, ProxyResponseBody};
use super::{routing_headers, unread};
use crate::backend::Lease;
use crate::backend::pool::BackendRequirements;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, request};
use http_body::Body;
use std::future::{Future, poll_fn};
use std::mem::take;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_protocol::headers;
use tokenweir_protocol::openai::Api;
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_protocol::openai::prompt::PromptBytes;
use tokenweir_protocol::openai::route::ApiRoute;
use tokenweir_request::access::ConcurrencyPermit;
use tokenweir_request::error::ErrorEnvelope;
use tokenweir_request::observe::{Continue, Exchange, ObservedBody, ResponseAbortHandle};
use tokenweir_request::record::ResumeOutcome;

/// Continues the body of an interrupted response with the stream of another backend.
type Continuer = Box<dyn Continue<BackendBody, (Lease, Option<ConcurrencyPermit>)> + Send>;

/// Handles one [accepted](super::accept_request) request and returns its response. `abort_handle`
/// aborts the response if the client does not read the response. `early` is the beginning of the
/// response, which can be sent before a backend is decided.
///
/// The arguments are destructured before the `async` block: the future of an `async fn` would reserve
/// memory for the arguments and again for their fields.
pub fn handle_request<B: IncomingBody + Send + 'static>(
    context: &Arc<ProxyContext>,
    recorded: RecordedRequest,
    abort_handle: ResponseAbortHandle,
    early: &EarlyResponse,
    request: Request<B>,
) -> impl Future<Output = Response<ProxyResponseBody>> {
    let RecordedRequest { exchange, principal, permit, route, configured, origin, .. } = recorded;
    let mut exchange = exchange.with_abort_handle(abort_handle);
    let (mut head, body) = request.into_parts();
    async move {
        let envelope = ErrorEnvelope::for_path(head.uri.path());
        let request_id = exchange.record().request_id.clone();
        let complete_headers = |headers: &mut HeaderMap| {
            headers::rewrite_response_headers(headers, &request_id);
            principal.rate_limit_status.write(headers);
            context.state.access.cors.apply(origin.as_ref(), headers);
        };
        let early_headers = |media_type| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
            complete_headers(&mut headers);
            headers
        };
        let mut continuation = None;
        let result = match permit {
            Err(error) => Err(error),
            Ok(permit) => {
                let route = (route, configured.as_deref(), early);
                let request = (&mut head, body, &mut continuation);
                let mut forwarding =
                    pin!(forward(context, &principal, &mut exchange, route, request));
                let result = poll_fn(|cx| {
                    let result = forwarding.as_mut().poll(cx);
                    if result.is_pending() {
                        early.on_pending(cx, early_headers);
                    }
                    result
                });
                result.await.map(|(response, lease)| (response, lease, permit))
            }
        };
        let mut response = match result {
            Ok((mut response, lease, permit)) => {
                if exchange.may_change_length() {
                    response.headers_mut().remove(CONTENT_LENGTH);
                }
                let guard = (lease, permit);
                let observed =
                    |body| ObservedBody::new(body, exchange, guard).with_replacement(continuation);
                response.map(|body| ProxyResponseBody::Observed(observed(body)))
            }
            Err(error) => {
                let error = principal.redact_error(error, &context.state.pool);
                let response = error.to_response_in(envelope, Some(request_id.as_str()));
                let bytes = response.body().size_hint().lower();
                exchange.refuse(error.status().as_u16(), bytes, error.reason(), error.outcome());
                response.map(ProxyResponseBody::Complete)
            }
        };
        // `Upgrade` applies to one hop, so `complete_headers` removes it. A response about an upgrade
        // gets its own `Upgrade` back.
        let status = response.status();
        let is_about_upgrade =
            matches!(status, StatusCode::SWITCHING_PROTOCOLS | StatusCode::UPGRADE_REQUIRED);
        let upgrade = response.headers_mut().remove(UPGRADE).filter(|_| is_about_upgrade);
        complete_headers(response.headers_mut());
        if let Some(upgrade) = upgrade {
            response.headers_mut().insert(UPGRADE, upgrade);
        }
        response
    }
}

/// Forwards a request as its route requires: with a body that the gateway reads or does not read,
/// or to the backend of a stored response.
async fn forward<B: IncomingBody + Send + 'static>(
    context: &Arc<ProxyContext>,
    principal: &Principal,
    exchange: &mut Exchange,
    (route, configured, early): (Option<ApiRoute>, Option<&ConfiguredRoute>, &EarlyResponse),
    (head, body, continuation): (&mut request::Parts, B, &mut Option<Continuer>),
) -> ForwardResult {
    let request = (head, body);
    let total = configured.and_then(|configured| configured.total);
    match (route, configured.and_then(|configured| configured.unread.as_ref())) {
        (Some(ApiRoute::StoredResponse), _) => {
            lookup::forward(context, principal, exchange, request).await
        }
        (Some(ApiRoute::Realtime), _) => {
            unread::forward_websocket(context, principal, exchange, request).await
        }
        (_, Some(unread)) => {
            unread::forward_body(context, principal, exchange, (unread, total), request).await
        }
        _ => {
            let route = (total, early, continuation);
            forward_read(context, principal, exchange, route, request).await
        }
    }
}

/// Reads and checks the request, waits for admission, and sends the request to backends until a
/// response has begun or the request fails. `route_total`: the timeout of the whole request from
/// its configured route. `None`: that route sets none.
async fn forward_read<B: IncomingBody>(
    context: &Arc<ProxyContext>,
    principal: &Principal,
    exchange: &mut Exchange,
    (route_total, early, continuation): (Option<Duration>, &EarlyResponse, &mut Option<Continuer>),
    (head, body): (&mut request::Parts, B),
) -> ForwardResult {
    let ProxyContext { state, settings, .. } = &**context;
    let (access, pool) = (&state.access, &state.pool);
    let memory = &state.body_memory;
    // The body is dropped when this function returns.
    let original = body::receive_body(settings, memory, principal, exchange, head, body).await?;
    let record = exchange.record();
    let fields = body::peek_request(head, &original, record.api)?;
    record.options = settings.options(&head.headers, &fields);
    record.options.prompt_bytes = match record.api {
        Some(Api::Audio) => PromptBytes::of_form(&original),
        _ => PromptBytes::of_json(&fields.prompt, &original),
    };
    let mut route = principal.model_route(pool, record, &fields)?;
    if route.absent_since.is_some() {
        // Boxed, because few requests need the memory of this future.
        Box::pin(pool.read_models_again()).await;
        route = principal.model_route(pool, record, &fields)?;
    }
    state.recording.log_start(record);
    let mut control =
        EngineControlCheck::check(access, principal, &route, record, &fields, &original)?;
    let continued_at = state.stored_responses.locate_previous(record, principal, pool)?;
    let (mut edits, salt) = (take(&mut control.edits), control.salt.as_deref());
    let mode = principal.continuation().or(route.policy.continuation);
    let plan = continuation::plan(exchange, mode, head, &fields, &original, &mut edits);
    let record = exchange.record();
    let prompt = {
        let body = PromptBody::new(&original, record, &fields, pool, &route);
        features::hash_prompt(&fields, &route, salt, &body, pool.peer_key.as_ref())
    };
    let body = UpstreamBody::new(original, record, head, &fields, &route, edits)?;
    record.options.usage_requested = body.requests_usage_event();
    let requirements = BackendRequirements {
        model: fields.model.as_deref(),
        prompt: &prompt,
        is_stream: fields.stream,
        backend: continued_at.as_ref(),
        path: record.route,
        max_tokens: output_limit(record.api, fields.max_tokens),
        choices: features::saturating_u32(fields.n.unwrap_or(1)),
        longer_than: None,
        excluded: &[],
        session: features::session_hash(&head.headers, &settings.session_headers, &fields),
        seed: fastrand::u64(..),
    };
    state.recording.sample(record, &fields, requirements, body.original());
    let headers = &head.headers;
    if fields.stream {
        let api = record.api.unwrap_or(Api::Other);
        early.allow(api, exchange.policy().rules.keep_alive);
    }
    if let Some(plan) = plan {
        let memory = (&*state.continuation_memory, body.original().party());
        let bytes = body.original().len();
        continuation::begin(exchange, plan, memory, bytes);
    }
    let record = exchange.record();
    let lease = state.admission.lease(record, headers, requirements).await?;
    let record = exchange.record();
    let mut deadlines =
        RequestDeadlines::new(record, headers, settings, &route.policy, route_total);
    if record.resume.as_ref().is_some_and(|note| note.get() == ResumeOutcome::Kept) {
        // A client that may return does not end the attempt when it disconnects, so the timeout that
        // it announced does not apply.
        deadlines.attempt = deadlines.attempt.without_client();
    }
    let is_explained =
        control.allow(Permission::RoutingHeaders) && routing_headers::is_requested(headers);
    control.strip_headers(&mut head.headers);
    deadlines.apply(&route.policy, exchange.policy());
    let prepared = PreparedRequest {
        context,
        head,
        fields: &fields,
        body,
        requirements: &requirements,
        deadlines: deadlines.attempt,
        backend_model: route.served_as.as_deref().or(requirements.model),
        is_lookup: false,
        early: Some(early),
        response_headers_timeout: route.policy.response_headers,
    };
    let (mut response, lease) = relay::send(exchange, &prepared, lease).await?;
    routing_headers::write(response.headers_mut(), exchange.record(), is_explained);
    if exchange.is_spliced() {
        *continuation = Some(Box::new(StreamContinuation {
            context: context.clone(),
            head: prepared.head.clone(),
            body: if exchange.needs_body() { prepared.body.into_sent() } else { Bytes::new() },
            stream: Arc::new(BegunStream {
                model: fields.model.as_deref().map(Into::into),
                prompt: prompt.clone(),
                path: requirements.path,
                max_tokens: requirements.max_tokens,
                session: requirements.session,
            }),
            response_headers_timeout: route.policy.response_headers,
            interruption: None,
            failures: 0,
        }));
    }
    Ok((response, lease))
}

/// The greatest number of output tokens of a choice that the request allows, 0 if it states none. `None`: the
/// API generates no text. `stated`: the number in the request.
fn output_limit(api: Option<Api>, stated: Option<u64>) -> Option<u32> {
    if !api.is_some_and(Api::generates) {
        return None;
    }
    Some(features::saturating_u32(stated.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    /// The size of the future that a function returns, in bytes.
    fn future_bytes<F: Future>(
        _: impl Fn(
            &'static Arc<ProxyContext>,
            RecordedRequest,
            ResponseAbortHandle,
            &'static EarlyResponse,
            Request<Full<Bytes>>,
        ) -> F,
    ) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_future_that_handles_a_request_takes_little_memory() {
        let bytes = future_bytes(handle_request);
        assert!(bytes <= 5016, "{bytes} bytes");
    }
}
