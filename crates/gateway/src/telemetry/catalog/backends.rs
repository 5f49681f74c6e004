//! Metrics of backends: attempts, scrapes of their metrics pages, the load that their engines report,
//! stalls of streams, and verdicts of the diagnosis.

use crate::metric::prelude::*;
use tokenweir_engine::engine_metrics::{ENGINE_METRICS, ScrapeError};
use tokenweir_request::record::Attempt;
use tokenweir_routing::resilience::{Availability, FailureKind};

/// Bucket bounds of the duration of one scrape of the metrics page of a backend, in seconds.
const SCRAPE_DURATION_BOUNDS: &[f64] = &[
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
];

pub(super) const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_attempts_total",
        "Attempts to serve a request on a backend, by result.",
        &[BACKEND, computed("result", attempt_results)],
        Record(|record, emit| {
            for attempt in &record.attempts {
                emit(&[attempt.backend.as_str(), attempt_result(attempt)], 1.0);
            }
        }),
    ),
    row(
        "tokenweir_routing_decisions_total",
        "Routing decisions, by chosen backend and deciding reason.",
        &[BACKEND, DECISION_REASON],
        RecordValue(|_| Some(1.0)),
    ),
    histogram(
        SCRAPE_DURATION_METRIC,
        "Duration of one scrape of a backend's metrics page.",
        SCRAPE_DURATION_BOUNDS,
        &[BACKEND],
        Recorded,
    ),
    row(
        SCRAPE_ERRORS_METRIC,
        "Scrapes of backend metrics that failed, by kind of error.",
        &[BACKEND, fixed("kind", ScrapeError::NAMES)],
        Recorded,
    ),
    value(
        "tokenweir_requests_in_flight",
        "Requests in progress.",
        |status| Some(status.requests_in_flight as f64),
    ),
    value(
        "tokenweir_ready",
        "1 while at least one backend can be used and the gateway is not shutting down.",
        |status| Some(f64::from(status.ready)),
    ),
    of_backend(
        "tokenweir_backend_up",
        "1 if the backend may receive requests now. tokenweir_backend_state gives the reason if not.",
        |backend| Some(f64::from(backend.facts.up)),
    ),
    row(
        "tokenweir_backend_state",
        "1 for the current state of the backend, 0 for the other states.",
        &[BACKEND, fixed("state", Availability::NAMES)],
        BackendValues(|backend, emit| {
            for state in Availability::NAMES {
                emit(&[state], Some(f64::from(backend.facts.state == *state)));
            }
        }),
    ),
    value(
        "tokenweir_panic_mode",
        "1 while so many backends of a model are ejected that ejections are ignored.",
        |status| Some(f64::from(status.panic_mode)),
    ),
    row(
        "tokenweir_model_queue_requests",
        "Requests waiting in the admission queue now, because the backends of the model are full or none is available.",
        &[MODEL],
        Status(|status, emit| {
            for queue in &status.model_queues {
                emit(&[&queue.model], queue.waiting as f64);
            }
        }),
    ),
    of_backend_or_leaving(
        "tokenweir_backend_requests_in_flight",
        "Requests of this gateway in progress on the backend.",
        |backend| Some(f64::from(backend.facts.in_flight)),
    ),
    of_backend_or_leaving(
        "tokenweir_streams_stalled",
        "Open streams of the backend without output for longer than the stall threshold.",
        |backend| Some(f64::from(backend.facts.stalled)),
    ),
    of_backend_or_leaving(
        "tokenweir_stalls_total",
        "Stalls of streams of the backend.",
        |backend| Some(backend.stalls as f64),
    ),
    of_backend(
        "tokenweir_backend_kv_usage_ratio",
        "Share of the backend's KV cache in use. NaN: not reported.",
        |backend| or_nan(backend.facts.kv_usage),
    ),
    of_backend(
        "tokenweir_backend_waiting_requests",
        "Requests waiting in the backend's engine. NaN: not reported.",
        |backend| or_nan(backend.facts.waiting),
    ),
    of_backend(
        "tokenweir_backend_running_requests",
        "Requests running in the backend's engine. NaN: not reported.",
        |backend| or_nan(backend.facts.running),
    ),
    of_backend(
        "tokenweir_backend_preemptions_total",
        "Preemptions of running requests by the backend's engine. Absent: not reported.",
        |backend| backend.preemptions,
    ),
    of_backend(
        "tokenweir_backend_scrape_age_seconds",
        "Age of the backend's last successful scrape. NaN: no scrape has succeeded.",
        |backend| or_nan(backend.facts.scrape_age_seconds),
    ),
    row(
        "tokenweir_backend_metric_available",
        "1 if the backend's metrics page has the metric.",
        &[
            BACKEND,
            computed("metric", || {
                ENGINE_METRICS.map(|metric| metric.name).to_vec()
            }),
        ],
        BackendValues(|backend, emit| {
            let metrics = &backend.metrics;
            for (names, value) in [(&metrics.available, 1.0), (&metrics.missing, 0.0)] {
                for name in names {
                    emit(&[name], Some(value));
                }
            }
        }),
    ),
];

const DECISION_REASON: MetricLabel = fixed("reason", tokenweir_routing::REASONS)
    .of_request(|record| Some(record.decision.as_ref()?.reason()));
fn attempt_results() -> Vec<&'static str> {
    [
        &["ok", "client_error", "error_status", "stale"][..],
        FailureKind::NAMES,
    ]
    .concat()
}

/// Returns the result of an attempt as a label value: for a failed attempt, the kind of the failure. Other
/// values are `error_status` (the backend answered with 5xx), `client_error` (the backend answered with 4xx,
/// caused by the client) and `ok`.
fn attempt_result(attempt: &Attempt) -> &'static str {
    match (attempt.failure, attempt.status) {
        (Some(failure), _) => failure,
        (None, Some(500..)) => "error_status",
        (None, Some(400..)) => "client_error",
        _ => "ok",
    }
}
