//! Failures that concern an option of a backend, such as a data-parallel rank.

use crate::proxy::attempt::first_output::contains_any;
use crate::proxy::attempt::{AttemptStep, Attempts, FailedAttempt, Next};
use tokenweir_request::observe::Exchange;
use tokenweir_routing::resilience::FailureKind;

/// Recognizes a refusal of a part. The backend may get the request again, without that part.
#[derive(Default)]
pub(super) struct FacetFailures;

impl AttemptStep for FacetFailures {
    fn after_failure(
        &mut self,
        _: &mut Exchange,
        _: &mut Attempts<'_>,
        failed: &mut FailedAttempt,
    ) -> Next {
        if failed.failure.kind == FailureKind::UnexpectedStatus
            && let Some(response) = failed.failure.response()
            && let Some(kind) = failed.lease.refusal(|text| contains_any(response.body(), &[text]))
        {
            failed.failure.set_kind(kind);
        }
        let backend = failed.lease.backend();
        failed.keeps_backend |=
            backend.facets.on_failure(failed.failure.kind, &backend.identity.id);
        Next::Failover
    }
}
