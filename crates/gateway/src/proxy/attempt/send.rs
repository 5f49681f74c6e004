//! Sends the client's request to one backend, with headers that are rewritten for the backend.

use super::outbound::OutboundRequest;
use super::prepared::PreparedRequest;
use crate::backend::{Backend, Lease};
use bytes::Bytes;
use http::HeaderValue;
use http::header::{CONNECTION, UPGRADE};
use tokenweir_engine::dialect::EngineKind;
use tokenweir_net::backend_body::BackendResponse;
use tokenweir_net::client::{ConnectionSource, HttpClient, SendError};
use tokenweir_net::request_stream::RequestStream;
use tokenweir_protocol::clock;
use tokenweir_protocol::http1::{RequestFraming, websocket};
use tokenweir_request::record::{Attempt, RequestRecord};

/// An attempt whose request has not been sent.
pub struct OutboundAttempt<'a> {
    /// The request, which all its attempts share.
    pub request: &'a PreparedRequest<'a>,
    /// The lease on the backend that gets the request.
    pub lease: &'a Lease,
    /// The body with the edits for this backend.
    pub body: Bytes,
    /// Whether only one engine may receive the body, and only once. Such an attempt uses a new connection.
    pub is_once: bool,
}

/// Sends the request to one backend and waits for the response head.
///
/// If a pooled connection closes before a byte of the response, the request is sent to the same backend once
/// more, on a new connection, because the backend may have closed the idle connection before the request
/// arrived. This requires that the backend cannot have executed the request, or that the request has no side
/// effects. Any other close of a connection is an error of the backend.
pub(crate) async fn send(
    record: &mut RequestRecord,
    attempt: &OutboundAttempt<'_>,
) -> Result<BackendResponse, SendError> {
    let mut via = if attempt.is_once {
        ConnectionSource::New
    } else {
        ConnectionSource::Pool
    };
    // Whether the whole request had been written to the pooled connection before it was closed.
    let mut was_written = false;
    loop {
        // `send_via` is awaited only here, because each further place would add its whole state to this future.
        let result = send_via(via, record, attempt, None).await;
        match result {
            Err(SendError::StaleConnection {
                was_request_written,
            }) if via == ConnectionSource::Pool
                && !(was_request_written && attempt.request.has_side_effects()) =>
            {
                via = ConnectionSource::New;
                was_written = was_request_written;
            }
            // The backend got the request and now accepts no connection, so the request may have crashed the
            // backend.
            Err(SendError::Connect(reason)) if was_written => {
                return Err(SendError::Closed(reason));
            }
            result => return result,
        }
    }
}

/// Sends the request to one backend over a connection from the source `via` and waits for the response head.
/// `stream`: the body, unless the attempt contains it.
pub(crate) async fn send_via(
    via: ConnectionSource,
    record: &mut RequestRecord,
    attempt: &OutboundAttempt<'_>,
    stream: Option<RequestStream>,
) -> Result<BackendResponse, SendError> {
    let OutboundAttempt {
        request: prepared,
        lease,
        body,
        ..
    } = attempt;
    let backend = lease.backend();
    let span_id = fastrand::u64(1..);
    let mut request = prepared.outbound(body).build(record, lease, span_id);
    if stream
        .as_ref()
        .is_some_and(|stream| stream.framing == RequestFraming::Upgrade)
    {
        request
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, websocket::PROTOCOL);
    }
    let attempt = new_attempt(backend, span_id);
    record.timings.sent = Some(attempt.started);
    // Reserves one element only: most requests have one attempt, and the record keeps the memory while a stream
    // is open.
    record.attempts.reserve_exact(1);
    record.attempts.push(attempt);
    let client = &prepared.context.backend_client;
    let result = client
        .send_via(
            via,
            prepared.response_headers_timeout,
            &backend.idle_pool,
            request,
            stream,
        )
        .await;
    if let (Err(error), Some(attempt)) = (&result, record.attempts.last_mut()) {
        tracing::debug!(backend = %backend.identity.id, %error, "the attempt on this backend failed");
        attempt.ended = Some(clock::now());
        attempt.failure = Some(error.reason());
    }
    result
}

/// Sends a request that the gateway derived from the client's request, such as a prefill leg, on a new
/// connection. Returns the attempt for the record, and the future of the response.
pub fn send_apart(
    client: &HttpClient,
    record: &RequestRecord,
    lease: &Lease,
    outbound: &OutboundRequest<'_>,
) -> (
    Attempt,
    impl Future<Output = Result<BackendResponse, SendError>> + Send + use<>,
) {
    let span_id = fastrand::u64(1..);
    let request = outbound.build(record, lease, span_id);
    let client = client.clone();
    let backend = lease.backend().clone();
    let timeout = outbound.headers_timeout;
    let attempt = new_attempt(&backend, span_id);
    let response = async move {
        client
            .send_via(
                ConnectionSource::New,
                timeout,
                &backend.idle_pool,
                request,
                None,
            )
            .await
    };
    (attempt, response)
}

fn new_attempt(backend: &Backend, span_id: u64) -> Attempt {
    Attempt {
        backend: backend.identity.id.clone(),
        address: backend.identity.address.host_and_port(),
        provider: backend
            .health
            .server_kind()
            .unwrap_or(EngineKind::Vllm)
            .as_str(),
        span_id,
        started: clock::now(),
        ended: None,
        status: None,
        failure: None,
        proxy: None,
        engine_error: None,
    }
}
