//! The dashboard row of the golden signals, which show whether clients are served well.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::{Panel, Thresholds};
use crate::dashboards::query::{filtered_metric, gauge_by, quantile, rate, share, total_rate};
use crate::outcomes::{FAILED_OUTCOMES, REFUSED_OUTCOME};

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Golden signals",
        panels: [
            vec![
                time_to_first_token(metrics),
                kv_usage(metrics),
                queue_depth(metrics),
                time_between_outputs(metrics),
            ],
            request_panels(metrics),
            capacity_panels(metrics),
        ]
        .concat(),
    }
}

/// The panel of the time to first token at p95.
fn time_to_first_token(metrics: &MetricCatalogue) -> Panel {
    Panel::stat(
        "TTFT p95",
        "s",
        "95 of 100 streams have their first output within this time. Below 1 s a chat \
         feels quick.",
    )
    .with_query(quantile(metrics, 0.95, "gen_ai_server_time_to_first_token_seconds", ""), "p95")
    .with_thresholds(Thresholds::Above(1.0, 2.0))
}

/// The panel of the requests that wait in the gateway and in engines.
fn queue_depth(metrics: &MetricCatalogue) -> Panel {
    Panel::stat(
        "Queue depth",
        "short",
        "Requests that wait in the gateway and in all engines. Good: near zero; a few that \
         come and go are harmless.",
    )
    .with_query(
        format!(
            "sum({})\n+ sum({})",
            filtered_metric(metrics, "tokenweir_queue_requests", ""),
            gauge_by(metrics, "backend", "tokenweir_backend_waiting_requests"),
        ),
        "waiting",
    )
    .with_thresholds(Thresholds::Above(10.0, 50.0))
}

/// The panel of the time between outputs at p95.
fn time_between_outputs(metrics: &MetricCatalogue) -> Panel {
    Panel::stat(
        "Time between outputs p95",
        "s",
        "Gaps between two outputs of a stream. Below 50 ms text flows; above 200 ms it is \
         slower than people read.",
    )
    .with_query(quantile(metrics, 0.95, "tokenweir_inter_chunk_latency_seconds", ""), "p95")
    .with_thresholds(Thresholds::Above(0.1, 0.2))
}

/// The panels of the rate of requests, and of the shares that failed or were refused.
fn request_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::stat("Requests", "reqps", "Ended requests per second, with any outcome.")
            .with_query(total_rate(metrics, "tokenweir_requests_total", ""), "requests")
            .with_width(2),
        Panel::stat(
            "Failed",
            "percentunit",
            "Share of requests that a backend failed: errors, incomplete streams, no response. \
             Good: 0.",
        )
        .with_query(share_of_requests(metrics, FAILED_OUTCOMES), "failed")
        .with_thresholds(Thresholds::Above(0.01, 0.05))
        .with_width(2),
        Panel::stat(
            "Refused",
            "percentunit",
            "Share of requests that the gateway refused with 429 or 503: no backend was \
             available or had capacity, or the gateway was at its own limit. Good: 0.",
        )
        .with_query(share_of_requests(metrics, REFUSED_OUTCOME), "refused")
        .with_thresholds(Thresholds::Above(0.01, 0.05))
        .with_width(2),
    ]
}

/// The panels of the output tokens and of the available backends.
fn capacity_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::stat("Output tokens", "short", "Output tokens per second of all backends.")
            .with_query(
                format!(
                    "{}\n+ sum({})",
                    total_rate(metrics, "tokenweir_tokens_total", "type=\"output\""),
                    rate(metrics, "tokenweir_estimated_output_tokens_total", ""),
                ),
                "tokens/s",
            ),
        Panel::stat("Backends up", "percentunit", "Share of the backends that are available.")
            .with_query(
                format!("avg({})", gauge_by(metrics, "backend", "tokenweir_backend_up")),
                "up",
            )
            .with_thresholds(Thresholds::Below(1.0, 0.5)),
    ]
}

/// Share of the requests with these outcomes.
fn share_of_requests(metrics: &MetricCatalogue, outcomes: &str) -> String {
    let requests = |filter| total_rate(metrics, "tokenweir_requests_total", filter);
    share(&requests(outcomes), &requests(""))
}

fn kv_usage(metrics: &MetricCatalogue) -> Panel {
    Panel::stat(
        "KV usage, maximum",
        "percentunit",
        "KV usage of the fullest backend. High usage is efficient until requests wait or \
         are preempted: then see Cache efficiency.",
    )
    .with_query(
        format!("max({})", gauge_by(metrics, "backend", "tokenweir_backend_kv_usage_ratio")),
        "fullest",
    )
    .with_thresholds(Thresholds::Above(0.9, 0.97))
}
