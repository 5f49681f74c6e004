//! Another backend for a request after a failed attempt, and the wait for one.

use super::attempt::PreparedRequest;
use super::length;
use crate::backend::pool::BackendRequirements;
use crate::backend::{Backend, Lease};
use std::pin::pin;
use std::sync::Arc;
use tokenweir_protocol::clock;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::{FailoverDenialReason, RoutingDecision};
use tokenweir_routing::resilience::FailureKind;

/// Whether a request may wait for a backend after a failure of this kind: the backend had not begun to
/// process the request, or was shutting down in order. The request itself may have caused any other
/// failure, and could crash the same backend again after the wait.
pub(super) fn is_allowed_after(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::Unreachable | FailureKind::Draining | FailureKind::Busy | FailureKind::TooLong
    )
}

/// Whether a request waits until a backend comes back if no other backend is left, after a failure of this
/// kind. The caller has checked that the failover rules allow another attempt.
pub(super) fn is_useful_after(
    kind: FailureKind,
    request: &PreparedRequest<'_>,
    longer_than: Option<u32>,
) -> bool {
    let is_too_long = kind == FailureKind::TooLong;
    is_possible(request) && (!is_too_long || length::has_longer_backend(request, longer_than))
}

/// Whether a request may wait for a backend at all.
pub(super) fn is_possible(request: &PreparedRequest<'_>) -> bool {
    !request.is_lookup
        && request.requirements.backend.is_none()
        && request.context.state.admission.waits_for_backend()
}

/// Waits in the admission queue until a backend can serve the request, within its deadlines.
pub(super) async fn wait(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    longer_than: Option<u32>,
) -> Result<(Lease, Arc<RoutingDecision>), GatewayError> {
    let record = exchange.record();
    record.timings.sent = None;
    let admission = &request.context.state.admission;
    let requirements = BackendRequirements { longer_than, ..*request.requirements };
    let lease = pin!(admission.lease(record, &request.head.headers, requirements));
    let leased = request.within_deadlines(lease).await;
    leased.unwrap_or_else(|deadline| Err(deadline.error()))
}

/// Leases a backend that the request has not tried.
pub(super) fn lease_other(
    request: &PreparedRequest<'_>,
    longer_than: Option<u32>,
    tried: &[Arc<Backend>],
) -> Result<(Lease, Arc<RoutingDecision>), FailoverDenialReason> {
    let requirements = BackendRequirements { longer_than, ..*request.requirements };
    let next = request.context.state.pool.lease(requirements, tried, clock::now());
    next.map_err(|_| FailoverDenialReason::NoOtherBackend)
}
