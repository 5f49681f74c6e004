//! Every metric the gateway exports, one row each: name, help, kind, labels, and how to read it.
//! The README's table is checked against this list, and every series of a closed label set is
//! there from the start.

use super::metric::{Emit, Kind, Label, Read, Row, SPAN_RESULTS, TOKEN_TYPES};
use super::vitals::{BackendVitals, Vitals};
use crate::gaps;
use crate::openai::Api;
use crate::record::{Attempt, Outcome, RequestRecord, UsageSource};
use std::time::Duration;

/// Bounds of time to first token: OpenTelemetry's and vLLM's, and finer ones around common
/// objectives.
pub const TTFT_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5,
    2.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
];
/// Bounds of whole requests.
pub const DURATION_BOUNDS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
];
/// Bounds of what the gateway itself takes.
pub const OVERHEAD_BOUNDS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.5,
];
/// Bounds of a look at a replica.
pub const SCRAPE_BOUNDS: &[f64] = &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

/// The list.
pub const CATALOG: &[Row] = &[
    Row {
        name: "gen_ai_server_time_to_first_token_seconds",
        help: "Streams: request head read to the first generated output, in any channel.",
        kind: Kind::Histogram(TTFT_BOUNDS),
        labels: &[Label::Model, Label::Backend],
        read: Read::Record(|record, emit| by_model_and_backend(record, record.ttft(), emit)),
    },
    Row {
        name: "gen_ai_server_time_per_output_token_seconds",
        help: "Streams with an exact count: (last output - first output) / (output tokens - 1).",
        kind: Kind::Histogram(&gaps::BOUNDS),
        labels: &[Label::Model, Label::Backend],
        read: Read::Record(|record, emit| by_model_and_backend(record, record.tpot(), emit)),
    },
    Row {
        name: "gen_ai_server_request_duration_seconds",
        help: "Inference requests: request head read to the end of the exchange.",
        kind: Kind::Histogram(DURATION_BOUNDS),
        labels: &[Label::Model, Label::Backend, Label::ErrorType],
        read: Read::Record(|record, emit| {
            if let Some(backend) = record.backend() {
                let error = record.error_type().unwrap_or("");
                let labels = [record.model.as_str(), backend.as_str(), error];
                emit(&labels, record.duration().as_secs_f64());
            }
        }),
    },
    Row {
        name: "tokenweir_inter_chunk_seconds",
        help: "Time from one event with output to the next, as it arrived from the replica.",
        kind: Kind::Histogram(&gaps::BOUNDS),
        labels: &[Label::Model, Label::Backend],
        read: Read::Gaps(|record| {
            let gaps = &record.observed.gaps;
            (gaps.count() > 0).then_some(gaps)
        }),
    },
    Row {
        name: "tokenweir_requests_total",
        help: "Requests by how they ended.",
        kind: Kind::Counter,
        labels: &[Label::Model, Label::Operation, Label::Outcome],
        read: Read::Record(|record, emit| {
            let operation = record.api.map_or("none", Api::operation);
            emit(&[record.model.as_str(), operation, record.outcome.as_str()], 1.0);
        }),
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
        name: "tokenweir_tokens_total",
        help: "Tokens as the engine counted them. Cached tokens are part of the input, reasoning of the output.",
        kind: Kind::Counter,
        labels: &[Label::Model, Label::TokenType],
        read: Read::Record(|record, emit| {
            let usage = &record.observed.usage;
            let counts = [usage.input, usage.output, usage.cached, usage.reasoning];
            for (kind, count) in TOKEN_TYPES.iter().zip(counts) {
                if let Some(count) = count {
                    emit(&[record.model.as_str(), kind], count as f64);
                }
            }
        }),
    },
    Row {
        name: "tokenweir_estimated_output_tokens_total",
        help: "Output of answers without a count, estimated from their events.",
        kind: Kind::Counter,
        labels: &[Label::Model],
        read: Read::Record(|record, emit| {
            if record.observed.usage_source == UsageSource::Missing && record.output_tokens() > 0 {
                emit(&[record.model.as_str()], record.output_tokens() as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_attempts_total",
        help: "Times that a request was sent to a replica, by how that went.",
        kind: Kind::Counter,
        labels: &[Label::Backend, Label::Result],
        read: Read::Record(|record, emit| {
            for attempt in &record.attempts {
                emit(&[attempt.backend.as_str(), attempt_result(attempt)], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_route_decisions_total",
        help: "Choices of a replica, by the winning reason.",
        kind: Kind::Counter,
        labels: &[Label::Backend, Label::RouteReason],
        read: Read::Record(|record, emit| {
            if let (Some(backend), Some(decision)) = (record.backend(), &record.decision) {
                emit(&[backend.as_str(), decision.reason], 1.0);
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
        help: "Requests whose model is not one that a replica serves: they have the label _other.",
        kind: Kind::Counter,
        labels: &[],
        read: Read::Record(|record, emit| {
            if record.api.is_some() && !record.model.is_known() {
                emit(&[], 1.0);
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
    Row {
        name: "tokenweir_scrape_duration_seconds",
        help: "How long a replica's metrics page took.",
        kind: Kind::Histogram(SCRAPE_BOUNDS),
        labels: &[Label::Backend],
        read: Read::Scrape(|scrape, emit| emit(&[scrape.backend], scrape.took.as_secs_f64())),
    },
    Row {
        name: "tokenweir_scrape_errors_total",
        help: "Metrics pages that could not be used.",
        kind: Kind::Counter,
        labels: &[Label::Backend, Label::ScrapeError],
        read: Read::Scrape(|scrape, emit| {
            if let Some(error) = scrape.error {
                emit(&[scrape.backend, error.as_str()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_requests_in_flight",
        help: "Requests between their first byte and their last.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| emit(&[], vitals.in_flight as f64)),
    },
    Row {
        name: "tokenweir_ready",
        help: "1 while the gateway takes requests.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| emit(&[], f64::from(u8::from(vitals.ready)))),
    },
    Row {
        name: "tokenweir_backend_up",
        help: "1 if the replica may be sent requests.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_backend(vitals, emit, |backend| Some(f64::from(u8::from(backend.health == "up"))));
        }),
    },
    Row {
        name: "tokenweir_backend_requests_in_flight",
        help: "Requests of this gateway at the replica.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_backend(vitals, emit, |backend| Some(f64::from(backend.in_flight)));
        }),
    },
    Row {
        name: "tokenweir_backend_kv_usage_ratio",
        help: "Share of the replica's KV cache that requests hold, as it last said. NaN: it did not.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| by_backend(vitals, emit, |backend| backend.kv_usage)),
    },
    Row {
        name: "tokenweir_backend_waiting",
        help: "Requests that wait in the replica's engine, as it last said. NaN: it did not.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| by_backend(vitals, emit, |backend| backend.waiting)),
    },
    Row {
        name: "tokenweir_backend_running",
        help: "Requests that run in the replica's engine, as it last said. NaN: it did not.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| by_backend(vitals, emit, |backend| backend.running)),
    },
    Row {
        name: "tokenweir_backend_snapshot_age_seconds",
        help: "Age of what the replica last said. NaN: it never said anything that was understood.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_backend(vitals, emit, |backend| backend.sample_age_seconds);
        }),
    },
    Row {
        name: "tokenweir_otel_spans_total",
        help: "Spans by what became of them. Dropped ones are queued - exported - failed.",
        kind: Kind::Counter,
        labels: &[Label::Span],
        read: Read::Vitals(|vitals, emit| {
            let spans = &vitals.spans;
            let counts = [spans.queued, spans.exported, spans.failed, spans.filtered];
            for (result, count) in SPAN_RESULTS.iter().zip(counts) {
                emit(&[result], count as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_build_info",
        help: "Always 1; the version is a label.",
        kind: Kind::Gauge,
        labels: &[Label::Version],
        read: Read::Vitals(|_, emit| emit(&[env!("CARGO_PKG_VERSION")], 1.0)),
    },
];

fn by_model_and_backend(record: &RequestRecord, value: Option<Duration>, emit: Emit<'_>) {
    if let (Some(value), Some(backend)) = (value, record.backend()) {
        emit(&[record.model.as_str(), backend.as_str()], value.as_secs_f64());
    }
}

/// A value that is not known is NaN: a gap in a graph, never a zero.
fn by_backend(vitals: &Vitals, emit: Emit<'_>, read: fn(&BackendVitals) -> Option<f64>) {
    for backend in &vitals.backends {
        emit(&[&backend.backend], read(backend).unwrap_or(f64::NAN));
    }
}

fn attempt_result(attempt: &Attempt) -> &'static str {
    match (attempt.failure, attempt.status) {
        (Some(failure), _) => failure,
        (None, Some(500..)) => "error_status",
        _ => "ok",
    }
}
