//! One attempt: the client's request goes to one backend, with headers for the next hop.

use super::relay::Call;
use crate::backend::Backend;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Request, Response, request};
use tokenweir_core::clock;
use tokenweir_core::dialect::Server;
use tokenweir_core::headers::{self, Outbound};
use tokenweir_core::record::{Attempt, RequestRecord};
use tokenweir_net::client::{Client, SendError, Via};
use tokenweir_net::connection::ReplicaBody;

/// Sends the request to one backend and waits for the head of its answer.
///
/// A request whose pooled connection closed as it was sent goes to the same backend once more, on a
/// new connection, if the backend cannot have executed it or may execute it twice. Every other close
/// is an error of the backend.
pub(super) async fn send(
    client: &Client,
    record: &mut RequestRecord,
    backend: &Backend,
    call: &Call<'_>,
    body: &Bytes,
) -> Result<Response<ReplicaBody>, SendError> {
    let mut via = Via::Pool;
    loop {
        // One place of this call: each one more would add its whole state to the future of a request.
        let sent = send_via(via, client, record, backend, call, body).await;
        match (sent, via) {
            (Err(SendError::Stale { was_written }), Via::Pool)
                if !(was_written && call.has_effects()) =>
            {
                via = Via::NewConnection { after_written: was_written };
            }
            // The backend had the request, and its port closed right after: it may have died of it.
            (Err(SendError::Connect(reason)), Via::NewConnection { after_written: true }) => {
                return Err(SendError::Closed(reason));
            }
            (sent, _) => return sent,
        }
    }
}

async fn send_via(
    via: Via,
    client: &Client,
    record: &mut RequestRecord,
    backend: &Backend,
    call: &Call<'_>,
    body: &Bytes,
) -> Result<Response<ReplicaBody>, SendError> {
    let span = fastrand::u64(1..);
    let request = outbound(record, backend, call.head, body, span);
    let started = clock::now();
    record.timings.sent = Some(started);
    record.attempts.push(Attempt {
        backend: backend.id.clone(),
        address: backend.address.host_and_port(),
        provider: backend.server().unwrap_or(Server::Vllm).as_str(),
        span,
        started,
        ended: None,
        status: None,
        failure: None,
    });
    let sent = client.send_via(via, call.response_headers, backend.idle(), request).await;
    if let (Err(error), Some(attempt)) = (&sent, record.attempts.last_mut()) {
        tracing::debug!(backend = %backend.id, %error, "attempt failed");
        attempt.ended = Some(clock::now());
        attempt.failure = Some(error.reason());
    }
    sent
}

/// The client's request as the backend gets it: the same bytes, with headers for the next hop.
fn outbound(
    record: &RequestRecord,
    backend: &Backend,
    head: &request::Parts,
    body: &Bytes,
    span: u64,
) -> Request<Bytes> {
    let mut request = Request::new(body.clone());
    *request.method_mut() = head.method.clone();
    if let Some(path) = head.uri.path_and_query() {
        *request.uri_mut() = backend.address.uri(path);
    }
    let mut map = head.headers.clone();
    headers::outbound(
        &mut map,
        &Outbound {
            host: backend.address.host_header(),
            request_id: &record.request_id,
            client: record.client,
        },
    );
    if let Some(key) = &backend.authorization {
        map.insert(AUTHORIZATION, key.clone());
    }
    if let Some(trace) = &record.trace {
        trace.pass_on(span, &mut map);
    }
    *request.headers_mut() = map;
    request
}
