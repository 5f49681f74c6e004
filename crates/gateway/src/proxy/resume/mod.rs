//! Requests whose clients may lose their connection and return: `streams.resume`.
//!
//! A task of its own (a run, see [`tokenweir_request::resume`]) handles a request with an
//! `Idempotency-Key` and stores its response. The client's connection reads the stored response.
//! When the connection ends, the run continues. The same request on another connection gets the
//! same response from its beginning.

mod run;

use super::accept::RecordedRequest;
use super::access::Principal;
use super::context::ProxyContext;
use super::handle::handle_request;
use super::request::body::{self, IncomingBody};
use super::request::body_memory::{HeldBody, ReceivedBody};
use super::response::{
    EarlyResponse, FollowedBody, Following, ProxyResponseBody, ResponseHeaders, RunHead,
};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, request};
use http_body_util::Full;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::{
    IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, LAST_EVENT_ID, X_REQUEST_ID, is_event_stream,
};
use tokenweir_protocol::limits::Party;
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_protocol::openai::route::ApiRoute;
use tokenweir_request::error::{ErrorEnvelope, GatewayError, IdempotencyProblem};
use tokenweir_request::observe::{Exchange, ResponseAbortHandle};
use tokenweir_request::resume::{
    Arrival, Chunk, Digest, Entry, EventId, EventIds, Producer, Reader, ResumeNote, ResumeOutcome,
    RunId, RunKey,
};

/// Maximum length of an `Idempotency-Key`, in bytes. No known service permits longer ones.
const MAX_KEY_BYTES: usize = 255;

/// The error for an event id of a response that the gateway does not keep for the request.
const UNKNOWN_EVENT: GatewayError = GatewayError::IdempotencyKey(IdempotencyProblem::UnknownEvent);

/// What a client asks for with `Last-Event-ID`.
#[derive(Debug, Clone, Copy)]
enum LastEvent {
    /// No event ids: the client sent no such header.
    NotAsked,
    /// The whole stream with event ids: the value is empty or 0.
    Start,
    /// The events after one that the client has.
    After(EventId),
}

/// Identifies a request and its repetitions, by client and `Idempotency-Key`, so that the client
/// can return to the response. `None`: the client cannot return to it. If the request has an
/// `Idempotency-Key` that the gateway cannot use, the record gets the reason.
pub fn run_key(
    context: &Arc<ProxyContext>,
    recorded: &mut RecordedRequest,
    headers: &HeaderMap,
) -> Option<RunKey> {
    let RecordedRequest { route, configured, .. } = recorded;
    let is_generating = matches!(route, Some(ApiRoute::Forward(api)) if api.generates());
    if !is_generating || configured.is_some() {
        return None;
    }
    let key = usable_key(context, recorded, headers);
    let names_event = |value: &HeaderValue| EventId::parse(value.as_bytes()).is_some();
    if key.is_none()
        && recorded.permit.is_ok()
        && headers.get_all(LAST_EVENT_ID).iter().any(names_event)
    {
        // Without this error the client would join its events with those of another response.
        recorded.permit = Err(UNKNOWN_EVENT);
    }
    key
}

/// The key of a request to a path that generates output.
fn usable_key(
    context: &Arc<ProxyContext>,
    recorded: &mut RecordedRequest,
    headers: &HeaderMap,
) -> Option<RunKey> {
    context.settings.resume?;
    let key = headers.get(IDEMPOTENCY_KEY)?;
    let RecordedRequest { exchange, principal, .. } = recorded;
    let mut refuse = |outcome| {
        exchange.record().notes.set(Arc::new(ResumeNote::new(outcome)));
        None
    };
    if !principal.permissions.allow(Permission::Resume) {
        return refuse(ResumeOutcome::NotAllowed);
    }
    let is_single = headers.get_all(IDEMPOTENCY_KEY).iter().nth(1).is_none();
    if !is_single || key.is_empty() || key.len() > MAX_KEY_BYTES {
        return refuse(ResumeOutcome::InvalidKey);
    }
    let Some(client) = client_digest(principal, headers) else {
        return refuse(ResumeOutcome::NoIdentity);
    };
    let run_key = RunKey::new(client, key.as_bytes());
    may_follow(context, recorded, &run_key).then_some(run_key)
}

/// A digest that identifies the client of a request, so that only this client can return to the response
/// after a lost connection. It is the digest of the API key's tenant and name or, on a gateway without
/// keys, that of the forwarded credentials. `None`: the request has no credentials, so anybody could be its
/// client.
fn client_digest(principal: &Principal, headers: &HeaderMap) -> Option<Digest> {
    if let Some(key) = principal.key() {
        return Some(Digest::of(&[key.caller.tenant.as_bytes(), key.caller.key.as_bytes()]));
    }
    let names = [AUTHORIZATION.as_str(), "x-api-key"];
    let values = names.iter().flat_map(|name| headers.get_all(*name));
    let values: Vec<&[u8]> = values.map(HeaderValue::as_bytes).collect();
    (!values.is_empty()).then(|| Digest::of(&values))
}

