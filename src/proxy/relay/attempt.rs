//! One attempt: the client's request goes to one backend, with headers for the next hop.

use crate::backend::Backend;
use crate::backend::pool::BackendRequirements;
use crate::proxy::request::deadline::FirstOutputDeadline;
use crate::proxy::request::upstream_body::UpstreamBody;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Request, Response, request};
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::dialect::EngineKind;
use tokenweir_core::headers::{self, UpstreamHeaders};
use tokenweir_core::openai::request_fields::RequestFields;
use tokenweir_core::record::{Attempt, RequestRecord};
use tokenweir_net::backend_body::BackendBody;
use tokenweir_net::client::{ConnectionSource, HttpClient, SendError};

/// A request that is ready to be sent.
pub(crate) struct PreparedRequest<'a> {
    pub(crate) head: &'a request::Parts,
    pub(crate) peek: &'a RequestFields,
    pub(crate) body: UpstreamBody,
    pub(crate) requirements: BackendRequirements<'a>,
    pub(crate) deadline: Option<FirstOutputDeadline>,
    /// The name of the model at the backend, if the request names a model.
    pub(crate) backend_model: Option<&'a str>,
    /// Timeout of the response head, if the route has its own. `None`: the default.
    pub(crate) response_headers_timeout: Option<Duration>,
}

impl PreparedRequest<'_> {
    /// Whether the request may have effects beyond its answer, so that it is executed at most once.
    pub(crate) fn has_side_effects(&self) -> bool {
        self.peek.has_effects(self.body.original())
    }
}

/// Sends the request to one backend and waits for the response head.
///
/// A request whose pooled connection closed as it was sent goes to the same backend once more, on a
/// new connection, if the backend cannot have executed it or may execute it twice. Every other
/// close is an error of the backend.
pub(super) async fn send(
    client: &HttpClient,
    record: &mut RequestRecord,
    backend: &Backend,
    call: &PreparedRequest<'_>,
    body: &Bytes,
) -> Result<Response<BackendBody>, SendError> {
    let mut via = ConnectionSource::Pool;
    loop {
        // The only call of `send_via`: each further call would add its whole state to the future.
        let result = send_via(via, client, record, backend, call, body).await;
        match (result, via) {
            (
                Err(SendError::StaleConnection { was_request_written: was_written }),
                ConnectionSource::Pool,
            ) if !(was_written && call.has_side_effects()) => {
                via = ConnectionSource::NewConnection { after_request_written: was_written };
            }
            // The backend had received the request, and then accepts no connection any more: the
            // request may have crashed it.
            (
                Err(SendError::Connect(reason)),
                ConnectionSource::NewConnection { after_request_written: true },
            ) => {
                return Err(SendError::Closed(reason));
            }
            (result, _) => return result,
        }
    }
}

async fn send_via(
    via: ConnectionSource,
    client: &HttpClient,
    record: &mut RequestRecord,
    backend: &Backend,
    call: &PreparedRequest<'_>,
    body: &Bytes,
) -> Result<Response<BackendBody>, SendError> {
    let span = fastrand::u64(1..);
    let request = build_outbound_request(record, backend, call.head, body, span);
    let started = clock::now();
    record.timings.sent = Some(started);
    record.attempts.push(Attempt {
        backend: backend.identity.id.clone(),
        address: backend.identity.address.host_and_port(),
        provider: backend.health.server_kind().unwrap_or(EngineKind::Vllm).as_str(),
        span_id: span,
        started,
        ended: None,
        status: None,
        failure: None,
    });
    let result =
        client.send_via(via, call.response_headers_timeout, &backend.idle_pool, request).await;
    if let (Err(error), Some(attempt)) = (&result, record.attempts.last_mut()) {
        tracing::debug!(backend = %backend.identity.id, %error, "the attempt on this backend failed");
        attempt.ended = Some(clock::now());
        attempt.failure = Some(error.reason());
    }
    result
}

/// Builds the request for the backend: the path and headers of the client request, with the headers
/// rewritten for the next hop, and the body.
fn build_outbound_request(
    record: &RequestRecord,
    backend: &Backend,
    head: &request::Parts,
    body: &Bytes,
    span: u64,
) -> Request<Bytes> {
    let mut request = Request::new(body.clone());
    *request.method_mut() = head.method.clone();
    if let Some(path) = head.uri.path_and_query() {
        *request.uri_mut() = backend.identity.address.uri(path);
    }
    let mut outbound = head.headers.clone();
    headers::rewrite_request_headers(
        &mut outbound,
        &UpstreamHeaders {
            host: backend.identity.address.host_header(),
            request_id: &record.request_id,
            client_ip: record.client,
        },
    );
    if let Some(key) = &backend.identity.authorization {
        outbound.insert(AUTHORIZATION, key.clone());
    }
    if let Some(trace) = &record.trace {
        trace.inject(span, &mut outbound);
    }
    *request.headers_mut() = outbound;
    request
}
