//! Requests whose clients may lose their connection and return: `streams.resume`.
//!
//! A task of its own (a run, see [`tokenweir_request::resume`]) handles a request with an
//! `Idempotency-Key` and stores its response. The client's connection reads the stored response.
//! When the connection ends, the run continues. The same request on another connection gets the
//! same response from its beginning.

mod run;

use super::accept::RecordedRequest;
use super::context::ProxyContext;
use super::handle::handle_request;
use super::request::body::{self, IncomingBody};
use super::response::{EarlyResponse, FollowedBody, ProxyResponseBody, RunHead};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, request};
use http_body_util::Full;
use std::future::poll_fn;
use std::sync::Arc;
use tokenweir_protocol::headers::{
    IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, LAST_EVENT_ID, X_REQUEST_ID, is_event_stream,
    rewrite_response_headers,
};
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_protocol::openai::route::ApiRoute;
use tokenweir_request::error::{ErrorEnvelope, GatewayError, IdempotencyProblem, RateLimitKind};
use tokenweir_request::observe::{Exchange, ResponseAbortHandle};
use tokenweir_request::record::{ResumeNote, ResumeOutcome};
use tokenweir_request::resume::{Arrival, Digest, Entry, EventIds, Reader, RunKey};

/// Maximum length of an `Idempotency-Key`, in bytes. No known service permits longer ones.
const MAX_KEY_BYTES: usize = 255;

/// Identifies a request and its repetitions, by client and `Idempotency-Key`, so that the client
/// can return to the response. `None`: the client cannot return to it. If the request has an
/// `Idempotency-Key` that the gateway cannot use, the record gets the reason.
pub fn run_key(
    context: &Arc<ProxyContext>,
    recorded: &mut RecordedRequest,
    headers: &HeaderMap,
) -> Option<RunKey> {
    context.settings.resume?;
    let key = headers.get(IDEMPOTENCY_KEY)?;
    let RecordedRequest { exchange, principal, permit, route, configured, .. } = recorded;
    let is_generating = matches!(route, Some(ApiRoute::Forward(api)) if api.generates());
    if !is_generating || configured.is_some() {
        return None;
    }
    let mut refuse = |outcome| {
        exchange.record().resume = Some(Arc::new(ResumeNote::new(outcome)));
        None
    };
    if !principal.permissions.allow(Permission::Resume) {
        return refuse(ResumeOutcome::NotAllowed);
    }
    let is_single = headers.get_all(IDEMPOTENCY_KEY).iter().nth(1).is_none();
    if !is_single || key.is_empty() || key.len() > MAX_KEY_BYTES {
        return refuse(ResumeOutcome::InvalidKey);
    }
    let Some(client) = principal.client_digest(headers) else {
        return refuse(ResumeOutcome::NoIdentity);
    };
    let run_key = RunKey::new(client, key.as_bytes());
    let may_follow = match permit {
        Ok(_) => true,
        // The run to which the client returns may hold the last permit of its tenant.
        Err(GatewayError::RateLimited { limited: RateLimitKind::Concurrency, .. }) => {
            context.state.resumption.registry.is_known(&run_key)
        }
        Err(_) => false,
    };
    may_follow.then_some(run_key)
}

/// Responds to a request that has a [`run_key`]. The first request with a key starts the task that
/// handles it. A later one gets the response to the first.
pub async fn follow<B: IncomingBody + Send + 'static>(
    context: Arc<ProxyContext>,
    mut recorded: RecordedRequest,
    (key, abort): (RunKey, ResponseAbortHandle),
    early: &EarlyResponse,
    request: Request<B>,
) -> Response<ProxyResponseBody> {
    let (mut head, body) = request.into_parts();
    let ids = match last_event_id(&head.headers) {
        Ok(ids) => ids,
        Err(error) => return refuse(&context, recorded, abort, head, error).await,
    };
    let RecordedRequest { exchange, principal, .. } = &mut recorded;
    let (settings, memory) = (&context.settings, &context.state.body_memory);
    let received = body::receive_body(settings, memory, principal, exchange, &mut head, body).await;
    let body = match received.map(|(body, _)| body) {
        Ok(body) => body,
        Err(error) => return refuse(&context, recorded, abort, head, error).await,
    };
    let arrival =
        Arrival { key, request: request_digest(&head, &body), may_begin: recorded.permit.is_ok() };
    let Some(settings) = &context.settings.resume else {
        return handle(&context, recorded, abort, early, head, body).await;
    };
    let problem = match context.state.resumption.registry.enter(&arrival, settings) {
        Entry::Begun(producer, reader) => {
            let path = head.uri.path().to_owned();
            recorded.exchange.record().resume = Some(producer.note().clone());
            let request = Request::from_parts(head, Full::new(body));
            let run = run::complete(context.clone(), recorded, request, producer);
            context.state.resumption.spawn(run);
            return begin(reader, ids, abort, &path).await;
        }
        Entry::Attached(reader) => {
            return attached(&context, recorded, (reader, ids, abort), head, &body).await;
        }
        Entry::OverLimit(limit) => {
            recorded.exchange.record().resume = Some(Arc::new(ResumeNote::new(limit)));
            return handle(&context, recorded, abort, early, head, body).await;
        }
        Entry::Unknown => return handle(&context, recorded, abort, early, head, body).await,
        Entry::OtherRequest => IdempotencyProblem::OtherRequest,
        Entry::TooManyReaders => IdempotencyProblem::TooManyReaders,
    };
    refuse(&context, recorded, abort, head, GatewayError::IdempotencyKey(problem)).await
}

