//! The dashboard row about the gateway itself: its overhead, its scheduling delay, its resources, rejected requests and
//! dropped records.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::{Panel, Thresholds};
use crate::dashboards::query::{filtered_metric, quantile, quantile_by, rate_by, total_rate};

/// The matchers of the metrics of the gateway processes, which are not in the catalogue.
const PROCESS_MATCHERS: &str = "job=\"tokenweir\",instance=~\"$gateway\"";

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Gateway",
        panels: [
            delays(metrics),
            vec![telemetry_cpu_share(metrics)],
            resources(metrics),
            unsuccessful_requests(metrics),
            scrapes(metrics),
            records(metrics),
        ]
        .concat(),
    }
}

/// The latency that the gateway adds, and the delay of its timers.
fn delays(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Overhead",
            "s",
            "Time of the gateway itself, from the end of the request body to handing the \
             request to a connection. Good: far below 1 ms.",
        )
        .with_query(quantile(metrics, 0.5, "tokenweir_gateway_overhead_seconds", ""), "p50")
        .with_query(quantile(metrics, 0.99, "tokenweir_gateway_overhead_seconds", ""), "p99")
        .with_thresholds(Thresholds::Above(0.005, 0.01)),
        Panel::lines(
            "Chunk transit",
            "s",
            "Time from the read of bytes of a stream to the end of their write to the client, \
             over HTTP/1.1. Good: below 0.1 ms.",
        )
        .with_query(quantile(metrics, 0.5, "tokenweir_chunk_transit_seconds", ""), "p50")
        .with_query(quantile(metrics, 0.99, "tokenweir_chunk_transit_seconds", ""), "p99")
        .with_thresholds(Thresholds::Above(0.001, 0.005)),
        Panel::lines(
            "Scheduling delay p99",
            "s",
            "Delay of a timer of the gateway. Above 5 ms, its worker threads are blocked or the \
             process lacks CPU.",
        )
        .with_query(
            quantile_by(metrics, 0.99, "le, instance", "tokenweir_scheduling_delay_seconds", ""),
            "{{instance}}",
        )
        .with_thresholds(Thresholds::Above(0.005, 0.05)),
    ]
}

/// The panel of the share of telemetry in the CPU time of the gateways.
fn telemetry_cpu_share(metrics: &MetricCatalogue) -> Panel {
    Panel::stacked(
        "Share of telemetry in CPU",
        "percentunit",
        "Part of the CPU time of the gateways that telemetry uses. The observation of \
         responses is not included.",
    )
    .with_query(
        format!(
            "{}\n/ scalar({} > 0)",
            rate_by(metrics, "part", "tokenweir_telemetry_cpu_seconds_total", ""),
            total_rate(metrics, "process_cpu_seconds_total", PROCESS_MATCHERS)
        ),
        "{{part}}",
    )
}

/// CPU, memory and requests in flight.
fn resources(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines("CPU", "none", "CPU cores in use.").with_rate_by(
            metrics,
            "instance",
            "process_cpu_seconds_total",
            PROCESS_MATCHERS,
        ),
        Panel::lines("Memory", "bytes", "Resident memory. It follows the requests in flight.")
            .with_query(
                format!("sum by (instance) (process_resident_memory_bytes{{{PROCESS_MATCHERS}}})"),
                "{{instance}}",
            ),
        Panel::lines(
            "Requests in flight",
            "short",
            "Requests between their first and their last byte.",
        )
        .with_query(
            format!(
                "sum by (instance) ({})",
                filtered_metric(metrics, "tokenweir_requests_in_flight", "")
            ),
            "{{instance}}",
        ),
    ]
}

/// Requests that the gateway rejected, and attempts that failed.
fn unsuccessful_requests(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::stacked(
            "Rejected requests",
            "reqps",
            "Requests per second that the gateway answered itself with an error \
             (`x-gateway-error`), by reason.",
        )
        .with_rate_by(metrics, "reason", "tokenweir_requests_rejected_total", ""),
        Panel::lines(
            "Failed attempts",
            "reqps",
            "Failed attempts per second to serve a request on a backend. After a successful \
             failover, the client is not affected.",
        )
        .with_query(
            rate_by(metrics, "backend, result", "tokenweir_attempts_total", "result!=\"ok\""),
            "{{backend}} {{result}}",
        ),
    ]
}

/// Errors and duration of the scrapes of backends.
fn scrapes(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Scrape errors",
            "short",
            "Metrics pages per second that could not be used. Good: 0.",
        )
        .with_query(
            rate_by(metrics, "backend, kind", "tokenweir_scrape_errors_total", ""),
            "{{backend}} {{kind}}",
        ),
        Panel::lines("Scrape duration p95", "s", "Time to fetch the metrics page of a backend.")
            .with_query(quantile(metrics, 0.95, "tokenweir_scrape_duration_seconds", ""), "p95"),
    ]
}

/// Spans, responses without inspection, client write stalls, and records of the trace capture.
fn records(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Spans",
            "short",
            "Spans per second, by result. `exported` follows `queued`; the difference is \
             dropped.",
        )
        .with_rate_by(metrics, "result", "tokenweir_otel_spans_total", ""),
        Panel::lines(
            "Uninspected responses",
            "reqps",
            "Responses per second that were forwarded without inspection. They are missing in \
             the other panels. Good: 0.",
        )
        .with_rate_by(metrics, "reason", "tokenweir_uninspected_responses_total", ""),
        Panel::lines(
            "Client write stall p95",
            "s",
            "Time in which data was ready and the client did not read it. It is never part of \
             the latencies above.",
        )
        .with_query(quantile(metrics, 0.95, "tokenweir_client_write_stall_seconds", ""), "p95"),
        Panel::lines(
            "Trace capture records",
            "short",
            "Records per second, by result. Records are dropped if the disk is too slow.",
        )
        .with_rate_by(metrics, "result", "tokenweir_capture_records_total", ""),
    ]
}
