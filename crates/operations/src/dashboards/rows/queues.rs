//! The dashboard row of queues and scheduling: waiting requests and waiting times.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::{Panel, Thresholds};
use crate::dashboards::query::{engine_mean, filtered_metric, gauge_by, quantile};

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Queue and scheduling",
        panels: [
            engine_queue_panels(metrics),
            batch_panels(metrics),
            gateway_queue_panels(metrics),
            vec![engine_waiting_time(metrics), shed_requests(metrics)],
        ]
        .concat(),
    }
}

/// The panels of the requests that wait in engines.
fn engine_queue_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Waiting in engines",
            "short",
            "Requests in the queue of each engine. Good: near 0, because these requests can no \
             longer go to another backend.",
        )
        .with_gauge_by(metrics, "backend", "tokenweir_backend_waiting_requests")
        .with_thresholds(Thresholds::Above(8.0, 16.0)),
        Panel::lines(
            "Waiting in engines, by reason",
            "short",
            "`capacity`: the batch or the KV cache is full. `deferred`: the request waits for \
             a LoRA adapter or a KV transfer, and more capacity would not help.",
        )
        .with_query(
            gauge_by(metrics, "backend, reason", "tokenweir_engine_waiting_requests"),
            "{{backend}} {{reason}}",
        ),
    ]
}

/// The panels of the batch of each engine.
fn batch_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::stacked(
            "Running in engines",
            "short",
            "Requests in the batch of each engine. Equal backends should have equal values.",
        )
        .with_gauge_by(metrics, "backend", "tokenweir_backend_running_requests"),
        Panel::lines(
            "Batch utilisation",
            "percentunit",
            "Running requests ÷ the sequences that the engine runs at once (`--max-num-seqs`). \
             vLLM does not export the limit; the gateway learns it while requests wait in the \
             engine. Empty: no request has waited.",
        )
        .with_query(
            format!(
                "{}\n/ ({} > 0)",
                gauge_by(metrics, "backend", "tokenweir_backend_running_requests"),
                gauge_by(metrics, "backend", "tokenweir_backend_sequence_slots")
            ),
            "{{backend}}",
        ),
    ]
}

/// The panels of the admission queue of the gateway.
fn gateway_queue_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::stacked(
            "Waiting in the gateway",
            "short",
            "Requests in the admission queue, by class. They wait because every backend is \
             full; the first backend with capacity takes the next one.",
        )
        .with_query(
            format!(
                "sum by (class) ({})",
                filtered_metric(metrics, "tokenweir_queue_requests", "")
            ),
            "{{class}}",
        ),
        Panel::lines("Waiting time in the gateway", "s", "For requests that had to wait.")
            .with_query(quantile(metrics, 0.5, "tokenweir_queue_wait_seconds", ""), "p50")
            .with_query(quantile(metrics, 0.95, "tokenweir_queue_wait_seconds", ""), "p95")
            .with_thresholds(Thresholds::Above(5.0, 15.0)),
    ]
}

/// The panel of the mean waiting time that engines report.
fn engine_waiting_time(metrics: &MetricCatalogue) -> Panel {
    Panel::lines(
        "Waiting time in engines, mean",
        "s",
        "As the engines report it, for the requests of all their clients.",
    )
    .with_query(
        engine_mean(
            metrics,
            "tokenweir_engine_queue_seconds_total",
            "tokenweir_engine_queued_requests_total",
        ),
        "{{backend}}",
    )
    .with_thresholds(Thresholds::Above(0.5, 1.0))
}

/// The panel of the requests that the gateway shed.
fn shed_requests(metrics: &MetricCatalogue) -> Panel {
    Panel::stacked(
        "Shed requests",
        "reqps",
        "Requests per second, by reason. `saturated`: the queue was full. `shed`: a higher \
         class or a smaller tenant took the place in the queue. `queue_timeout`: the \
         request waited too long.",
    )
    .with_rate_by(metrics, "reason", "tokenweir_requests_shed_total", "")
}
