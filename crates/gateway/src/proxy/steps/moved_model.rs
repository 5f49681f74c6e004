//! A model that its backend does not know any more: it may have moved to another backend a moment ago.

use super::waits;
use crate::proxy::attempt::{Attempts, FailedAttempt, Next, Search};
use tokenweir_request::observe::Exchange;
use tokenweir_routing::resilience::FailureKind;

/// Marks the model lists as stale if the backend does not know the model.
pub(super) fn after_failure(failed: &FailedAttempt) -> Next {
    if failed.failure.kind != FailureKind::UnknownModel {
        return Next::Failover;
    }
    failed.lease.backend().health.mark_models_stale();
    Next::Search
}

/// Reads the model lists of all backends again, and leases the backend that has the model now. If no backend
/// has it and the configuration names it, the request waits.
pub(super) async fn search(
    exchange: &mut Exchange,
    attempts: &Attempts<'_>,
    failed: Box<FailedAttempt>,
) -> Search {
    if failed.failure.kind != FailureKind::UnknownModel {
        return Search::NotFound(failed);
    }
    let pool = &attempts.request.context.state.pool;
    pool.read_models_again().await;
    if let Ok(next) = attempts.lease_other() {
        return Search::Found(next, failed);
    }
    let model = attempts.request.requirements.model;
    if !waits::is_possible(attempts.request) || !pool.routes().is_awaited(model) {
        return Search::NotFound(failed);
    }
    waits::wait(exchange, attempts, failed).await
}
