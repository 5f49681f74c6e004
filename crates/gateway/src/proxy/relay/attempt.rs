//! One attempt: sends the client's request to one backend, with headers that are rewritten for the
//! backend.

use crate::backend::pool::BackendRequirements;
use crate::backend::{Backend, Lease};
use crate::proxy::context::ProxyContext;
use crate::proxy::request::deadline::{AttemptDeadlines, ResponseDeadline};
use crate::proxy::request::upstream_body::UpstreamBody;
use crate::proxy::response::EarlyResponse;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, UPGRADE, VIA};
use http::{HeaderValue, Request, Response, request};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_engine::dialect::EngineKind;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_net::client::{ConnectionSource, HttpClient, SendError};
use tokenweir_net::request_stream::RequestStream;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::{self, UpstreamHeaders, X_DATA_PARALLEL_RANK};
use tokenweir_protocol::http1::{RequestFraming, websocket};
use tokenweir_protocol::openai::request_fields::RequestFields;
use tokenweir_request::record::{Attempt, RequestRecord};
use tokenweir_routing::PromptFingerprint;

/// A client request that is read and checked, and can be sent to a backend.
pub(crate) struct PreparedRequest<'a> {
    /// The settings and the state that all requests share.
    pub(crate) context: &'a ProxyContext,
    pub(crate) head: &'a request::Parts,
    /// The fields that were read from the body.
    pub(crate) fields: &'a RequestFields,
    pub(crate) body: UpstreamBody,
    pub(crate) requirements: &'a BackendRequirements<'a>,
    /// The deadlines until the response head is sent to the client.
    /// [`PreparedRequest::current_deadlines`] returns those that still apply.
    pub(crate) deadlines: AttemptDeadlines,
    /// The model name that the backends use. `None`: the request names no model.
    pub(crate) backend_model: Option<&'a str>,
    /// Whether the request is about a stored response. A backend that does not have it answers 404,
    /// and another backend may have it.
    pub(crate) is_lookup: bool,
    /// The response that can begin before its backend is decided. `None`: this response cannot
    /// begin early.
    pub(crate) early: Option<&'a EarlyResponse>,
    /// Timeout for the response head, from the route. `None`: the default of the HTTP client.
    pub(crate) response_headers_timeout: Option<Duration>,
}

impl PreparedRequest<'_> {
    /// Whether the request may have side effects besides its response. The gateway lets at most one
    /// backend execute such a request.
    pub(crate) fn has_side_effects(&self) -> bool {
        self.fields.has_effects(self.body.original())
    }

    /// The deadlines that apply now. The read timeout that the client announced no longer applies
    /// when the gateway has sent bytes, such as comments, before the response.
    pub(crate) fn current_deadlines(&self) -> AttemptDeadlines {
        let has_begun = self.early.is_some_and(EarlyResponse::has_begun);
        if has_begun { self.deadlines.without_client() } else { self.deadlines }
    }

    /// Awaits `future` within the deadlines. Returns the deadline that passes first as the error.
    /// `future` is passed as a pinned reference: a future passed by value would take memory for each
    /// place that awaits it, and again for the argument.
    pub(super) async fn within_deadlines<T>(
        &self,
        mut future: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, ResponseDeadline> {
        while let Some(deadline) = self.current_deadlines().next() {
            let result = tokio::time::timeout_at(deadline.at.into(), future.as_mut()).await;
            if let Ok(output) = result {
                return Ok(output);
            }
            if self.current_deadlines().passed(clock::now()).is_some() {
                return Err(deadline);
            }
        }
        Ok(future.await)
    }
}

/// Sends the request to one backend and waits for the response head.
///
/// If a pooled connection closes before a byte of the response, the request is sent to the same backend once
/// more, on a new connection, because the backend may have closed the idle connection before the request
/// arrived. This requires that the backend cannot have executed the request, or that the request has no
/// side effects. Any other close of a connection is an error of the backend. `is_once`: only
/// one engine may receive the body, and only once. Such a request is sent on a new connection at once.
pub(super) async fn send(
    record: &mut RequestRecord,
    lease: &Lease,
    prepared: &PreparedRequest<'_>,
    (body, is_once): (&Bytes, bool),
) -> Result<Response<BackendBody>, SendError> {
    let mut via = if is_once { ConnectionSource::New } else { ConnectionSource::Pool };
    // Whether the whole request had been written to the pooled connection before it was closed.
    let mut was_written = false;
    loop {
        // This is the only place that awaits `send_via`: each further place would add the whole
        // state of `send_via` to this future.
        let result = send_via(via, record, lease, prepared, (body, None)).await;
        match result {
            Err(SendError::StaleConnection { was_request_written })
                if via == ConnectionSource::Pool
                    && !(was_request_written && prepared.has_side_effects()) =>
            {
                (via, was_written) = (ConnectionSource::New, was_request_written);
            }
            // The backend received the request and now accepts no connection: the request may have
            // crashed the backend.
            Err(SendError::Connect(reason)) if was_written => {
                return Err(SendError::Closed(reason));
            }
            result => return result,
        }
    }
}

