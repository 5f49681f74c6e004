//! Sends a request to the backend of its lease, and to further backends while attempts fail before
//! their first output.

use crate::backend::Lease;
use crate::proxy::admission::LeasedBackend;
use crate::proxy::attempt::{
    self, AttemptFailure, Attempts, FailedAttempt, ForwardResult, Next, OutboundAttempt,
    PreparedRequest, Search, first_output,
};
use crate::proxy::response::{Forwarded, PrefetchedResponse};
use crate::proxy::steps::Steps;
use http::Response;
use std::pin::pin;
use tokenweir_net::backend_body::BackendResponse;
use tokenweir_net::client::SendError;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::{FailoverDenialReason, RequestRecord};
use tokenweir_routing::resilience::FailureKind;

/// Sends a request to the backend in `leased`, and to further backends one after the other. Ends
/// when an attempt succeeds or when no failover is allowed. Returns the response with the lease on
/// the backend that sent it.
pub(crate) async fn send(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    steps: &mut Steps,
    mut leased: LeasedBackend,
) -> ForwardResult {
    let mut attempts = Attempts::begin(request, exchange.record());
    loop {
        // The block ends the lifetime of the attempt's values, so that they take no memory during the search
        // below.
        let failed = {
            let (lease, decision) = leased;
            let record = exchange.record();
            record.decision = Some(decision);
            record.timings.routed = Some(clock::now());
            let result = tokio::select! {
                biased;
                result = send_once(exchange, request, steps, &lease) => result,
                next = attempts.lease_when_down(&lease) => {
                    leave_down_backend(exchange, steps, &mut attempts, lease);
                    leased = next;
                    continue;
                }
            };
            let failure = match result {
                Ok(response) => {
                    steps.end_with_response(exchange, request);
                    return Ok(Forwarded::new(response, lease));
                }
                Err(failure) => failure,
            };
            let mut failed = FailedAttempt::new(failure, lease);
            match lease_next(exchange, steps, &mut attempts, &mut failed) {
                Ok(Some(next)) => {
                    steps.leave(exchange, failed.failure);
                    leased = next;
                    continue;
                }
                Ok(None) => Box::new(failed),
                Err(reason) => return end(exchange, request, steps, failed, reason),
            }
        };
        // Boxed, because few requests need the memory of this future.
        leased = match Box::pin(steps.search(exchange, &mut attempts, failed)).await {
            Search::Found(next, failed) => {
                steps.leave(exchange, failed.failure);
                next
            }
            Search::Waited(result) => result?,
            Search::NotFound(failed) => {
                let reason = FailoverDenialReason::NoOtherBackend;
                return end(exchange, request, steps, *failed, reason);
            }
        };
    }
}

/// Makes one attempt: sends the request to the leased backend, and buffers the response until its first output.
/// Returns an error if the attempt fails before that.
async fn send_once(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    steps: &mut Steps,
    lease: &Lease,
) -> Result<PrefetchedResponse, AttemptFailure> {
    let (body, usage) = request.body.for_backend(lease.backend());
    let mut attempt = OutboundAttempt {
        request,
        lease,
        body,
        is_once: false,
    };
    steps.before(exchange, &mut attempt).await;
    exchange.on_request_sent(lease.backend_feedback());
    let record = exchange.record();
    record.options.usage_injected = usage.event;
    record.options.continuous_usage_injected = usage.continuous;
    let response = receive_head(record, &attempt).await?;
    let (mut head, body) = response.into_parts();
    steps.on_head(exchange, &attempt, &head);
    headers::remove_gateway_headers(head.status, &mut head.headers);
    exchange.on_head(head.status.as_u16(), &head.headers);
    let buffering = first_output::buffer_until_first_output(exchange, head.status, body, request);
    let prefetched = buffering.await.map_err(AttemptFailure::of_deadline)?;
    let failure = first_output::classify_failure(exchange, head.status, &prefetched, request);
    let is_success = failure.is_none() && head.status.is_success();
    if !head.status.is_success() {
        let record = exchange.record();
        let source = attempt::error_source(&head.headers, &first_output::buffered(&prefetched));
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.proxy = source;
        }
    }
    if is_success && exchange.has_output_or_ended() {
        lease.backend().on_response_started(clock::now());
    }
    let response = Box::new(Response::from_parts(head, prefetched));
    match failure {
        None => Ok(response),
        Some(kind) => Err(AttemptFailure::of_response(kind, response)),
    }
}

/// Sends the request, and waits for the response head within the deadlines.
async fn receive_head(
    record: &mut RequestRecord,
    attempt: &OutboundAttempt<'_>,
) -> Result<BackendResponse, AttemptFailure> {
    let request = attempt.request;
    loop {
        let sending = pin!(attempt::send(record, attempt));
        let result = request
            .within_deadlines(sending)
            .await
            .map_err(AttemptFailure::of_deadline)?;
        match result {
            // Closing an idle connection frees a file descriptor for this request.
            Err(SendError::Exhausted(_)) if request.context.state.pool.close_idle_connection() => {}
            result => return result.map_err(|error| AttemptFailure::of_send(&error)),
        }
    }
}

/// Ends an attempt whose backend was declared down before the first output.
fn leave_down_backend(
    exchange: &mut Exchange,
    steps: &mut Steps,
    attempts: &mut Attempts<'_>,
    lease: Lease,
) {
    let mut failed = FailedAttempt::new(AttemptFailure::of_down_backend(), lease);
    // The result is ignored, because another backend is already leased.
    let _ = steps.after_failure(exchange, attempts, &mut failed);
    attempts.count(&failed);
    exchange.discard_attempt(failed.failure.kind.as_str());
}

/// Leases another backend after a failed attempt. `None`: no backend is left, and a step searches for one. The
/// error is the reason against another attempt.
fn lease_next(
    exchange: &mut Exchange,
    steps: &mut Steps,
    attempts: &mut Attempts<'_>,
    failed: &mut FailedAttempt,
) -> Result<Option<LeasedBackend>, FailoverDenialReason> {
    let next = steps.after_failure(exchange, attempts, failed);
    if !failed.failure.is_refusal() {
        failed.failure.apply_to(failed.lease.backend());
    }
    attempts.count(failed);
    if let Next::End(reason) = next {
        return Err(reason);
    }
    attempts.allow_another(exchange.record(), failed)?;
    match attempts.lease_other() {
        Ok(leased) => Ok(Some(leased)),
        Err(_) if matches!(next, Next::Search) => Ok(None),
        Err(reason) => Err(reason),
    }
}

/// Ends a request whose last attempt has failed. The client gets an earlier response that a step kept, or this
/// failure.
fn end(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    steps: &mut Steps,
    failed: FailedAttempt,
    reason: FailoverDenialReason,
) -> ForwardResult {
    let FailedAttempt {
        mut failure, lease, ..
    } = failed;
    let ends_in_stream = matches!(failure.kind, FailureKind::Died | FailureKind::Empty);
    if ends_in_stream && request.has_begun_response() {
        // Without this error, the client would get a stream that contains comments only.
        failure.fallback = Err(GatewayError::Closed);
    }
    if let Some(kept) = steps.end_with_failure(exchange, request, &failure, reason) {
        return Ok(Forwarded::new(kept, lease));
    }
    if !failure.is_refusal() && failure.kind != FailureKind::TooLong {
        exchange.record().not_retried = Some(reason);
    }
    failure.into_result(exchange, lease, reason)
}
