//! Requests with an `Idempotency-Key`, whose clients may return to the response.

use crate::resumption::Resumption;
use crate::run;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, request};
use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;
use std::io;
use std::sync::Arc;
use tokenweir_gateway::proxy::access::Principal;
use tokenweir_gateway::proxy::option::{RequestOption, TakenRequest};
use tokenweir_gateway::proxy::{
    EarlyResponse, HeldBody, ProxyContext, ProxyResponse, ProxyResponseBody, ReceivedBody,
    RecordedRequest, ResponseHeaders, RunBody, handle_request, peek_request, receive_body,
};
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::{
    IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, LAST_EVENT_ID, X_REQUEST_ID,
};
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_protocol::openai::route::ApiRoute;
use tokenweir_request::error::{ErrorEnvelope, GatewayError, OptionError};
use tokenweir_request::observe::{Exchange, ResponseAbortHandle};
use tokenweir_request::runs::{
    Arrival, Digest, Entry, EventId, EventIds, Producer, Reader, RunHead, RunId, RunKey, RunNote,
    RunOutcome, RunSettings,
};

/// Maximum length of an `Idempotency-Key`, in bytes. No known service permits longer ones.
const MAX_KEY_BYTES: usize = 255;

/// The key belongs to a request with another path, query, content type or body: 422. This status and the next
/// one follow draft-ietf-httpapi-idempotency-key-header.
const OTHER_REQUEST: GatewayError = GatewayError::Option(&OptionError {
    reason: "idempotency_key",
    message: "the Idempotency-Key belongs to another request of this client: repeat that request \
              byte for byte, or use a new key",
    status: 422,
    retry_after: None,
});

/// Too many connections already get the response: 409.
const TOO_MANY_READERS: GatewayError = GatewayError::Option(&OptionError {
    reason: "idempotency_key",
    message: "too many connections get the response of this Idempotency-Key: close one, or wait",
    status: 409,
    retry_after: Some(1),
});

/// `Last-Event-ID` names no event of a response that this gateway keeps for the request: 412, because the
/// condition of the header is not met.
const UNKNOWN_EVENT: GatewayError = GatewayError::Option(&OptionError {
    reason: "last_event_id",
    message: "this gateway does not keep the response of which Last-Event-ID names an event: repeat \
              the request with Last-Event-ID: 0, and discard the events of the earlier response",
    status: 412,
    retry_after: None,
});

/// The wish of a client as stated in `Last-Event-ID`.
#[derive(Debug, Clone, Copy, Default)]
struct LastEvent {
    /// Whether the client asks for event ids. An empty value or 0 asks for those of the whole stream.
    is_asked: bool,
    /// The last event that the client received. `None`: the client received no event.
    event: Option<EventId>,
}

/// A request whose client may return to the response.
struct KeyedRequest<'a> {
    runs: &'a Resumption,
    settings: RunSettings,
    key: RunKey,
    last: LastEvent,
}

impl RequestOption for Resumption {
    /// Takes over a request that its client and its `Idempotency-Key` identify. If the request has an
    /// `Idempotency-Key` that the gateway cannot use, the record gets the reason.
    fn take_over<'a>(
        &'a self,
        recorded: &mut RecordedRequest,
        headers: &HeaderMap,
    ) -> Option<Box<dyn TakenRequest + 'a>> {
        let is_generating =
            matches!(recorded.route, Some(ApiRoute::Forward(api)) if api.generates());
        if !is_generating || recorded.configured.is_some() {
            return None;
        }
        let settings = self.settings.load().as_deref().copied();
        let Some(key) = settings.and_then(|_| usable_key(self, recorded, headers)) else {
            let names_event = |value: &HeaderValue| EventId::parse(value.as_bytes()).is_some();
            if recorded.permit.is_ok() && headers.get_all(LAST_EVENT_ID).iter().any(names_event) {
                // Without this error, the client would append the events of another response.
                recorded.permit = Err(UNKNOWN_EVENT);
            }
            return None;
        };
        let Some(last) = LastEvent::from_headers(headers) else {
            recorded.permit = Err(UNKNOWN_EVENT);
            return None;
        };
        Some(Box::new(KeyedRequest {
            runs: self,
            settings: settings?,
            key,
            last,
        }))
    }
}

/// The key of a request to a path that generates output.
fn usable_key(
    runs: &Resumption,
    recorded: &mut RecordedRequest,
    headers: &HeaderMap,
) -> Option<RunKey> {
    let key = headers.get(IDEMPOTENCY_KEY)?;
    let RecordedRequest {
        exchange,
        principal,
        ..
    } = recorded;
    let mut refuse = |outcome| {
        exchange.record().notes.set(Arc::new(RunNote::new(outcome)));
        None
    };
    if !principal.permissions.allow(Permission::Resume) {
        return refuse(RunOutcome::NotAllowed);
    }
    let is_single = headers.get_all(IDEMPOTENCY_KEY).iter().nth(1).is_none();
    if !is_single || key.is_empty() || key.len() > MAX_KEY_BYTES {
        return refuse(RunOutcome::InvalidKey);
    }
    let Some(client) = client_digest(principal, headers) else {
        return refuse(RunOutcome::NoIdentity);
    };
    let run_key = RunKey::new(client, key.as_bytes());
    may_follow(runs, recorded, &run_key).then_some(run_key)
}

