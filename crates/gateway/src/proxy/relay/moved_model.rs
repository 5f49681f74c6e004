//! A model that its backend does not know any more: it may have moved to another backend a moment ago.

use super::attempt::PreparedRequest;
use super::attempt_failure::AttemptFailure;
use super::failover::{self, ForwardResult};
use super::refusals::Refusals;
use super::waiting;
use crate::backend::{Backend, Lease};
use std::sync::Arc;
use tokenweir_protocol::clock;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::{FailoverDenialReason, RoutingDecision};

/// The failure of an attempt whose backend does not know the model, with the lease on the backend.
pub(super) struct UnknownModel {
    pub(super) failure: AttemptFailure,
    pub(super) lease: Lease,
}

/// Reads the model lists of all backends again, and leases the backend that has the model now. A model that
/// the configuration names and no backend has is waited for. Fails with the result for the client if no
/// backend has the model.
pub(super) async fn follow(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    tried: &[Arc<Backend>],
    refusals: &mut Refusals,
    unknown: Box<UnknownModel>,
) -> Result<(Lease, Arc<RoutingDecision>), ForwardResult> {
    let UnknownModel { failure, lease } = *unknown;
    let (context, requirements) = (request.context, request.requirements);
    let pool = &context.state.pool;
    pool.read_models_again().await;
    if let Ok(next) = pool.lease(*requirements, tried, clock::now()) {
        refusals.set_aside(exchange, failure);
        return Ok(next);
    }
    if waiting::is_possible(request) && pool.routes().is_awaited(requirements.model) {
        exchange.discard_attempt(failure.kind.as_str());
        return waiting::wait(exchange, request, None).await.map_err(Err);
    }
    let (retry, now) = (&context.retry, clock::now());
    let refusals = std::mem::take(refusals);
    if let Some(first) = refusals.end_with_failure(exchange, &failure, retry, now) {
        return Err(Ok((*first, lease)));
    }
    let reason = FailoverDenialReason::NoOtherBackend;
    Err(failover::give_up(exchange, failure, lease, reason))
}
