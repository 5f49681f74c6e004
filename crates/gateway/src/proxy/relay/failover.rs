//! Sends a request to the backend of its lease, and to further backends while attempts fail before
//! their first output.

use super::attempt::{self, PreparedRequest};
use super::attempt_failure::{AttemptFailure, PrefetchedResponse, send_failure};
use super::first_output::{self, contains_any};
use super::length;
use super::moved_model::{self, NotFollowed, UnknownModel};
use super::prefill_leg::{self, Legs};
use super::refusals::Refusals;
use super::waiting;
use crate::backend::pool::BackendRequirements;
use crate::backend::{Backend, Lease};
use crate::proxy::request::deadline::ResponseDeadline;
use crate::proxy::response::EarlyResponse;
use crate::proxy::retry::{self, FailedRequest, RetryBudgetShare};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_net::client::SendError;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers;
use tokenweir_request::continuation::ContinuationRefusal;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::{Exchange, PrefetchedBody};
use tokenweir_request::record::{FailoverDenialReason, RoutingDecision};
use tokenweir_routing::resilience::{FailoverPolicy, FailureKind};

/// Time between two tries to lease another backend for a request whose backend is down.
const FAILOVER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The response of a backend, with the lease on the backend, or the error for the client.
pub(crate) type ForwardResult = Result<(PrefetchedResponse, Lease), GatewayError>;

/// What follows a failed attempt.
enum NextStep {
    /// An attempt at this backend.
    Send((Lease, Arc<RoutingDecision>)),
    /// A wait until a backend can serve the request.
    Wait,
    /// The model lists are read again, because the backend does not know the model.
    ReadModels(Box<UnknownModel>),
}

/// Sends a request to the backend in `leased`, and to further backends one after the other. Ends
/// when an attempt succeeds or when no failover is allowed. Returns the response with the lease on
/// the backend that sent it.
pub(crate) async fn send(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    mut leased: (Lease, Arc<RoutingDecision>),
) -> ForwardResult {
    let (context, share) = (request.context, RetryBudgetShare::for_record(exchange.record()));
    context.retry.deposit(share);
    let mut tried = Vec::new();
    let (mut failed_attempts, mut waits_left) = (0, context.retry.settings.attempts);
    // The context length of a backend that refused the request as too long. Only backends with a
    // longer context can help.
    let mut longer_than = None;
    let (mut refusals, mut legs) = (Refusals::new(request.requirements.prompt), Legs::default());
    loop {
        // In a block, so that the values of the attempt take no memory while the request waits below.
        let next = {
            let (lease, decision) = leased;
            let record = exchange.record();
            record.decision = Some(decision);
            record.timings.routed = Some(clock::now());
            let result = tokio::select! {
                biased;
                result = send_to_backend(exchange, (request, &lease), &mut legs) => result,
                next = failover_when_down(
                    share, (request, longer_than), &lease, &tried, failed_attempts,
                ) => {
                    exchange.discard_attempt(FailureKind::Down.as_str());
                    tried.push(lease.backend().clone());
                    failed_attempts += 1;
                    waits_left = 0;
                    leased = next;
                    continue;
                }
            };
            let failure = match result {
                Ok(response) => {
                    refusals.end_with_response(exchange, &context.retry, clock::now);
                    return Ok((response, lease));
                }
                Err(failure) => failure,
            };
            let kind = failure.kind;
            let is_refusal = refusals.record(exchange, &failure, lease.backend(), share);
            if kind == FailureKind::UnknownModel {
                lease.backend().health.mark_models_stale();
            }
            if !is_refusal {
                failure.apply_to(lease.backend());
            }
            if kind == FailureKind::TooLong {
                longer_than = length::learn(&failure, (request, &lease));
            }
            if !waiting::is_allowed_after(kind) {
                waits_left = 0;
            }
            exclude_failed(&mut tried, &lease, kind);
            failed_attempts += u32::from(kind.elsewhere() != FailoverPolicy::Always);
            let failed = failed_request(kind, failed_attempts, tried.len(), request);
            let asking = if is_refusal {
                refusals.should_ask_peer(&context.retry, clock::now())
            } else {
                check_poison(exchange, &lease, kind)
            };
            let allowed = asking.and_then(|()| context.retry.allow(share, failed));
            let next = allowed.and_then(|()| waiting::lease_other(request, longer_than, &tried));
            match next {
                Ok(next) => {
                    if is_refusal {
                        refusals.set_aside(exchange, failure);
                    } else {
                        exchange.discard_attempt(kind.as_str());
                    }
                    NextStep::Send(next)
                }
                Err(FailoverDenialReason::NoOtherBackend) if kind == FailureKind::UnknownModel => {
                    NextStep::ReadModels(Box::new(UnknownModel { failure, lease }))
                }
                Err(FailoverDenialReason::NoOtherBackend)
                    if waits_left > 0
                        && kind != FailureKind::Busy
                        && waiting::is_useful_after(kind, request, longer_than) =>
                {
                    waits_left -= 1;
                    tried.clear();
                    exchange.discard_attempt(kind.as_str());
                    NextStep::Wait
                }
                Err(reason) => {
                    return end(exchange, request, refusals, (failure, lease), reason);
                }
            }
        };
        // Boxed, because few requests need the memory of these futures.
        leased = match next {
            NextStep::Send(next) => next,
            NextStep::Wait => Box::pin(waiting::wait(exchange, request, longer_than)).await?,
            NextStep::ReadModels(unknown) => {
                let next = follow_model(exchange, request, &tried, &mut refusals, unknown);
                match Box::pin(next).await {
                    Ok(next) => next,
                    Err(result) => return *result,
                }
            }
        };
    }
}