/// A digest that identifies the client of a request, so that only this client can return to the response
/// after a lost connection. It is the digest of the API key's tenant and name or, on a gateway without
/// keys, that of the forwarded credentials. `None`: the request has no credentials, so anybody could be its
/// client.
fn client_digest(principal: &Principal, headers: &HeaderMap) -> Option<Digest> {
    if let Some(key) = principal.key() {
        return Some(Digest::of(&[
            key.caller.tenant.as_bytes(),
            key.caller.key.as_bytes(),
        ]));
    }
    let names = [AUTHORIZATION.as_str(), "x-api-key"];
    let values = names.iter().flat_map(|name| headers.get_all(*name));
    let values: Vec<&[u8]> = values.map(HeaderValue::as_bytes).collect();
    (!values.is_empty()).then(|| Digest::of(&values))
}

/// Whether a request with this key may begin a run or follow one. A repetition at a limit that the run
/// itself may have reached may only follow.
fn may_follow(runs: &Resumption, recorded: &mut RecordedRequest, key: &RunKey) -> bool {
    let Err(error) = &recorded.permit else {
        return true;
    };
    if !recorded.may_follow || !runs.registry.is_known(key) {
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

impl TakenRequest for KeyedRequest<'_> {
    fn respond<'a>(
        self: Box<Self>,
        context: &'a Arc<ProxyContext>,
        recorded: Box<RecordedRequest>,
        abort: ResponseAbortHandle,
        early: &'a EarlyResponse,
        request: Request<UnsyncBoxBody<Bytes, io::Error>>,
    ) -> BoxFuture<'a, ProxyResponse>
    where
        Self: 'a,
    {
        Box::pin(self.follow(context, recorded, abort, early, request))
    }
}

impl KeyedRequest<'_> {
    /// Responds to the request. The first request with a key starts the task that handles it. A later one
    /// gets the response to the first.
    async fn follow(
        self: Box<Self>,
        context: &Arc<ProxyContext>,
        mut recorded: Box<RecordedRequest>,
        abort: ResponseAbortHandle,
        early: &EarlyResponse,
        request: Request<UnsyncBoxBody<Bytes, io::Error>>,
    ) -> ProxyResponse {
        let (mut head, body) = request.into_parts();
        let RecordedRequest {
            exchange,
            principal,
            ..
        } = &mut *recorded;
        let memory = &context.state.body_memory;
        let receiving = receive_body(
            &context.settings,
            memory,
            principal,
            exchange,
            &mut head,
            body,
        );
        let body = match receiving.await {
            Ok(body) => body,
            Err(error) => return refuse(context, recorded, abort, head, error).await,
        };
        let arrival = self.arrival(context, &mut recorded, &head, &body);
        let problem = match self.runs.registry.enter(&arrival, &self.settings) {
            Entry::Begun(producer, reader) => {
                let body_of_run = self.last.body(reader, abort);
                let request = held(head, body);
                return self
                    .begin(context, recorded, request, producer, body_of_run)
                    .await;
            }
            Entry::Attached(reader) => {
                let body_of_run = self.last.body(reader, abort);
                return attached(context, recorded, body_of_run, head, body).await;
            }
            entry @ (Entry::OverLimit(_) | Entry::Unknown) => {
                if let Entry::OverLimit(limit) = entry {
                    recorded
                        .exchange
                        .record()
                        .notes
                        .set(Arc::new(RunNote::new(limit)));
                }
                return handle_request(context, recorded, abort, early, held(head, body)).await;
            }
            Entry::UnknownEvent => UNKNOWN_EVENT,
            Entry::OtherRequest => OTHER_REQUEST,
            Entry::TooManyReaders => TOO_MANY_READERS,
        };
        refuse(context, recorded, abort, head, problem).await
    }

    /// The data about the request that the registry of runs needs.
    fn arrival(
        &self,
        context: &ProxyContext,
        recorded: &mut RecordedRequest,
        head: &request::Parts,
        body: &HeldBody,
    ) -> Arrival {
        Arrival {
            key: self.key,
            request: request_digest(head, body),
            party: body.party(),
            client: recorded.exchange.record().client,
            new_id: RunId::new(fastrand::u64(..)),
            had_events_of: self.last.event.map(|event| event.run),
            may_begin: recorded.permit.is_ok(),
            places: context.state.overload_guard.places(),
        }
    }

    /// Starts the run of the first request with its key. Returns its response when the run has the response
    /// head.
    async fn begin(
        &self,
        context: &Arc<ProxyContext>,
        mut recorded: Box<RecordedRequest>,
        request: Request<ReceivedBody>,
        producer: Producer,
        mut body: RunBody,
    ) -> ProxyResponse {
        let envelope = ErrorEnvelope::for_path(request.uri().path());
        recorded
            .exchange
            .record()
            .notes
            .set(producer.note().clone());
        self.runs
            .spawn(run::complete(context.clone(), recorded, request, producer));
        match body.head().await {
            Some(head) => respond(body, &head, head.headers.clone(), None),
            // The run panicked, so it has no response.
            None => {
                ProxyResponseBody::complete(GatewayError::Internal.to_response_in(envelope, None))
            }
        }
    }
}

