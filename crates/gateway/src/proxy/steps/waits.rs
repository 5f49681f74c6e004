//! The wait for a backend after a failed attempt.

use crate::proxy::attempt::{Attempts, FailedAttempt, Next, PreparedRequest, Search};
use tokenweir_request::observe::Exchange;
use tokenweir_routing::resilience::FailureKind;

/// Waits until a backend comes back, if no other backend is left.
#[derive(Default)]
pub(super) struct Waits {
    /// Number of waits of the request so far.
    count: u32,
    /// Whether the request may wait no more, because it may have caused a failure.
    is_over: bool,
}

impl Waits {
    pub(super) fn after_failure(
        &mut self,
        attempts: &Attempts<'_>,
        failed: &FailedAttempt,
    ) -> Next {
        let kind = failed.failure.kind;
        self.is_over |= !is_allowed_after(kind);
        let limit = attempts.request.context.retry.settings.attempts;
        if self.is_over || self.count >= limit || !is_useful_after(kind, attempts) {
            return Next::Failover;
        }
        Next::Search
    }

    /// Waits for a backend if the failure allows a wait.
    pub(super) async fn search(
        &mut self,
        exchange: &mut Exchange,
        attempts: &mut Attempts<'_>,
        failed: Box<FailedAttempt>,
    ) -> Search {
        if self.is_over {
            return Search::NotFound(failed);
        }
        self.count += 1;
        attempts.tried.clear();
        wait(exchange, attempts, failed).await
    }
}

/// Whether a request may wait for a backend after a failure of this kind: the backend had not begun to
/// process the request, or was shutting down in order. The request itself may have caused any other
/// failure, and could crash the same backend again after the wait.
fn is_allowed_after(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::Unreachable | FailureKind::Draining | FailureKind::Busy | FailureKind::TooLong
    )
}

/// Whether a backend that comes back can help after a failure of this kind.
fn is_useful_after(kind: FailureKind, attempts: &Attempts<'_>) -> bool {
    is_possible(attempts.request)
        && match kind {
            FailureKind::Busy => false,
            FailureKind::TooLong => {
                let pool = &attempts.request.context.state.pool;
                pool.has_able_backend(&attempts.requirements())
            }
            _ => true,
        }
}

pub(super) fn is_possible(request: &PreparedRequest<'_>) -> bool {
    !request.is_lookup
        && request.requirements.backend.is_none()
        && request.context.state.admission.waits_for_backend()
}

/// Leaves the failed attempt, and waits in the admission queue until a backend can serve the request.
pub(super) async fn wait(
    exchange: &mut Exchange,
    attempts: &Attempts<'_>,
    failed: Box<FailedAttempt>,
) -> Search {
    exchange.discard_attempt(failed.failure.kind.as_str());
    // The lease ends here, because the request is no longer at this backend.
    drop(failed);
    Search::Waited(attempts.wait_for_backend(exchange).await)
}
