//! One attempt: the client's request goes to one replica, with headers for the next hop.

use crate::backend::client::{Client, SendError};
use crate::backend::dialect::Server;
use crate::backend::{Backend, ReplicaBody};
use crate::clock;
use crate::headers::{self, Outbound};
use crate::record::{Attempt, RequestRecord};
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Request, Response, request};
use std::time::Duration;

/// Replays of a request whose kept connection was found dead, before it counts as a failure.
const MAX_REPLAYS: u32 = 3;

/// Sends the request to one replica and waits for the head of its answer, up to a limit of its own if
/// it has one.
pub(super) async fn send(
    client: &Client,
    record: &mut RequestRecord,
    backend: &Backend,
    head: &request::Parts,
    body: &Bytes,
    limit: Option<Duration>,
) -> Result<Response<ReplicaBody>, SendError> {
    for _ in 0..=MAX_REPLAYS {
        let span = fastrand::u64(1..);
        let request = outbound(record, backend, head, body, span);
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
        let result = match limit {
            Some(limit) => client.send_within(limit, backend.idle(), request).await,
            None => client.send(backend.idle(), request).await,
        };
        if let (Err(error), Some(attempt)) = (&result, record.attempts.last_mut()) {
            tracing::debug!(backend = %backend.id, %error, "attempt failed");
            attempt.ended = Some(clock::now());
            attempt.failure = Some(error.reason());
        }
        match result {
            // The replica has not seen it: the connection had died while it was kept.
            Err(SendError::Stale) => {}
            result => return result,
        }
    }
    Err(SendError::Stale)
}

/// The client's request as the replica gets it: the same bytes, with headers for the next hop.
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
