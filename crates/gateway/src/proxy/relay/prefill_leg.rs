//! Sends the prefill leg of a request to a backend that computes the prompt, before another backend (the
//! decode backend) gets the request and generates the output.
//!
//! The decode backend is leased first. If a prefill leg fails or would not be faster, the decode backend
//! computes the prompt itself: a fault of prefill backends never fails a request.

use super::super::request::body_memory::BodyMemoryPermit;
use super::attempt::{self, PreparedRequest};
use super::attempt_failure::send_failure;
use crate::backend::Lease;
use crate::backend::pool::BackendRequirements;
use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Limited};
use std::time::{Duration, Instant};
use tokenweir_engine::prefill_leg::{self, PrefillResponse, PrefillSkip, Role};
use tokenweir_net::backend_body::BackendBody;
use tokenweir_net::client::SendError;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::Attempt;
use tokenweir_routing::PredictedLeg;
use tokenweir_routing::resilience::FailureKind;

/// The prefill legs of one request, over all its attempts. A prefill leg makes another backend compute
/// only the prompt.
#[derive(Default)]
pub(super) struct Legs {
    /// The parameters from the response to a prefill leg that no decode backend has received yet.
    /// `None`: there are none.
    parameters: Option<Box<Parameters>>,
    /// Whether the decode backends compute the prompt themselves from now on.
    is_off: bool,
    /// The permit for the memory of the bodies of both legs. `None`: there are none.
    bodies: Option<BodyMemoryPermit>,
}

/// The parameters with which one decode engine may read, once, the KV blocks that a prefill leg
/// computed.
struct Parameters {
    text: String,
    got_at: Instant,
}

/// Maximum number of prefill legs that are sent for one attempt.
const MAX_LEGS: usize = 2;
/// Maximum size of the response to a prefill leg, in bytes. The response lists the KV blocks of a prompt.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// Time limit of a prefill leg, as a multiple of the predicted time in which the decode backend
/// alone computes the prompt.
const MAX_SLOWDOWN: f64 = 2.0;
/// Minimum and maximum of the time limit of a prefill leg, in seconds.
const LIMIT_SECONDS: (f64, f64) = (1.0, 600.0);
/// Maximum age of the parameters that a decode leg may use. The prefill backend keeps the blocks
/// for 30 s by default.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Whether a request to this backend may have a prefill leg.
pub(super) fn is_possible(lease: &Lease, exchange: &mut Exchange) -> bool {
    if let Some(legs) = &mut exchange.record().prefill_legs {
        // The value is that of an earlier attempt.
        legs.is_used = false;
    }
    lease.backend().identity.role().is_some_and(Role::serves_decode_legs)
}

