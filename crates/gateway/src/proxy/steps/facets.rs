//! Failures that concern an option of a backend, such as a data-parallel rank.

use crate::proxy::attempt::FailedAttempt;
use crate::proxy::attempt::first_output::contains_any;
use tokenweir_routing::resilience::FailureKind;

/// Recognizes a backend's refusal of a rank. The backend may then get the request again without a rank.
pub(super) fn name_failure(failed: &mut FailedAttempt) {
    if failed.failure.kind == FailureKind::UnexpectedStatus
        && let Some(response) = failed.failure.response()
        && let Some(kind) = failed
            .lease
            .refusal(|text| contains_any(response.body(), &[text]))
    {
        failed.failure.set_kind(kind);
    }
    let backend = failed.lease.backend();
    failed.keeps_backend |= backend
        .facets
        .on_failure(failed.failure.kind, &backend.identity.id);
}
