//! Metrics of requests: counts, terminations, rejections, queue waits and model refusals.

use super::super::metric::{MetricDescriptor, MetricLabel, MetricSource, OVERFLOW_LABELS};
use super::{DURATION_BOUNDS, OVERHEAD_BOUNDS, QUEUE_WAIT_BOUNDS, RATIO_BOUNDS};
use tokenweir_core::error;
use tokenweir_core::metric_kind::MetricKind;
use tokenweir_core::openai::{Api, FinishReason};
use tokenweir_core::record::{Outcome, RequestRecord, Tier};

pub(super) const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor {
        name: "gen_ai_server_request_duration_seconds",
        help: "Inference requests: request head read to the end of the exchange.",
        kind: MetricKind::Histogram(DURATION_BOUNDS),
        labels: &[
            MetricLabel::Model,
            MetricLabel::Backend,
            MetricLabel::GenAiOperation,
            MetricLabel::ErrorType,
        ],
        read: MetricSource::Record(|record, emit| {
            if let (Some(backend), Some(api)) = (record.backend(), record.api) {
                let error = record.error_type().unwrap_or("");
                let labels = [record.model.as_str(), backend.as_str(), api.operation(), error];
                emit(&labels, record.duration().as_secs_f64());
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_requests_total",
        help: "Requests, by outcome.",
        kind: MetricKind::Counter,
        labels: &[
            MetricLabel::Model,
            MetricLabel::Operation,
            MetricLabel::Outcome,
            MetricLabel::Tier,
        ],
        read: MetricSource::Record(|record, emit| {
            let operation = record.api.map_or("none", Api::operation);
            let outcome = record.outcome.as_str();
            emit(&[record.model.as_str(), operation, outcome, record.tier.as_str()], 1.0);
        }),
    },
    MetricDescriptor {
        name: "tokenweir_request_terminations_total",
        help: "Requests, by the exact way in which they ended and by the side that closed first.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::TerminationReason, MetricLabel::ClosedBy],
        read: MetricSource::Record(|record, emit| {
            emit(&[record.ending(), record.end.initiator().as_str()], 1.0);
        }),
    },
    MetricDescriptor {
        name: "tokenweir_finish_reasons_total",
        help: "Choices, by the finish reason that the engine reported.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::Model, MetricLabel::FinishReason],
        read: MetricSource::Record(|record, emit| {
            for finish in record.observed.finish_reasons.iter().flatten() {
                emit(&[record.model.as_str(), finish.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_client_disconnects_total",
        help: "Clients that disconnected before the response was complete, by the phase of the request.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::DisconnectPhase],
        read: MetricSource::Record(|record, emit| {
            if record.outcome == Outcome::Cancelled {
                emit(&[record.phase()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_requests_rejected_total",
        help: "Requests that the gateway answered with an error of its own, by reason.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::RejectionReason],
        read: MetricSource::Record(|record, emit| {
            if let Some(reason) = record.refusal {
                emit(&[reason], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_requests_shed_total",
        help: "Rejected requests for which every backend was full: the queue was full, the request was displaced from it, or it waited too long.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::ShedReason],
        read: MetricSource::Record(|record, emit| {
            let is_shed = |reason: &&str| error::SHED_REASONS.contains(reason);
            if let Some(reason) = record.refusal.filter(is_shed) {
                emit(&[reason], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_queue_wait_seconds",
        help: "Time in the admission queue of requests that had to wait, whether they got a backend or not.",
        kind: MetricKind::Histogram(QUEUE_WAIT_BOUNDS),
        labels: &[MetricLabel::Tier],
        read: MetricSource::Record(|record, emit| {
            if let Some(wait) = record.gateway_queue_wait() {
                emit(&[record.tier.as_str()], wait.as_secs_f64());
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_queue_requests",
        help: "Requests waiting in the admission queue now.",
        kind: MetricKind::Gauge,
        labels: &[MetricLabel::QueueClass],
        read: MetricSource::Status(|vitals, emit| {
            for queue in &vitals.queue {
                emit(&[&queue.class], queue.waiting as f64);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_slow_requests_total",
        help: "Slow requests, by the cause that took most of their time.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::Model, MetricLabel::SlowCause],
        read: MetricSource::Record(|record, emit| {
            if let Some(cause) = record.slow {
                emit(&[record.model.as_str(), cause.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_empty_responses_total",
        help: "Responses that completed without error and had no text and no tool call outside of reasoning.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::Model],
        read: MetricSource::Record(|record, emit| {
            if record.is_empty_response() {
                emit(&[record.model.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_refusal_phrases_total",
        help: "Responses with a phrase that the configuration lists as a refusal.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::Model],
        read: MetricSource::Record(|record, emit| {
            if record.observed.has_refusal_phrase {
                emit(&[record.model.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_model_refusals_total",
        help: "Responses in which the model declined: a refusal field, the finish reason content_filter, or a configured phrase.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::Model],
        read: MetricSource::Record(|record, emit| {
            if record.is_model_refusal() {
                emit(&[record.model.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_max_tokens_utilization_ratio",
        help: "Output tokens / max_tokens of the request. At 1 the output was cut.",
        kind: MetricKind::Histogram(RATIO_BOUNDS),
        labels: &[MetricLabel::Model],
        read: MetricSource::Record(|record, emit| {
            if let Some(ratio) = record.max_tokens_utilization() {
                emit(&[record.model.as_str()], ratio);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_gateway_overhead_seconds",
        help: "Time that the gateway added: end of the request body to the request on an upstream connection, without the queue wait.",
        kind: MetricKind::Histogram(OVERHEAD_BOUNDS),
        labels: &[],
        read: MetricSource::Record(|record, emit| {
            if let Some(overhead) = record.overhead() {
                emit(&[], overhead.as_secs_f64());
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_uninspected_responses_total",
        help: "Responses whose content could not be read. Their bytes were forwarded unchanged.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::UninspectedReason],
        read: MetricSource::Record(|record, emit| {
            if let Some(reason) = record.observed.uninspected_reason {
                emit(&[reason.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_label_overflow_total",
        help: "Requests with a value unknown to a label. They are counted under _other, other or _OTHER.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::OverflowedLabel],
        read: MetricSource::Record(|record, emit| {
            for (label, is_overflowed) in OVERFLOW_LABELS.iter().zip(overflowed_labels(record)) {
                if is_overflowed {
                    emit(&[label.name()], 1.0);
                }
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_request_body_bytes_total",
        help: "Bytes of request bodies read from clients.",
        kind: MetricKind::Counter,
        labels: &[],
        read: MetricSource::Record(|record, emit| emit(&[], record.bytes_in as f64)),
    },
    MetricDescriptor {
        name: "tokenweir_response_body_bytes_total",
        help: "Bytes of response bodies written to clients.",
        kind: MetricKind::Counter,
        labels: &[],
        read: MetricSource::Record(|record, emit| emit(&[], record.bytes_out as f64)),
    },
];

/// Whether the value of the request is unknown, for each of [`OVERFLOW_LABELS`] in order.
fn overflowed_labels(record: &RequestRecord) -> [bool; 5] {
    [
        record.api.is_some() && !record.model.is_label_value(),
        record.tier == Tier::Other,
        record.observed.finish_reasons.contains(&Some(FinishReason::Other)),
        record.error_type() == Some("_OTHER"),
        record.caller.as_ref().is_some_and(|caller| !caller.is_tenant_label),
    ]
}