/// Whether a request with this key may begin a run or follow one. A repetition at a limit that the run
/// itself may have reached may only follow.
fn may_follow(context: &ProxyContext, recorded: &mut RecordedRequest, key: &RunKey) -> bool {
    let Err(error) = &recorded.permit else { return true };
    if !recorded.may_follow || !context.state.resumption.registry.is_known(key) {
        return false;
    }
    // At the concurrency limit, authentication counted the request towards no limit.
    if matches!(error, GatewayError::RateLimited { .. })
        && let Err(error) = recorded.principal.count_repetition(clock::now())
    {
        recorded.permit = Err(error);
        return false;
    }
    true
}

/// Responds to a request that has a [`run_key`]. The first request with a key starts the task that
/// handles it. A later one gets the response to the first.
pub async fn follow<B: IncomingBody + Send + 'static>(
    context: Arc<ProxyContext>,
    mut recorded: RecordedRequest,
    key: RunKey,
    abort: ResponseAbortHandle,
    early: &EarlyResponse,
    incoming: Request<B>,
) -> Response<ProxyResponseBody> {
    let (mut head, body) = incoming.into_parts();
    let Some(last) = LastEvent::from_headers(&head.headers) else {
        return refuse(&context, recorded, abort, head, UNKNOWN_EVENT).await;
    };
    let body = match receive(&context, &mut recorded, &mut head, body).await {
        Ok(body) => body,
        Err(error) => return refuse(&context, recorded, abort, head, error).await,
    };
    let request_digest = request_digest(&head, &body);
    let arrival = arrival(&context, &mut recorded, key, request_digest, body.party(), last);
    let entry = match &context.settings.resume {
        Some(settings) => context.state.resumption.registry.enter(&arrival, settings),
        None => Entry::Unknown,
    };
    if let Entry::OverLimit(limit) = entry {
        recorded.exchange.record().notes.set(Arc::new(ResumeNote::new(limit)));
    }
    let problem = match entry {
        Entry::Begun(producer, reader) => {
            let following = Following::new(reader, last, abort);
            let request = request(head, body);
            return begin(&context, recorded, request, producer, following).await;
        }
        Entry::Attached(reader) => {
            let following = Following::new(reader, last, abort);
            return attached(&context, recorded, following, head, body).await;
        }
        Entry::OverLimit(_) | Entry::Unknown => {
            return handle_request(&context, recorded, abort, early, request(head, body)).await;
        }
        Entry::UnknownEvent => IdempotencyProblem::UnknownEvent,
        Entry::OtherRequest => IdempotencyProblem::OtherRequest,
        Entry::TooManyReaders => IdempotencyProblem::TooManyReaders,
    };
    refuse(&context, recorded, abort, head, GatewayError::IdempotencyKey(problem)).await
}

async fn receive<B: IncomingBody>(
    context: &ProxyContext,
    recorded: &mut RecordedRequest,
    head: &mut request::Parts,
    body: B,
) -> Result<HeldBody, GatewayError> {
    let RecordedRequest { exchange, principal, .. } = recorded;
    let memory = &context.state.body_memory;
    body::receive_body(&context.settings, memory, principal, exchange, head, body).await
}

/// What the registry of runs needs to know about a request.
fn arrival(
    context: &ProxyContext,
    recorded: &mut RecordedRequest,
    key: RunKey,
    request: Digest,
    party: Party,
    last: LastEvent,
) -> Arrival {
    Arrival {
        key,
        request,
        party,
        client: recorded.exchange.record().client,
        new_id: RunId::new(fastrand::u64(..)),
        had_events_of: last.run(),
        may_begin: recorded.permit.is_ok(),
        places: context.state.overload_guard.places(),
    }
}

/// Starts the run of the first request with its key. Returns its response when the run has the response
/// head.
async fn begin(
    context: &Arc<ProxyContext>,
    mut recorded: RecordedRequest,
    request: Request<ReceivedBody>,
    producer: Producer<RunHead>,
    mut following: Following,
) -> Response<ProxyResponseBody> {
    let envelope = ErrorEnvelope::for_path(request.uri().path());
    recorded.exchange.record().notes.set(producer.note().clone());
    let run = run::complete(context.clone(), recorded, request, producer);
    context.state.resumption.spawn(run);
    match poll_fn(|cx| following.reader.poll_head(cx.waker())).await {
        Some(head) => following.respond(head.headers.clone(), &head, None),
        // The run has panicked.
        None => {
            GatewayError::Internal.to_response_in(envelope, None).map(ProxyResponseBody::Complete)
        }
    }
}