/// Sends the request to one backend over a connection from the source `via` and waits for the response
/// head. `stream`: the body, if it is not in `body`.
pub(super) async fn send_via(
    via: ConnectionSource,
    record: &mut RequestRecord,
    lease: &Lease,
    prepared: &PreparedRequest<'_>,
    (body, stream): (&Bytes, Option<RequestStream>),
) -> Result<Response<BackendBody>, SendError> {
    let backend = lease.backend();
    let (head, prompt) = (prepared.head, prepared.requirements.prompt);
    let span_id = fastrand::u64(1..);
    let mut request = build_outbound_request(record, lease, (head, prompt), body, span_id);
    if stream.as_ref().is_some_and(|stream| stream.framing == RequestFraming::Upgrade) {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, websocket::PROTOCOL);
    }
    let attempt = new_attempt(backend, span_id);
    record.timings.sent = Some(attempt.started);
    // The record keeps this memory while a stream is open, and most requests have one attempt.
    record.attempts.reserve_exact(1);
    record.attempts.push(attempt);
    let client = &prepared.context.backend_client;
    let result = client
        .send_via(via, prepared.response_headers_timeout, &backend.idle_pool, request, stream)
        .await;
    if let (Err(error), Some(attempt)) = (&result, record.attempts.last_mut()) {
        tracing::debug!(backend = %backend.identity.id, %error, "the attempt on this backend failed");
        attempt.ended = Some(clock::now());
        attempt.failure = Some(error.reason());
    }
    result
}

/// Sends a request that the gateway made from that of the client, such as a prefill leg, on a new
/// connection. Returns the attempt for the record, and the future of the response.
pub(super) fn send_apart(
    client: &HttpClient,
    record: &RequestRecord,
    lease: &Lease,
    head_and_prompt: (&request::Parts, &Arc<PromptFingerprint>),
    body: &Bytes,
    timeout: Option<Duration>,
) -> (Attempt, impl Future<Output = Result<Response<BackendBody>, SendError>> + Send + 'static) {
    let span_id = fastrand::u64(1..);
    let request = build_outbound_request(record, lease, head_and_prompt, body, span_id);
    let (client, backend) = (client.clone(), lease.backend().clone());
    let attempt = new_attempt(&backend, span_id);
    let response = async move {
        client.send_via(ConnectionSource::New, timeout, &backend.idle_pool, request, None).await
    };
    (attempt, response)
}

fn new_attempt(backend: &Backend, span_id: u64) -> Attempt {
    Attempt {
        backend: backend.identity.id.clone(),
        address: backend.identity.address.host_and_port(),
        provider: backend.health.server_kind().unwrap_or(EngineKind::Vllm).as_str(),
        span_id,
        started: clock::now(),
        ended: None,
        status: None,
        failure: None,
    }
}

/// Number of headers that [`build_outbound_request`] adds to most requests: `Via`, and three headers of
/// the trace context.
const ADDED_HEADERS: usize = 4;

/// Builds the request for the backend: the method and path of the client request, its headers
/// rewritten for the backend, and `body`. `span_id` is the id of the trace span of the attempt.
fn build_outbound_request(
    record: &RequestRecord,
    lease: &Lease,
    (head, prompt): (&request::Parts, &Arc<PromptFingerprint>),
    body: &Bytes,
    span_id: u64,
) -> Request<Bytes> {
    let backend = lease.backend();
    let mut request = Request::new(body.clone());
    *request.method_mut() = head.method.clone();
    if let Some(path) = head.uri.path_and_query() {
        *request.uri_mut() = backend.identity.address.uri(path);
    }
    let upstream = UpstreamHeaders {
        host: backend.identity.address.host_header(),
        request_id: &record.request_id,
        client_ip: record.client,
    };
    let mut outbound = headers::upstream_request_headers(&head.headers, &upstream, ADDED_HEADERS);
    if let Some(key) = &backend.identity.authorization {
        outbound.insert(AUTHORIZATION, key.clone());
    }
    if let Some(session_id) = lease.follow_blocks(prompt) {
        headers::set_session_id(&mut outbound, session_id);
    }
    if let Some(hop) = backend.hop() {
        outbound.append(VIA, hop.clone());
    }
    if let Some(rank) = lease.rank_header() {
        outbound.insert(X_DATA_PARALLEL_RANK, rank.clone());
    }
    if let Some(trace) = &record.trace {
        trace.inject(span_id, &mut outbound);
    }
    *request.headers_mut() = outbound;
    request
}
