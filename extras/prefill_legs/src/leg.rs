//! One prefill leg: the request that makes a backend compute only the prompt.

use crate::bodies::PrefillResponse;
use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use std::time::Instant;
use tokenweir_gateway::backend::Lease;
use tokenweir_gateway::proxy::attempt::{self, AttemptFailure, PreparedRequest};
use tokenweir_net::backend_body::BackendResponse;
use tokenweir_net::client::SendError;
use tokenweir_protocol::clock;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::Attempt;
use tokenweir_routing::resilience::FailureKind;

/// Maximum size of the response to a prefill leg, in bytes. The response lists the KV blocks of a prompt.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

/// A prefill leg that is about to be sent.
pub(crate) struct Leg<'a> {
    pub(crate) lease: &'a Lease,
    pub(crate) body: &'a Bytes,
    pub(crate) ends_at: Instant,
}

/// The parameters with which one decode engine may read, once, the KV blocks that a prefill leg computed.
pub(crate) struct Parameters {
    pub(crate) text: String,
    pub(crate) got_at: Instant,
}

/// Why a prefill leg failed.
struct LegFailure {
    /// The status of the response. `None`: there is no response.
    status: Option<StatusCode>,
    kind: FailureKind,
}

/// Sends one prefill leg, and records it. `None`: the leg failed.
pub(crate) async fn send(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    leg: &Leg<'_>,
) -> Option<Parameters> {
    let client = &request.context.backend_client;
    let outbound = request.outbound(leg.body);
    let (attempt, response) = attempt::send_apart(client, exchange.record(), leg.lease, &outbound);
    exchange.record().attempts_apart.push(attempt);
    let ends_at = request.current_deadlines().next_before(leg.ends_at);
    let result = tokio::select! {
        biased;
        result = receive(response) => result,
        () = leg.lease.backend().health.wait_declared_down() => {
            Err(LegFailure::without_response(FailureKind::Down))
        }
        () = tokio::time::sleep_until(ends_at.into()) => {
            let passed = request.current_deadlines().passed(clock::now());
            let kind = passed.map_or(FailureKind::SlowOutput, |passed| passed.failure);
            Err(LegFailure::without_response(kind))
        }
    };
    let now = clock::now();
    finish(exchange, leg.lease, &result, now);
    let PrefillResponse { parameters, usage } = result.ok()?;
    leg.lease.on_prefilled(&usage, now);
    Some(Parameters {
        text: parameters?,
        got_at: now,
    })
}

/// Writes the end of the last leg into the record, and reports a failure of its backend.
fn finish(
    exchange: &mut Exchange,
    lease: &Lease,
    result: &Result<PrefillResponse, LegFailure>,
    now: Instant,
) {
    let failure = result.as_ref().err();
    if let Some(attempt) = last_leg(exchange) {
        let status = failure.map_or(Some(StatusCode::OK), |failure| failure.status);
        attempt.status = status.map(|status| status.as_u16());
        attempt.ended = Some(now);
        attempt.failure = failure.map(|failure| failure.kind.as_str());
    }
    match failure.map(|failure| failure.kind) {
        // All backends may refuse the same request, so a refusal does not show a fault of this backend.
        Some(kind) if kind.is_judged_by_peers() => {}
        Some(FailureKind::TransferFailed) => {
            let backend = lease.backend();
            backend
                .facets
                .role
                .on_prefill_without_blocks(&backend.identity.id);
        }
        Some(kind) => lease.backend().on_failure(kind, kind.as_str(), None, now),
        None => {}
    }
}

fn last_leg(exchange: &mut Exchange) -> Option<&mut Attempt> {
    exchange.record().attempts_apart.last_mut()
}

async fn receive(
    response: impl Future<Output = Result<BackendResponse, SendError>>,
) -> Result<PrefillResponse, LegFailure> {
    let response = response
        .await
        .map_err(|error| LegFailure::without_response(AttemptFailure::of_send(&error).kind))?;
    let status = response.status();
    let fail = |kind| LegFailure {
        status: Some(status),
        kind,
    };
    if !status.is_success() {
        return Err(fail(FailureKind::of_status(status.as_u16())));
    }
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
        .collect()
        .await;
    let body = body.map_err(|_| fail(FailureKind::Died))?;
    let response = PrefillResponse::read(&body.to_bytes());
    if response.parameters.is_none() {
        return Err(fail(FailureKind::TransferFailed));
    }
    Ok(response)
}

impl LegFailure {
    const fn without_response(kind: FailureKind) -> Self {
        Self { status: None, kind }
    }
}
