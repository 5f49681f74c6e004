//! Metrics of failures: failovers, circuit breakers and ejections.

use crate::metric::prelude::*;
use tokenweir_request::record::{FailoverDenialReason, Outcome, RequestRecord};
use tokenweir_routing::resilience::BreakerState;

pub(super) const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_failovers_total",
        "Requests that were retried on another backend, by result.",
        &[fixed("result", &["succeeded", "failed"])],
        RecordEvent(|record| {
            let is_success = match record.outcome {
                Outcome::UpstreamError | Outcome::Rejected | Outcome::Timeout => false,
                outcome => record.timings.first_output.is_some() || !outcome.is_backend_failure(),
            };
            has_failed_over(record).then_some(if is_success { "succeeded" } else { "failed" })
        }),
    ),
    row(
        "tokenweir_failovers_denied_total",
        "Failed requests that were not retried on another backend, by reason.",
        &[fixed("reason", FailoverDenialReason::NAMES)],
        RecordEvent(|record| record.not_retried.map(FailoverDenialReason::as_str)),
    ),
    row(
        "tokenweir_backend_breaker_state",
        "1 for the current state of the backend's circuit breaker, 0 for the other states.",
        &[BACKEND, fixed("state", BreakerState::NAMES)],
        Status(|status, emit| {
            for backend in &status.backends {
                for state in BreakerState::NAMES {
                    emit(
                        &[&backend.backend, state],
                        f64::from(backend.facts.breaker == *state),
                    );
                }
            }
        }),
    ),
    of_backend(
        "tokenweir_backend_ejections_total",
        "Ejections of the backend by its circuit breaker.",
        |backend| Some(backend.ejections as f64),
    ),
];

/// Whether the request had attempts on more than one backend. A second attempt on a new connection to the same
/// backend is no failover.
fn has_failed_over(record: &RequestRecord) -> bool {
    let Some((last, earlier)) = record.attempts.split_last() else {
        return false;
    };
    earlier
        .iter()
        .any(|attempt| attempt.failure.is_some() && attempt.backend != last.backend)
}
