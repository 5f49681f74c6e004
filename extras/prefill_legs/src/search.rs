//! Finds a backend for the prefill leg of a request.

use crate::bodies;
use crate::leg::{self, Leg, Parameters};
use crate::note::{PredictedTtfts, PrefillNote, PrefillSkip};
use std::time::{Duration, Instant};
use tokenweir_gateway::backend::facets::RequestPart;
use tokenweir_gateway::backend::pool::{BackendOffer, BackendRequirements};
use tokenweir_gateway::proxy::attempt::OutboundAttempt;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers;
use tokenweir_request::observe::Exchange;
use tokenweir_routing::PredictedLeg;

/// Maximum number of prefill legs that are sent for one attempt.
const MAX_LEGS: usize = 2;
/// Time limit of a prefill leg, as a multiple of the predicted time in which the decode backend
/// alone computes the prompt.
const MAX_SLOWDOWN: f64 = 2.0;
/// Minimum time limit of a prefill leg, in seconds.
const MIN_LIMIT_SECONDS: f64 = 1.0;
/// Maximum time limit of a prefill leg, in seconds.
const MAX_LIMIT_SECONDS: f64 = 600.0;

/// Sends prefill legs until one succeeds. The error is the reason why the request has no prefill leg.
pub(crate) async fn send_legs(
    exchange: &mut Exchange,
    attempt: &OutboundAttempt<'_>,
) -> Result<Parameters, PrefillSkip> {
    let OutboundAttempt { request, lease, .. } = attempt;
    if headers::has_body_digest(&request.head.headers) {
        return Err(PrefillSkip::SignedBody);
    }
    if request.has_side_effects() {
        return Err(PrefillSkip::Field);
    }
    let body = bodies::prefill_request(exchange.record().api, &attempt.body)?;
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
        let now = clock::now();
        let pool = &request.context.state.pool;
        let offer = pool.offer_part(RequestPart::Prefill, requirements, &tried, now);
        let Some(offer) = offer else { break };
        let Some(alone) = predict(exchange, attempt, &offer, now)? else {
            break;
        };
        let (leg_lease, _) = offer.accept(requirements, now);
        let limit = (alone * MAX_SLOWDOWN).clamp(MIN_LIMIT_SECONDS, MAX_LIMIT_SECONDS);
        let ends_at = now + Duration::from_secs_f64(limit);
        lease.move_prefill(true);
        let leg = Leg {
            lease: &leg_lease,
            body: &body,
            ends_at,
        };
        if let Some(parameters) = leg::send(exchange, request, &leg).await {
            return Ok(parameters);
        }
        lease.move_prefill(false);
        tried.push(leg_lease.backend().clone());
        skip = PrefillSkip::Failed;
    }
    Err(skip)
}

/// Predicts the seconds to the first output with the offered prefill leg and without it, and returns the
/// prediction without it. `None`: the request has no routing decision. Fails if the leg would not be faster.
fn predict(
    exchange: &mut Exchange,
    attempt: &OutboundAttempt<'_>,
    offer: &BackendOffer,
    now: Instant,
) -> Result<Option<f64>, PrefillSkip> {
    let record = exchange.record();
    let Some(decision) = record.decision.as_deref() else {
        return Ok(None);
    };
    let alone = decision.selected().ttft;
    let candidate = decision.selected_candidate();
    let estimator = &attempt.lease.backend().load.estimator;
    let settings = &attempt.request.context.state.pool.policy().kv_aware;
    let leg = PredictedLeg {
        seconds: offer.ttft(),
        base: offer.base(),
    };
    let with_leg = offer.ttft() + estimator.remote_prompt_ttft(candidate, leg, settings, now);
    let predicted = Some(PredictedTtfts { with_leg, alone });
    record
        .notes
        .update(|note: &mut PrefillNote| note.predicted = predicted);
    // The comparison is also false if a prediction is NaN.
    let is_faster = with_leg < alone;
    if is_faster {
        Ok(Some(alone))
    } else {
        Err(PrefillSkip::NotFaster)
    }
}