/// Leases a backend that lists the model after the model lists were read again. Otherwise fails with the
/// result for the client.
async fn follow_model(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    tried: &[Arc<Backend>],
    refusals: &mut Refusals,
    unknown: Box<UnknownModel>,
) -> Result<(Lease, Arc<RoutingDecision>), Box<ForwardResult>> {
    match moved_model::follow(exchange, request, tried, refusals, unknown).await {
        Ok(next) => Ok(next),
        Err(NotFollowed::Waited(error)) => Err(Box::new(Err(error))),
        Err(NotFollowed::Unknown(unknown)) => {
            let UnknownModel { failure, lease } = *unknown;
            let reason = FailoverDenialReason::NoOtherBackend;
            let refusals = std::mem::take(refusals);
            Err(Box::new(end(exchange, request, refusals, (failure, lease), reason)))
        }
    }
}

/// Ends a request whose last attempt has failed: with the first refusal that was set aside, or with this
/// failure.
fn end(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    refusals: Refusals,
    (failure, lease): (AttemptFailure, Lease),
    reason: FailoverDenialReason,
) -> ForwardResult {
    let retry = &request.context.retry;
    if let Some(first) = refusals.end_with_failure(exchange, &failure, retry, clock::now()) {
        return Ok((*first, lease));
    }
    let is_refusal = failure.kind.is_judged_by_peers() && failure.fallback.is_ok();
    if !is_refusal && failure.kind != FailureKind::TooLong {
        exchange.record().not_retried = Some(reason);
    }
    give_up(exchange, reported_in_stream(failure, request), lease, reason)
}

/// Excludes the backend of a failed attempt from further attempts. If the failure concerns an optional part
/// alone, the backend may get the request again without that part.
fn exclude_failed(tried: &mut Vec<Arc<Backend>>, lease: &Lease, kind: FailureKind) {
    let backend = lease.backend();
    if !backend.facets.on_failure(kind, &backend.identity.id) {
        tried.push(backend.clone());
    }
}

fn failed_request(
    kind: FailureKind,
    failed_attempts: u32,
    tried_backends: usize,
    request: &PreparedRequest<'_>,
) -> FailedRequest {
    FailedRequest {
        kind,
        failed_attempts,
        tried_backends,
        has_side_effects: !kind.precludes_effects() && request.has_side_effects(),
    }
}

