//! Requests: how many, how they ended, and what was wrong with them.

use super::super::metric::{Kind, Label, OVERFLOWING, Read, Row};
use super::{DURATION_BOUNDS, OVERHEAD_BOUNDS, QUEUE_BOUNDS, RATIO_BOUNDS};
use tokenweir_core::error;
use tokenweir_core::openai::{Api, Finish};
use tokenweir_core::record::{Outcome, RequestRecord, Tier};

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "gen_ai_server_request_duration_seconds",
        help: "Inference requests: request head read to the end of the exchange.",
        kind: Kind::Histogram(DURATION_BOUNDS),
        labels: &[Label::Model, Label::Backend, Label::GenAiOperation, Label::ErrorType],
        read: Read::Record(|record, emit| {
            if let (Some(backend), Some(api)) = (record.backend(), record.api) {
                let error = record.error_type().unwrap_or("");
                let labels = [record.model.as_str(), backend.as_str(), api.operation(), error];
                emit(&labels, record.duration().as_secs_f64());
            }
        }),
    },
    Row {
        name: "tokenweir_requests_total",
        help: "Requests by how they ended.",
        kind: Kind::Counter,
        labels: &[Label::Model, Label::Operation, Label::Outcome, Label::Tier],
        read: Read::Record(|record, emit| {
            let operation = record.api.map_or("none", Api::operation);
            let outcome = record.outcome.as_str();
            emit(&[record.model.as_str(), operation, outcome, record.tier.as_str()], 1.0);
        }),
    },
    Row {
        name: "tokenweir_endings_total",
        help: "Requests by how exactly they ended, and by who closed first.",
        kind: Kind::Counter,
        labels: &[Label::Ending, Label::ClosedBy],
        read: Read::Record(|record, emit| emit(&[record.ending(), record.end.by().as_str()], 1.0)),
    },
    Row {
        name: "tokenweir_finish_total",
        help: "Choices by the reason that the engine gave for their end.",
        kind: Kind::Counter,
        labels: &[Label::Model, Label::Finish],
        read: Read::Record(|record, emit| {
            for finish in record.observed.finish_reasons.iter().flatten() {
                emit(&[record.model.as_str(), finish.as_str()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_client_disconnects_total",
        help: "Clients that left before their answer was whole, by where the request was.",
        kind: Kind::Counter,
        labels: &[Label::Phase],
        read: Read::Record(|record, emit| {
            if record.outcome == Outcome::Cancelled {
                emit(&[record.phase()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_refusals_total",
        help: "Requests that the gateway answered itself with an error, by the reason.",
        kind: Kind::Counter,
        labels: &[Label::Refusal],
        read: Read::Record(|record, emit| {
            if let Some(reason) = record.refusal {
                emit(&[reason], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_shed_total",
        help: "Of those, requests that found every replica full: no place to wait, or no place in time.",
        kind: Kind::Counter,
        labels: &[Label::Shed],
        read: Read::Record(|record, emit| {
            if let Some(reason) = record.refusal.filter(|it| error::SHED_REASONS.contains(it)) {
                emit(&[reason], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_queue_wait_seconds",
        help: "Requests that had to wait for a replica with room: how long, whether they got one or not.",
        kind: Kind::Histogram(QUEUE_BOUNDS),
        labels: &[Label::Tier],
        read: Read::Record(|record, emit| {
            if let Some(wait) = record.queue_wait() {
                emit(&[record.tier.as_str()], wait.as_secs_f64());
            }
        }),
    },
    Row {
        name: "tokenweir_queue_requests",
        help: "Requests that wait for a replica with room, now.",
        kind: Kind::Gauge,
        labels: &[Label::Class],
        read: Read::Vitals(|vitals, emit| {
            for queue in &vitals.queue {
                emit(&[&queue.class], queue.waiting as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_slow_requests_total",
        help: "Slow requests, by the cause that took most of their time.",
        kind: Kind::Counter,
        labels: &[Label::Model, Label::Cause],
        read: Read::Record(|record, emit| {
            if let Some(cause) = record.slow {
                emit(&[record.model.as_str(), cause.as_str()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_empty_answers_total",
        help: "Answers that ended well and had no text and no tool call outside of reasoning.",
        kind: Kind::Counter,
        labels: &[Label::Model],
        read: Read::Record(|record, emit| {
            if record.is_empty_answer() {
                emit(&[record.model.as_str()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_refusal_phrases_total",
        help: "Answers with a phrase that the configuration lists as a refusal.",
        kind: Kind::Counter,
        labels: &[Label::Model],
        read: Read::Record(|record, emit| {
            if record.observed.has_refusal_phrase {
                emit(&[record.model.as_str()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_refused_answers_total",
        help: "Answers that refuse: a refusal of the model, a filter's, or a phrase that is listed.",
        kind: Kind::Counter,
        labels: &[Label::Model],
        read: Read::Record(|record, emit| {
            if record.is_refused_answer() {
                emit(&[record.model.as_str()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_output_to_limit_ratio",
        help: "Output tokens / the limit that the client set. At 1 the answer was cut.",
        kind: Kind::Histogram(RATIO_BOUNDS),
        labels: &[Label::Model],
        read: Read::Record(|record, emit| {
            if let Some(ratio) = record.output_to_limit() {
                emit(&[record.model.as_str()], ratio);
            }
        }),
    },
    Row {
        name: "tokenweir_gateway_overhead_seconds",
        help: "What the gateway took from the end of the request body to handing it to a connection.",
        kind: Kind::Histogram(OVERHEAD_BOUNDS),
        labels: &[],
        read: Read::Record(|record, emit| {
            if let Some(overhead) = record.overhead() {
                emit(&[], overhead.as_secs_f64());
            }
        }),
    },
    Row {
        name: "tokenweir_observer_lost_total",
        help: "Answers that could not be read as they passed. Their bytes were forwarded all the same.",
        kind: Kind::Counter,
        labels: &[Label::Lost],
        read: Read::Record(|record, emit| {
            if let Some(lost) = record.observed.lost {
                emit(&[lost.as_str()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_label_overflow_total",
        help: "Requests with a value that a label does not know: it stands under _other, other or _OTHER.",
        kind: Kind::Counter,
        labels: &[Label::Overflow],
        read: Read::Record(|record, emit| {
            for (label, is_folded) in OVERFLOWING.iter().zip(folded(record)) {
                if is_folded {
                    emit(&[label.name()], 1.0);
                }
            }
        }),
    },
    Row {
        name: "tokenweir_body_bytes_total",
        help: "Body bytes from clients and to them.",
        kind: Kind::Counter,
        labels: &[Label::Direction],
        read: Read::Record(|record, emit| {
            emit(&["in"], record.bytes_in as f64);
            emit(&["out"], record.bytes_out as f64);
        }),
    },
];

/// Which of [`OVERFLOWING`] do not know their value of a request.
fn folded(record: &RequestRecord) -> [bool; 5] {
    [
        record.api.is_some() && !record.model.is_label(),
        record.tier == Tier::Other,
        record.observed.finish_reasons.contains(&Some(Finish::Other)),
        record.error_type() == Some("_OTHER"),
        record.caller.as_ref().is_some_and(|caller| !caller.is_label),
    ]
}