/// Returns, to a repeated request, the response to the earlier request with the same key, after the
/// same checks of body and model.
async fn attached(
    context: &Arc<ProxyContext>,
    mut recorded: Box<RecordedRequest>,
    mut following: RunBody,
    head: request::Parts,
    body: HeldBody,
) -> ProxyResponse {
    let record = recorded.exchange.record();
    record
        .notes
        .set(Arc::new(RunNote::new(RunOutcome::Attached)));
    let checked = peek_request(&head, &body, record.api).and_then(|fields| {
        record.options = context.settings.options(&head.headers, &fields);
        recorded
            .principal
            .model_route(&context.state.pool, record, &fields)
    });
    // The run has its own copy of the body, so the body of the repetition is dropped before the wait.
    drop(body);
    if let Err(error) = checked {
        return refuse(context, recorded, following.abort, head, error).await;
    }
    // The run has its own concurrency permit, so this request needs none.
    recorded.permit = Ok(None);
    let Some(run_head) = following.head().await else {
        return refuse(
            context,
            recorded,
            following.abort,
            head,
            GatewayError::Internal,
        )
        .await;
    };
    if !following.skip_events(&run_head) {
        return refuse(context, recorded, following.abort, head, UNKNOWN_EVENT).await;
    }
    let RecordedRequest {
        mut exchange,
        principal,
        origin,
        ..
    } = *recorded;
    let mut headers = run_head.headers.clone();
    headers.remove(X_REQUEST_ID);
    let own_headers = ResponseHeaders {
        request_id: &exchange.record().request_id,
        origin: origin.as_ref(),
        cors: &context.state.access.cors,
        principal: &principal,
    };
    own_headers.complete(&mut headers);
    headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    exchange.record().status = Some(run_head.status.as_u16());
    respond(following, &run_head, headers, Some(exchange))
}

fn held(head: request::Parts, body: HeldBody) -> Request<ReceivedBody> {
    Request::from_parts(head, ReceivedBody::new(body))
}

/// Answers a request with an error.
async fn refuse(
    context: &Arc<ProxyContext>,
    mut recorded: Box<RecordedRequest>,
    abort: ResponseAbortHandle,
    head: request::Parts,
    error: GatewayError,
) -> ProxyResponse {
    recorded.permit = Err(error);
    let request = Request::from_parts(head, Full::default());
    handle_request(context, recorded, abort, &EarlyResponse::default(), request).await
}

/// The response of a run with these headers. `exchange`: the exchange of a request that did not begin the run.
fn respond(
    mut body: RunBody,
    head: &RunHead,
    headers: HeaderMap,
    exchange: Option<Exchange>,
) -> ProxyResponse {
    body.begin(head, exchange);
    let mut response = Response::new(ProxyResponseBody::Followed(Box::new(body)));
    *response.status_mut() = head.status;
    *response.headers_mut() = headers;
    Box::new(response)
}

/// The digest of path, query, content type and body. A repeated request gets the response to an
/// earlier request with the same key only if their digests are equal. The body is compared byte for byte:
/// the gateway does not know which differences change the answer of an engine.
fn request_digest(head: &request::Parts, body: &[u8]) -> Digest {
    let content_type = head
        .headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let target = head
        .uri
        .path_and_query()
        .map_or("", |target| target.as_str());
    Digest::of(&[target.as_bytes(), content_type, body])
}

impl LastEvent {
    /// `None`: the header names several events, or an event that this gateway did not send.
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(LAST_EVENT_ID).iter();
        let Some(value) = values.next() else {
            return Some(Self::default());
        };
        let is_asked = values.next().is_none();
        match value.as_bytes() {
            _ if !is_asked => None,
            b"" | b"0" => Some(Self {
                is_asked,
                event: None,
            }),
            id => Some(Self {
                is_asked,
                event: Some(EventId::parse(id)?),
            }),
        }
    }

    /// The body that `reader` reads, with the event ids that the client asks for.
    fn body(self, reader: Reader, abort: ResponseAbortHandle) -> RunBody {
        let start = EventId {
            run: reader.run_id(),
            event: 0,
        };
        let ids = self
            .is_asked
            .then(|| EventIds::after(self.event.unwrap_or(start)));
        RunBody::new(reader, ids, abort)
    }
}