/// Returns, to a repeated request, the response to the earlier request with the same key, after the
/// same checks of body and model.
async fn attached(
    context: &Arc<ProxyContext>,
    mut recorded: RecordedRequest,
    mut following: Following,
    head: request::Parts,
    body: HeldBody,
) -> Response<ProxyResponseBody> {
    let record = recorded.exchange.record();
    record.notes.set(Arc::new(ResumeNote::new(ResumeOutcome::Attached)));
    let checked = body::peek_request(&head, &body, record.api).and_then(|fields| {
        record.options = context.settings.options(&head.headers, &fields);
        recorded.principal.model_route(&context.state.pool, record, &fields)
    });
    // The run has its own body, so nothing needs that of the repetition while it waits.
    drop(body);
    if let Err(error) = checked {
        return refuse(context, recorded, following.abort, head, error).await;
    }
    // The run has its own concurrency permit, so this request needs none.
    recorded.permit = Ok(None);
    let Some(run_head) = poll_fn(|cx| following.reader.poll_head(cx.waker())).await else {
        return refuse(context, recorded, following.abort, head, GatewayError::Internal).await;
    };
    if !following.skip_events(&run_head) {
        return refuse(context, recorded, following.abort, head, UNKNOWN_EVENT).await;
    }
    let RecordedRequest { mut exchange, principal, origin, .. } = recorded;
    let mut headers = run_head.headers.clone();
    headers.remove(X_REQUEST_ID);
    let own_headers = ResponseHeaders {
        request_id: &exchange.record().request_id,
        origin: origin.as_ref(),
        cors: &context.state.access.cors,
        rate_limit_status: &principal.rate_limit_status,
    };
    own_headers.complete(&mut headers);
    headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    exchange.record().status = Some(run_head.status.as_u16());
    following.respond(headers, &run_head, Some(exchange))
}

/// The request of a body that was received before.
fn request(head: request::Parts, body: HeldBody) -> Request<ReceivedBody> {
    Request::from_parts(head, ReceivedBody::new(body))
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
    let request = Request::from_parts(head, Full::default());
    handle_request(context, recorded, abort, &EarlyResponse::default(), request).await
}

/// The digest of path, query, content type and body. A repeated request gets the response to an
/// earlier request with the same key only if their digests are equal. The body is compared byte for byte:
/// the gateway does not know which differences change the answer of an engine.
fn request_digest(head: &request::Parts, body: &[u8]) -> Digest {
    let content_type = head.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    Digest::of(&[target.as_bytes(), content_type, body])
}

// === impl LastEvent ===

impl LastEvent {
    /// `None`: the client has an event that this gateway did not send, or names several.
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(LAST_EVENT_ID).iter();
        let Some(value) = values.next() else { return Some(Self::NotAsked) };
        if values.next().is_some() {
            return None;
        }
        match value.as_bytes() {
            b"" | b"0" => Some(Self::Start),
            id => EventId::parse(id).map(Self::After),
        }
    }

    /// The run of which the client has events. `None`: it has none.
    fn run(self) -> Option<RunId> {
        match self {
            Self::NotAsked | Self::Start => None,
            Self::After(event) => Some(event.run),
        }
    }

    /// The ids for the events of a run. `None`: the client asks for none.
    fn ids(self, run: RunId) -> Option<EventIds> {
        match self {
            Self::NotAsked => None,
            Self::Start => Some(EventIds::after(EventId { run, event: 0 })),
            Self::After(event) => Some(EventIds::after(event)),
        }
    }
}

// === impl Following ===

impl Following {
    fn new(reader: Reader<RunHead>, last: LastEvent, abort: ResponseAbortHandle) -> Self {
        let ids = last.ids(reader.run_id());
        Self { reader, ids, first: Bytes::new(), abort }
    }

    /// Reads the events that the client has. `false`: the response does not have all of them, so they are
    /// of another one. The client has got the events from this gateway, so the run has them now.
    fn skip_events(&mut self, head: &RunHead) -> bool {
        let Self { reader, ids: Some(ids), first, .. } = self else { return true };
        if !ids.has_skipped() && !is_event_stream(&head.headers) {
            return false;
        }
        while !ids.has_skipped() {
            let Poll::Ready(Chunk::Data(data)) = reader.poll_chunk(Waker::noop()) else {
                return false;
            };
            *first = ids.add(&data).into();
        }
        true
    }

    /// The response with these headers. `exchange`: of a request that did not begin the run.
    fn respond(
        mut self,
        headers: HeaderMap,
        head: &RunHead,
        exchange: Option<Exchange>,
    ) -> Response<ProxyResponseBody> {
        if !is_event_stream(&headers) {
            self.ids = None;
        }
        let body = FollowedBody::new(self, head.length, exchange);
        let mut response = Response::new(ProxyResponseBody::Followed(Box::new(body)));
        *response.status_mut() = head.status;
        *response.headers_mut() = headers;
        response
    }
}