/// Fails if the request may be the cause of the crashes of several backends.
fn check_poison(
    exchange: &mut Exchange,
    lease: &Lease,
    kind: FailureKind,
) -> Result<(), FailoverDenialReason> {
    let backend = &lease.backend().identity.id;
    if retry::is_poison(exchange.record(), backend, kind, clock::now()) {
        return Err(FailoverDenialReason::PoisonRequest);
    }
    Ok(())
}

/// Waits until the health checker has declared the leased backend down and the request may fail
/// over, and returns the lease on another backend. A stuck backend closes no connection, so without
/// this function the request would wait until its own timeout.
///
/// While no other backend is available, this function keeps waiting and the attempt continues,
/// because its backend may recover.
async fn failover_when_down(
    share: RetryBudgetShare,
    (request, longer_than): (&PreparedRequest<'_>, Option<u32>),
    lease: &Lease,
    tried: &[Arc<Backend>],
    failed_attempts: u32,
) -> (Lease, Arc<RoutingDecision>) {
    loop {
        lease.backend().health.wait_declared_down().await;
        let tried = [tried, std::slice::from_ref(lease.backend())].concat();
        let requirements = BackendRequirements { longer_than, ..*request.requirements };
        let next = request.context.state.pool.lease(requirements, &tried, clock::now());
        // A backend whose engine also seems stuck would be no better.
        if let Some(next) = next.ok().filter(|(lease, _)| !lease.backend().is_last_resort()) {
            let failed =
                failed_request(FailureKind::Down, failed_attempts + 1, tried.len(), request);
            if request.context.retry.allow(share, failed).is_ok() {
                return next;
            }
        }
        tokio::time::sleep(FAILOVER_POLL_INTERVAL).await;
    }
}

/// Makes one attempt: sends the request to the leased backend, and buffers the response until its
/// first output. Fails if the attempt failed before the first output.
async fn send_to_backend(
    exchange: &mut Exchange,
    (request, lease): (&PreparedRequest<'_>, &Lease),
    legs: &mut Legs,
) -> Result<PrefetchedResponse, AttemptFailure> {
    let (mut body, usage) = request.body.for_backend(lease.backend());
    // Boxed, because few requests need the memory of this future.
    let is_prefilled = prefill_leg::is_possible(lease, exchange)
        && Box::pin(legs.prefill(exchange, (request, lease), &mut body)).await;
    exchange.on_request_sent(lease.backend_feedback());
    let record = exchange.record();
    let options = &mut record.options;
    options.usage_injected = usage.event;
    options.continuous_usage_injected = usage.continuous;
    let result = loop {
        let body = (&body, is_prefilled);
        let sending = attempt::send(record, lease, request, body);
        let sending = pin!(sending);
        match request.within_deadlines(sending).await.map_err(deadline_failure)? {
            // Closing an idle connection frees a file descriptor for this request.
            Err(SendError::Exhausted(_)) if request.context.state.pool.close_idle_connection() => {}
            result => break result,
        }
    };
    legs.on_sent(!matches!(result, Err(SendError::Connect(_))));
    let (mut head, body) = result.map_err(|error| send_failure(&error))?.into_parts();
    headers::remove_gateway_headers(head.status, &mut head.headers);
    exchange.on_head(head.status.as_u16(), &head.headers);
    let max_wait = request.context.retry.settings.first_output_buffer_timeout;
    let prefetched = first_output::buffer_until_first_output(
        exchange,
        head.status,
        body,
        max_wait,
        (request.deadlines, request.early),
    )
    .await;
    let prefetched = prefetched.map_err(deadline_failure)?;
    let failure_kind = classify_failure(exchange, request, head.status, &prefetched)
        .map(|kind| if is_prefilled { legs.refine(kind) } else { kind })
        .map(|kind| refine_refusal(kind, (request, lease), &prefetched));
    if failure_kind.is_none() && head.status.is_success() && exchange.has_output_or_ended() {
        lease.backend().on_response_started(clock::now());
    }
    let response = Response::from_parts(head, prefetched);
    match failure_kind {
        None => Ok(response),
        Some(kind) => Err(AttemptFailure::of_response(kind, response)),
    }
}

/// Why an attempt with a response failed. `None`: the attempt did not fail.
fn classify_failure(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    status: StatusCode,
    prefetched: &PrefetchedBody<BackendBody>,
) -> Option<FailureKind> {
    let kind = first_output::classify_failure(exchange, status, prefetched, request);
    let names_response = request.is_lookup || request.fields.parameters.previous_response.is_some();
    // A 404 to a request that names a stored response is about this response.
    if names_response && status == StatusCode::NOT_FOUND && kind == Some(FailureKind::MissingPath) {
        return Some(FailureKind::NotStored);
    }
    kind
}

/// Returns the kind of an optional part if the backend refused that part, `TooLong` if it refused the length
/// of the request, otherwise `kind`. Only a backend with a longer context can serve a `TooLong` request.
fn refine_refusal(
    kind: FailureKind,
    (request, lease): (&PreparedRequest<'_>, &Lease),
    prefetched: &PrefetchedBody<BackendBody>,
) -> FailureKind {
    let is_refusal = kind == FailureKind::UnexpectedStatus;
    if is_refusal && let Some(kind) = lease.refusal(|text| contains_any(prefetched, &[text])) {
        return kind;
    }
    if is_refusal && length::is_about_length(prefetched, (request, lease)) {
        return FailureKind::TooLong;
    }
    kind
}

/// Replaces the result that the client would get for a failed attempt by an error, if the response
/// to the client has begun and the backend ended its stream without output. Without the error, the
/// client would get a stream of comments only.
fn reported_in_stream(failure: AttemptFailure, request: &PreparedRequest<'_>) -> AttemptFailure {
    let has_begun = request.early.is_some_and(EarlyResponse::has_begun);
    if has_begun && matches!(failure.kind, FailureKind::Died | FailureKind::Empty) {
        return AttemptFailure { fallback: Err(GatewayError::Closed), ..failure };
    }
    failure
}

/// The result for the client after a failed attempt without failover: the response of the last
/// backend, or an error. `reason` is why the request does not fail over.
pub(super) fn give_up(
    exchange: &mut Exchange,
    failure: AttemptFailure,
    lease: Lease,
    reason: FailoverDenialReason,
) -> ForwardResult {
    match failure.fallback {
        Ok(mut response) => {
            if exchange.is_spliced() && response.status().is_success() {
                // The client gets the error event of the attempt, so no continuation may follow.
                exchange.refuse_continuation(continuation_refusal(reason), true);
            }
            if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                response.headers_mut().entry(RETRY_AFTER).or_insert(HeaderValue::from_static("1"));
            }
            Ok((*response, lease))
        }
        Err(error) => {
            exchange.discard_attempt(failure.kind.as_str());
            Err(if reason == FailoverDenialReason::PoisonRequest {
                GatewayError::Poison
            } else {
                error
            })
        }
    }
}

const fn continuation_refusal(reason: FailoverDenialReason) -> ContinuationRefusal {
    match reason {
        FailoverDenialReason::PoisonRequest => ContinuationRefusal::PoisonRequest,
        FailoverDenialReason::NoOtherBackend => ContinuationRefusal::NoOtherBackend,
        FailoverDenialReason::NotRetryable
        | FailoverDenialReason::SideEffects
        | FailoverDenialReason::RetryBudget
        | FailoverDenialReason::MaxAttempts => ContinuationRefusal::MaxAttempts,
    }
}

pub(super) fn deadline_failure(deadline: ResponseDeadline) -> AttemptFailure {
    let kind = deadline.failure;
    AttemptFailure::without_response(kind, kind.as_str(), deadline.error())
}