impl Legs {
    /// Sends a prefill leg if that is predicted to be faster, and turns `body`, the body of the whole
    /// request, into that of the decode leg. Returns whether `body` is now a decode leg. If not, the
    /// backend of `lease` computes the prompt.
    pub(super) async fn prefill(
        &mut self,
        exchange: &mut Exchange,
        (request, lease): (&PreparedRequest<'_>, &Lease),
        body: &mut Bytes,
    ) -> bool {
        let unread = self.parameters.take();
        let unread = unread.filter(|it| clock::now().duration_since(it.got_at) < MAX_AGE);
        let result = match unread {
            Some(parameters) => {
                lease.move_prefill(true);
                Ok(parameters)
            }
            None if self.is_off => Err(PrefillSkip::Failed),
            None if !self.hold_bodies(request, body) => Err(PrefillSkip::Memory),
            None => send_legs(exchange, (request, lease), body).await.map(Box::new),
        };
        let legs = exchange.record().prefill_legs.get_or_insert_default();
        legs.skipped = result.as_ref().err().copied();
        self.parameters = result.ok();
        let text = self.parameters.as_ref().map(|parameters| &*parameters.text);
        let decode_body = text.and_then(|text| prefill_leg::decode_request(body, text));
        legs.is_used = decode_body.is_some();
        decode_body.map(|decode_body| *body = decode_body).is_some()
    }

    /// Counts the memory of the bodies of both legs. `false`: a memory limit is exceeded.
    fn hold_bodies(&mut self, request: &PreparedRequest<'_>, body: &Bytes) -> bool {
        let memory = &request.context.state.body_memory;
        let mut permit = memory.empty_permit(request.body.original().party());
        let is_counted = permit.add(2 * body.len()).is_ok();
        self.bodies = is_counted.then_some(permit);
        is_counted
    }

    /// Records that the request was sent. The next backend may use the parameters of the prefill
    /// leg only if this backend could not be reached.
    pub(super) fn on_sent(&mut self, was_reached: bool) {
        if was_reached {
            self.parameters = None;
        }
    }

    /// Returns `TransferFailed` if the parameters of a prefill leg may have caused a failure of
    /// this kind, otherwise `kind`. After such a failure the request has no further legs.
    pub(super) fn refine(&mut self, kind: FailureKind) -> FailureKind {
        let may_be_cause = matches!(
            kind,
            FailureKind::ServerError
                | FailureKind::InBandError
                | FailureKind::Empty
                | FailureKind::UnexpectedStatus
        );
        self.is_off |= may_be_cause;
        if may_be_cause { FailureKind::TransferFailed } else { kind }
    }
}

/// Sends prefill legs until one succeeds. The error is the reason why the request has no prefill leg.
async fn send_legs(
    exchange: &mut Exchange,
    (request, lease): (&PreparedRequest<'_>, &Lease),
    body: &Bytes,
) -> Result<Parameters, PrefillSkip> {
    if headers::has_body_digest(&request.head.headers) {
        return Err(PrefillSkip::SignedBody);
    }
    if request.has_side_effects() {
        return Err(PrefillSkip::Field);
    }
    let leg_body = prefill_leg::prefill_request(exchange.record().api, body)?;
    let requirements = BackendRequirements {
        is_stream: true,
        backend: None,
        max_tokens: Some(1),
        choices: 1,
        ..*request.requirements
    };
    let mut tried = vec![lease.backend().clone()];
    let mut skip = PrefillSkip::NoBackend;
    while tried.len() <= MAX_LEGS {
        let (pool, now) = (&request.context.state.pool, clock::now());
        let Some(offer) = pool.offer_prefill_leg(requirements, &tried, now) else { break };
        let record = exchange.record();
        let Some(decision) = record.decision.as_deref() else { break };
        let (alone, candidate) = (decision.selected().ttft, decision.selected_candidate());
        let estimator = &lease.backend().load.estimator;
        let settings = &pool.policy().kv_aware;
        let leg = PredictedLeg { seconds: offer.ttft(), base: offer.base() };
        let with_leg = offer.ttft() + estimator.decode_leg_ttft(candidate, leg, settings, now);
        let legs = record.prefill_legs.get_or_insert_default();
        legs.predicted = Some([with_leg, alone]);
        // Also false if a prediction is NaN.
        let is_faster = with_leg < alone;
        if !is_faster {
            return Err(PrefillSkip::NotFaster);
        }
        let (leg_lease, _) = offer.accept(requirements, now);
        let limit = (alone * MAX_SLOWDOWN).clamp(LIMIT_SECONDS.0, LIMIT_SECONDS.1);
        let limit = now + Duration::from_secs_f64(limit);
        lease.move_prefill(true);
        let leg = (&leg_lease, &leg_body, limit);
        if let Some(parameters) = send_leg(exchange, request, leg).await {
            return Ok(parameters);
        }
        lease.move_prefill(false);
        tried.push(leg_lease.backend().clone());
        skip = PrefillSkip::Failed;
    }
    Err(skip)
}

/// Sends one prefill leg, and records it. `None`: the leg failed.
async fn send_leg(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    (lease, body, limit): (&Lease, &Bytes, Instant),
) -> Option<Parameters> {
    let (attempt, response) = attempt::send_apart(
        &request.context.backend_client,
        exchange.record(),
        lease,
        (request.head, request.requirements.prompt),
        body,
        request.response_headers_timeout,
    );
    exchange.record().prefill_legs.get_or_insert_default().sent.push(attempt);
    let limit = request.current_deadlines().next_before(limit);
    let result = tokio::select! {
        biased;
        result = receive(response) => result,
        () = lease.backend().health.wait_declared_down() => Err((None, FailureKind::Down)),
        () = tokio::time::sleep_until(limit.into()) => {
            let passed = request.current_deadlines().passed(clock::now());
            Err((None, passed.map_or(FailureKind::SlowOutput, |passed| passed.failure)))
        }
    };
    let now = clock::now();
    let (status, failure) = match &result {
        Ok(_) => (Some(200), None),
        Err((status, kind)) => (*status, Some(*kind)),
    };
    if let Some(attempt) = last_leg(exchange) {
        (attempt.status, attempt.ended) = (status, Some(now));
        attempt.failure = failure.map(FailureKind::as_str);
    }
    match failure {
        // All backends may refuse the same request, so a refusal does not show a fault of this backend.
        Some(kind) if kind.is_judged_by_peers() => {}
        Some(FailureKind::TransferFailed) => lease.backend().on_leg_without_blocks(),
        Some(kind) => lease.backend().on_failure(kind, kind.as_str(), None, now),
        None => {}
    }
    let PrefillResponse { parameters, usage } = result.ok()?;
    lease.on_prefilled(&usage, now);
    Some(Parameters { text: parameters?, got_at: now })
}

fn last_leg(exchange: &mut Exchange) -> Option<&mut Attempt> {
    exchange.record().prefill_legs.as_mut()?.sent.last_mut()
}

/// Receives the response to a prefill leg. Fails with its status (`None`: no response) and the kind
/// of the failure.
async fn receive(
    response: impl Future<Output = Result<Response<BackendBody>, SendError>>,
) -> Result<PrefillResponse, (Option<u16>, FailureKind)> {
    let response = response.await.map_err(|error| (None, send_failure(&error).kind))?;
    let status = response.status();
    if !status.is_success() {
        return Err((Some(status.as_u16()), FailureKind::of_status(status.as_u16())));
    }
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
    let body = body.map_err(|_| (Some(status.as_u16()), FailureKind::Died))?;
    let response = PrefillResponse::read(&body.to_bytes());
    if response.parameters.is_none() {
        return Err((Some(status.as_u16()), FailureKind::TransferFailed));
    }
    Ok(response)
}
