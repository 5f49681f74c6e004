//! A model that its backend does not know any more: it may have moved to another backend a moment ago.

use super::attempt::PreparedRequest;
use super::attempt_failure::AttemptFailure;
use super::refusals::Refusals;
use super::waiting;
use crate::backend::{Backend, Lease};
use std::sync::Arc;
use tokenweir_protocol::clock;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::RoutingDecision;

/// The failure of an attempt whose backend does not know the model, with the lease on the backend.
pub(super) struct UnknownModel {
    pub(super) failure: AttemptFailure,
    pub(super) lease: Lease,
}

/// Why a request for an unknown model gets no backend.
pub(super) enum NotFollowed {
    /// No backend has the model: the client gets the response of this attempt.
    Unknown(Box<UnknownModel>),
    /// The request has waited for a backend.
    Waited(GatewayError),
}

/// Reads the model lists of all backends again, and leases the backend that has the model now. A model that
/// the configuration names and no backend has is waited for.
pub(super) async fn follow(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    tried: &[Arc<Backend>],
    refusals: &mut Refusals,
    unknown: Box<UnknownModel>,
) -> Result<(Lease, Arc<RoutingDecision>), NotFollowed> {
    let requirements = request.requirements;
    let pool = &request.context.state.pool;
    pool.read_models_again().await;
    if let Ok(next) = pool.lease(*requirements, tried, clock::now()) {
        refusals.set_aside(exchange, unknown.failure);
        return Ok(next);
    }
    if waiting::is_possible(request) && pool.routes().is_awaited(requirements.model) {
        exchange.discard_attempt(unknown.failure.kind.as_str());
        let waited = waiting::wait(exchange, request, None).await;
        return waited.map_err(NotFollowed::Waited);
    }
    Err(NotFollowed::Unknown(unknown))
}
