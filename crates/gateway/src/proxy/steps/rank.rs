//! Backends that refuse the data-parallel rank that the gateway chose.

use crate::proxy::attempt::first_output::contains_any;
use crate::proxy::attempt::{AttemptStep, Attempts, FailedAttempt, Next};
use tokenweir_request::observe::Exchange;
use tokenweir_routing::resilience::FailureKind;

/// Recognizes a refusal of the rank. The backend may get the request again, and chooses the rank itself.
#[derive(Default)]
pub(super) struct Rank;

impl AttemptStep for Rank {
    fn after_failure(
        &mut self,
        _: &mut Exchange,
        _: &mut Attempts<'_>,
        failed: &mut FailedAttempt,
    ) -> Next {
        if failed.failure.kind == FailureKind::UnexpectedStatus
            && failed.lease.rank_header().is_some()
            && let Some(response) = failed.failure.response()
            && contains_any(response.body(), &[b"data_parallel_rank"])
        {
            failed.failure.set_kind(FailureKind::RankRefused);
            failed.keeps_backend = true;
            failed.lease.backend().on_rank_refused();
        }
        Next::Failover
    }
}
