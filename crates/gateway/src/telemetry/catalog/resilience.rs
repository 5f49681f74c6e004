//! Metrics of failures: failovers, circuit breakers and ejections.

use super::super::metric::{MetricDescriptor, MetricLabel, MetricSource};
use tokenweir_engine::prefill_leg::PrefillSkip;
use tokenweir_protocol::metric_kind::MetricKind;
use tokenweir_request::continuation::{ContinuationRefusal, InterruptionCause};
use tokenweir_request::record::{
    Continuation, FailoverDenialReason, Outcome, RequestRecord, ResumeOutcome,
};
use tokenweir_routing::resilience::BreakerState;

pub(super) const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor {
        name: "tokenweir_failovers_total",
        help: "Requests that were retried on another backend, by result.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::fixed("result", || vec!["succeeded", "failed"])],
        read: MetricSource::Record(|record, emit| {
            if has_failed_over(record) {
                let is_success = !matches!(
                    record.outcome,
                    Outcome::UpstreamError | Outcome::Rejected | Outcome::Timeout
                );
                emit(&[if is_success { "succeeded" } else { "failed" }], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_failovers_denied_total",
        help: "Failed requests that were not retried on another backend, by reason.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::fixed("reason", || FailoverDenialReason::NAMES.to_vec())],
        read: MetricSource::Record(|record, emit| {
            if let Some(reason) = record.not_retried {
                emit(&[reason.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_resume_requests_total",
        help: "Requests with an Idempotency-Key while streams.resume is on, by result.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::fixed("result", || ResumeOutcome::NAMES.to_vec())],
        read: MetricSource::Record(|record, emit| {
            if let Some(outcome) = record.resume_outcome() {
                emit(&[outcome], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_stream_continuations_total",
        help: "Streams that went on at another backend after output was sent, by cause.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::fixed("cause", || InterruptionCause::NAMES.to_vec())],
        read: MetricSource::Record(|record, emit| {
            for continuation in &record.continuations.begun {
                emit(&[continuation.cause.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_prefill_legs_total",
        help: "Prefill legs at other backends, by whether the decode backend got their blocks.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::fixed("result", || vec!["used", "unused", "failed"])],
        read: MetricSource::Record(|record, emit| {
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
    },
    MetricDescriptor {
        name: "tokenweir_prefill_legs_skipped_total",
        help: "Requests whose decode backend computed the prompt itself, by reason.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::fixed("reason", || PrefillSkip::NAMES.to_vec())],
        read: MetricSource::Record(|record, emit| {
            if let Some(reason) = record.prefill_legs.as_ref().and_then(|legs| legs.skipped) {
                emit(&[reason.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor::gauge(
        "tokenweir_resume_memory_bytes",
        "Memory of the responses that clients can return to (streams.resume).",
        |status| Some(status.resume_bytes as f64),
    ),
    MetricDescriptor {
        name: "tokenweir_stream_continuations_refused_total",
        help: "Interrupted streams that did not go on at another backend, by reason.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::fixed("reason", || ContinuationRefusal::NAMES.to_vec())],
        read: MetricSource::Record(|record, emit| {
            if let Some(reason) = record.continuations.refusal {
                emit(&[reason.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_stream_continuation_seconds_total",
        help: "Time from the interruption of a stream to its next output, of streams that went on at another backend.",
        kind: MetricKind::Counter,
        labels: &[],
        read: MetricSource::Record(|record, emit| {
            let gap: f64 = record.continuations.begun.iter().filter_map(Continuation::gap).sum();
            if gap > 0.0 {
                emit(&[], gap);
            }
        }),
    },
    MetricDescriptor::gauge(
        "tokenweir_stream_continuation_memory_bytes",
        "Memory that open streams keep for their continuation now (limits.continuation_memory).",
        |status| Some(status.continuation_bytes as f64),
    ),
    MetricDescriptor {
        name: "tokenweir_backend_breaker_state",
        help: "1 for the current state of the backend's circuit breaker, 0 for the other states.",
        kind: MetricKind::Gauge,
        labels: &[
            MetricLabel::BACKEND,
            MetricLabel::fixed("state", || BreakerState::ALL.map(BreakerState::as_str).to_vec()),
        ],
        read: MetricSource::Status(|status, emit| {
            for backend in &status.backends {
                for state in BreakerState::ALL.map(BreakerState::as_str) {
                    let is_current = backend.breaker == state;
                    emit(&[&backend.backend, state], f64::from(u8::from(is_current)));
                }
            }
        }),
    },
    MetricDescriptor::backend_counter(
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
