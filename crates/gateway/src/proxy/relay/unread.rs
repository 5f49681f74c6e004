//! Sends a request whose body the gateway does not store: once, without failover.

use crate::proxy::admission::LeasedBackend;
use crate::proxy::attempt::{
    self, AttemptFailure, ForwardResult, OutboundAttempt, PreparedRequest, first_output,
};
use crate::proxy::request::ForwardedBody;
use crate::proxy::response::{Forwarded, PrefetchedResponse};
use bytes::Bytes;
use http::{Response, StatusCode};
use std::pin::pin;
use tokenweir_net::backend_body::BackendResponse;
use tokenweir_net::client::{ConnectionSource, SendError};
use tokenweir_net::request_stream::RequestStream;
use tokenweir_protocol::{clock, headers};
use tokenweir_request::observe::{Exchange, PrefetchedBody};
use tokenweir_request::record::FailoverDenialReason;
use tokenweir_routing::resilience::BreakerAction;

/// Sends a request with the body `stream` to the leased backend. Returns the response, with its body unread,
/// and the lease.
pub(crate) async fn send(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    stream: RequestStream,
    leased: LeasedBackend,
) -> ForwardResult {
    let (lease, decision) = leased;
    let upload = stream.upload();
    exchange.on_request_sent(lease.backend_feedback());
    let record = exchange.record();
    record.decision = Some(decision);
    record.timings.routed = Some(clock::now());
    let attempt = OutboundAttempt {
        request,
        lease: &lease,
        body: Bytes::new(),
        is_once: true,
    };
    // A new connection, because a pooled connection that closes would lose a part of the body.
    let sending = attempt::send_via(ConnectionSource::New, record, &attempt, Some(stream));
    let sent = request.within_deadlines(pin!(sending)).await;
    let failure = match sent {
        Ok(Ok(response)) => match classify(exchange, request, response) {
            Ok(response) => {
                if response.status().is_success() {
                    lease.backend().on_response_started(clock::now());
                }
                return Ok(Forwarded::new(response, lease));
            }
            Err(failure) => failure,
        },
        Ok(Err(SendError::RequestBody(error))) => {
            exchange.discard_attempt("request_body");
            return Err(ForwardedBody::<()>::gateway_error(&error));
        }
        Ok(Err(error)) => AttemptFailure::of_send(&error),
        Err(deadline) => AttemptFailure::of_deadline(deadline),
    };
    // A client that pauses its upload can cause a timeout at the backend. So while the upload is incomplete,
    // failures do not count for the circuit breaker.
    let is_held = upload.is_some_and(|upload| !upload.is_ended.get());
    if !is_held || failure.kind.effect() != BreakerAction::CountFailure {
        failure.apply_to(lease.backend());
    }
    let reason = FailoverDenialReason::NotRetryable;
    exchange.record().not_retried = Some(reason);
    failure.into_result(exchange, lease, reason)
}

/// Processes the head of the response. Fails if the response shows that the backend failed.
fn classify(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    response: BackendResponse,
) -> Result<PrefetchedResponse, AttemptFailure> {
    let (mut head, body) = response.into_parts();
    headers::remove_gateway_headers(head.status, &mut head.headers);
    exchange.on_head(head.status.as_u16(), &head.headers);
    let body = PrefetchedBody::new(body);
    let kind = if head.status == StatusCode::SWITCHING_PROTOCOLS {
        None
    } else {
        // Since the body is not stored, the gateway cannot ask a peer whether it would refuse the request too.
        first_output::classify_failure(exchange, head.status, &body, request)
            .filter(|kind| !kind.is_judged_by_peers())
    };
    let response = Box::new(Response::from_parts(head, body));
    match kind {
        None => Ok(response),
        Some(kind) => Err(AttemptFailure::of_response(kind, response)),
    }
}