/// Returns the response to the first request with its key, when its run has the response head.
async fn begin(
    mut reader: Reader<RunHead>,
    ids: Option<EventIds>,
    abort: ResponseAbortHandle,
    path: &str,
) -> Response<ProxyResponseBody> {
    match poll_fn(|cx| reader.poll_head(cx.waker())).await {
        Some(head) => respond(head.headers.clone(), &head, (reader, ids, abort), None),
        // The run has panicked.
        None => GatewayError::Internal
            .to_response_in(ErrorEnvelope::for_path(path), None)
            .map(ProxyResponseBody::Complete),
    }
}

/// Returns, to a repeated request, the response to the earlier request with the same key, after the
/// same checks of body and model.
async fn attached(
    context: &Arc<ProxyContext>,
    mut recorded: RecordedRequest,
    (mut reader, ids, abort): (Reader<RunHead>, Option<EventIds>, ResponseAbortHandle),
    head: request::Parts,
    body: &[u8],
) -> Response<ProxyResponseBody> {
    let record = recorded.exchange.record();
    record.resume = Some(Arc::new(ResumeNote::new(ResumeOutcome::Attached)));
    let checked = body::peek_request(&head, body, record.api).and_then(|fields| {
        record.options = context.settings.options(&head.headers, &fields);
        recorded.principal.model_route(&context.state.pool, record, &fields)
    });
    if let Err(error) = checked {
        return refuse(context, recorded, abort, head, error).await;
    }
    // The run has its own concurrency permit, so this request needs none.
    recorded.permit = Ok(None);
    let Some(run_head) = poll_fn(|cx| reader.poll_head(cx.waker())).await else {
        return refuse(context, recorded, abort, head, GatewayError::Internal).await;
    };
    let RecordedRequest { mut exchange, principal, origin, .. } = recorded;
    let mut headers = run_head.headers.clone();
    headers.remove(X_REQUEST_ID);
    rewrite_response_headers(&mut headers, &exchange.record().request_id);
    principal.rate_limit_status.write(&mut headers);
    context.state.access.cors.apply(origin.as_ref(), &mut headers);
    headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    exchange.record().status = Some(run_head.status.as_u16());
    respond(headers, &run_head, (reader, ids, abort), Some(exchange))
}

fn respond(
    headers: HeaderMap,
    head: &RunHead,
    (reader, ids, abort): (Reader<RunHead>, Option<EventIds>, ResponseAbortHandle),
    exchange: Option<Exchange>,
) -> Response<ProxyResponseBody> {
    let ids = ids.filter(|_| is_event_stream(&headers));
    let body = FollowedBody::new(reader, head.length, ids, exchange, abort);
    let mut response = Response::new(ProxyResponseBody::Followed(Box::new(body)));
    *response.status_mut() = head.status;
    *response.headers_mut() = headers;
    response
}

/// Handles a request without a run, so that its client cannot return to the response.
async fn handle(
    context: &Arc<ProxyContext>,
    recorded: RecordedRequest,
    abort: ResponseAbortHandle,
    early: &EarlyResponse,
    head: request::Parts,
    body: Bytes,
) -> Response<ProxyResponseBody> {
    let request = Request::from_parts(head, Full::new(body));
    handle_request(context, recorded, abort, early, request).await
}

/// Answers a request with an error.
async fn refuse(
    context: &Arc<ProxyContext>,
    mut recorded: RecordedRequest,
    abort: ResponseAbortHandle,
    head: request::Parts,
    error: GatewayError,
) -> Response<ProxyResponseBody> {
    recorded.permit = Err(error);
    handle(context, recorded, abort, &EarlyResponse::default(), head, Bytes::new()).await
}

/// The digest of path, query, content type and body. A repeated request gets the response to an
/// earlier request with the same key only if their digests are equal.
fn request_digest(head: &request::Parts, body: &[u8]) -> Digest {
    let content_type = head.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    Digest::of(&[target.as_bytes(), content_type, body])
}

/// The event ids that a client asks for with `Last-Event-ID`. The header has the id of the last event
/// that the client received, or 0. `None`: the client asks for no event ids. Fails if the value is no
/// number.
fn last_event_id(headers: &HeaderMap) -> Result<Option<EventIds>, GatewayError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    let error = GatewayError::IdempotencyKey(IdempotencyProblem::LastEventId);
    number.map(EventIds::after).map(Some).ok_or(error)
}
