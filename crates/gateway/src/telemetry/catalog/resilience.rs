//! Metrics of failures: failovers, circuit breakers and ejections.

use super::super::metric::{MetricDescriptor, MetricLabel, MetricSource};
use tokenweir_engine::prefill_leg::PrefillSkip;
use tokenweir_request::continuation::{ContinuationRefusal, InterruptionCause};
use tokenweir_request::record::{
    Continuation, FailoverDenialReason, Outcome, RequestRecord, ResumeOutcome,
};
use tokenweir_routing::resilience::BreakerState;

pub(super) const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor::new(
        "tokenweir_failovers_total",
        "Requests that were retried on another backend, by result.",
        &[MetricLabel::fixed("result", || vec!["succeeded", "failed"])],
        MetricSource::RecordEvent(|record| {
            let is_success = match record.outcome {
                Outcome::UpstreamError | Outcome::Rejected | Outcome::Timeout => false,
                outcome => record.timings.first_output.is_some() || !outcome.is_backend_failure(),
            };
            has_failed_over(record).then_some(if is_success { "succeeded" } else { "failed" })
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_failovers_denied_total",
        "Failed requests that were not retried on another backend, by reason.",
        &[MetricLabel::fixed("reason", || FailoverDenialReason::NAMES.to_vec())],
        MetricSource::RecordEvent(|record| record.not_retried.map(FailoverDenialReason::as_str)),
    ),
    MetricDescriptor::new(
        "tokenweir_resume_requests_total",
        "Requests with an Idempotency-Key while streams.resume is on, by result.",
        &[MetricLabel::fixed("result", || ResumeOutcome::NAMES.to_vec())],
        MetricSource::RecordEvent(RequestRecord::resume_outcome),
    ),
    MetricDescriptor::new(
        "tokenweir_stream_continuations_total",
        "Streams that another backend continued after output was sent, by cause.",
        &[MetricLabel::fixed("cause", || InterruptionCause::NAMES.to_vec())],
        MetricSource::Record(|record, emit| {
            for continuation in &record.continuations.begun {
                emit(&[continuation.cause.as_str()], 1.0);
            }
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_prefill_legs_total",
        "Requests whose prompt another backend computed, by whether the decode backend got its KV blocks.",
        &[MetricLabel::fixed("result", || vec!["used", "unused", "failed"])],
        MetricSource::Record(|record, emit| {
            let mut is_used = record.is_prefilled_elsewhere();
            for leg in record.prefill_legs.iter().flat_map(|legs| legs.sent.iter().rev()) {
                let is_failed = leg.failure.is_some();
                let result = if is_failed {
                    "failed"
                } else if is_used {
                    "used"
                } else {
                    "unused"
                };
                is_used &= is_failed;
                emit(&[result], 1.0);
            }
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_prefill_legs_skipped_total",
        "Requests whose decode backend computed the prompt itself, by reason.",
        &[MetricLabel::fixed("reason", || PrefillSkip::NAMES.to_vec())],
        MetricSource::RecordEvent(|record| {
            record.prefill_legs.as_ref()?.skipped.map(PrefillSkip::as_str)
        }),
    ),
    MetricDescriptor::value(
        "tokenweir_resume_memory_bytes",
        "Memory of the responses that clients can return to (streams.resume).",
        |status| Some(status.resume_bytes as f64),
    ),
    MetricDescriptor::new(
        "tokenweir_stream_continuations_refused_total",
        "Interrupted streams that no other backend continued, by reason.",
        &[MetricLabel::fixed("reason", || ContinuationRefusal::NAMES.to_vec())],
        MetricSource::RecordEvent(|record| {
            record.continuations.refusal.map(ContinuationRefusal::as_str)
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_stream_continuation_seconds_total",
        "Time from the interruption of a stream to its next output, if another backend continued it.",
        &[],
        MetricSource::RecordValue(|record| {
            let gap: f64 = record.continuations.begun.iter().filter_map(Continuation::gap).sum();
            (gap > 0.0).then_some(gap)
        }),
    ),
    MetricDescriptor::value(
        "tokenweir_stream_continuation_memory_bytes",
        "Memory for the continuation of the open streams by another backend (limits.continuation_memory).",
        |status| Some(status.continuation_bytes as f64),
    ),
    MetricDescriptor::new(
        "tokenweir_backend_breaker_state",
        "1 for the current state of the backend's circuit breaker, 0 for the other states.",
        &[MetricLabel::BACKEND, MetricLabel::fixed("state", || BreakerState::NAMES.to_vec())],
        MetricSource::Status(|status, emit| {
            for backend in &status.backends {
                for state in BreakerState::NAMES {
                    emit(&[&backend.backend, state], f64::from(backend.facts.breaker == *state));
                }
            }
        }),
    ),
    MetricDescriptor::of_backend(
        "tokenweir_backend_ejections_total",
        "Ejections of the backend by its circuit breaker.",
        |backend| Some(backend.ejections as f64),
    ),
];

/// Whether the request had attempts on more than one backend. A second attempt on another
/// connection to the same backend is not a failover.
fn has_failed_over(record: &RequestRecord) -> bool {
    let Some((last, earlier)) = record.attempts.split_last() else { return false };
    earlier.iter().any(|attempt| attempt.failure.is_some() && attempt.backend != last.backend)
}
