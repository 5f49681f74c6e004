//! Replicas: what was sent to them, what they say of themselves, and the gateway itself.

use super::super::metric::{
    ACCESS_RESULTS, CAPTURE_RESULTS, CONTENT_RESULTS, Emit, Kind, Label, PUSH_RESULTS, Read, Row,
    SPAN_RESULTS,
};
use super::super::vitals::{BackendVitals, LEAVING, Vitals};
use super::SCRAPE_BOUNDS;
use crate::backend::Availability;
use tokenweir_core::record::Attempt;
use tokenweir_diagnose::RULES;

pub(super) const ROWS: &[Row] = &[
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
        help: "Choices of a replica, by the winning reason. Reason panic_mode: requests routed although most replicas are ejected.",
        kind: Kind::Counter,
        labels: &[Label::Backend, Label::RouteReason],
        read: Read::Record(|record, emit| {
            if let (Some(backend), Some(decision)) = (record.backend(), &record.decision) {
                emit(&[backend.as_str(), decision.reason()], 1.0);
            }
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
        help: "1 while the gateway takes requests: a replica may be sent requests, and it is not shutting down.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| emit(&[], f64::from(u8::from(vitals.ready)))),
    },
    Row {
        name: "tokenweir_backend_up",
        help: "1 if the replica may be sent requests now. Its state says why not.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_backend(vitals, emit, |backend| Some(f64::from(u8::from(backend.up))));
        }),
    },
    Row {
        name: "tokenweir_backend_state",
        help: "1 for the state of the replica, 0 for the others. Requests go to available ones, and in panic mode also to ejected ones.",
        kind: Kind::Gauge,
        labels: &[Label::Backend, Label::State],
        read: Read::Vitals(|vitals, emit| {
            for backend in members(vitals) {
                for state in Availability::ALL.map(Availability::as_str) {
                    let is_it = backend.state == state;
                    emit(&[&backend.backend, state], f64::from(u8::from(is_it)));
                }
            }
        }),
    },
    Row {
        name: "tokenweir_panic_mode",
        help: "1 while so many replicas are ejected that ejections are ignored (health.panic_threshold), for all models or for some.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| emit(&[], f64::from(u8::from(vitals.panic)))),
    },
    Row {
        name: "tokenweir_backend_requests_in_flight",
        help: "Requests of this gateway at the replica.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_holder(vitals, emit, |backend| f64::from(backend.in_flight));
        }),
    },
    Row {
        name: "tokenweir_streams_stalled",
        help: "Streams of the replica that have been silent for too long, now.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_holder(vitals, emit, |backend| f64::from(backend.stalled));
        }),
    },
    Row {
        name: "tokenweir_stalls_total",
        help: "Times that a stream of the replica fell silent for too long.",
        kind: Kind::Counter,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_holder(vitals, emit, |backend| backend.stalls as f64);
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
        name: "tokenweir_backend_preemptions_total",
        help: "Times that the replica took the KV blocks of a running request, as it last said. NaN: it did not.",
        kind: Kind::Counter,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| by_backend(vitals, emit, |backend| backend.preemptions)),
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
        name: "tokenweir_backend_signal",
        help: "1 if the replica's metrics tell this, 0 if not, or if they never could be used.",
        kind: Kind::Gauge,
        labels: &[Label::Backend, Label::Signal],
        read: Read::Vitals(|vitals, emit| {
            for backend in members(vitals) {
                let signals = &backend.signals;
                for (names, value) in [(&signals.offered, 1.0), (&signals.missing, 0.0)] {
                    for name in names {
                        emit(&[&backend.backend, name], value);
                    }
                }
            }
        }),
    },
    Row {
        name: "tokenweir_verdict",
        help: "1 while diagnosis finds the condition at the replica, 0 while it does not. NaN: it cannot tell.",
        kind: Kind::Gauge,
        labels: &[Label::Backend, Label::Condition],
        read: Read::Vitals(|vitals, emit| {
            for backend in members(vitals) {
                for rule in &RULES {
                    let is_found = vitals.diagnosis.has(rule.name, &backend.backend);
                    let value = is_found.map_or(f64::NAN, |it| f64::from(u8::from(it)));
                    emit(&[&backend.backend, rule.name], value);
                }
            }
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
        name: "tokenweir_capture_records_total",
        help: "Requests that a capture kept, by what became of their records.",
        kind: Kind::Counter,
        labels: &[Label::Capture],
        read: Read::Vitals(|vitals, emit| {
            let counts = [vitals.capture.written, vitals.capture.dropped];
            for (result, count) in CAPTURE_RESULTS.iter().zip(counts) {
                emit(&[result], count as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_access_log_lines_total",
        help: "Lines of the access log, by whether they were written, left out under load or too many for the reader.",
        kind: Kind::Counter,
        labels: &[Label::AccessLine],
        read: Read::Vitals(|vitals, emit| {
            let lines = &vitals.logs.access;
            let counts = [lines.written, lines.left_out, lines.dropped];
            for (result, count) in ACCESS_RESULTS.iter().zip(counts) {
                emit(&[result], count as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_content_records_total",
        help: "Requests whose text was to be kept (log.content), by what became of it.",
        kind: Kind::Counter,
        labels: &[Label::Content],
        read: Read::Vitals(|vitals, emit| {
            let records = &vitals.logs.content;
            let counts = [records.written, records.dropped, records.redactor_failed];
            for (result, count) in CONTENT_RESULTS.iter().zip(counts) {
                emit(&[result], count as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_otlp_metric_pushes_total",
        help: "Pushes of these metrics to a collector, by whether it took them.",
        kind: Kind::Counter,
        labels: &[Label::Push],
        read: Read::Vitals(|vitals, emit| {
            let counts = [vitals.pushes.ok, vitals.pushes.failed];
            for (result, count) in PUSH_RESULTS.iter().zip(counts) {
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

/// Of each replica of the fleet. A value that is not known is NaN: a gap in a graph, never a zero.
pub(super) fn by_backend(vitals: &Vitals, emit: Emit<'_>, read: fn(&BackendVitals) -> Option<f64>) {
    for backend in members(vitals) {
        emit(&[&backend.backend], read(backend).unwrap_or(f64::NAN));
    }
}

/// Of each replica that has requests or may get some, those that went away among them.
fn by_holder(vitals: &Vitals, emit: Emit<'_>, read: fn(&BackendVitals) -> f64) {
    for backend in &vitals.backends {
        emit(&[&backend.backend], read(backend));
    }
}

fn members(vitals: &Vitals) -> impl Iterator<Item = &BackendVitals> {
    vitals.backends.iter().filter(|backend| backend.health != LEAVING)
}

fn attempt_result(attempt: &Attempt) -> &'static str {
    match (attempt.failure, attempt.status) {
        (Some(failure), _) => failure,
        (None, Some(500..)) => "error_status",
        _ => "ok",
    }
}
