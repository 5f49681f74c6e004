//! The dashboard of one backend: the metrics of its engine and the measurements of the gateway.

use super::grid::{Dashboard, DashboardRow, DashboardVariable};
use super::panel::{Panel, Thresholds};
use super::query::{filtered_metric, mean_by, quantile, rate_by, total_rate};
use super::rows;
use crate::catalogue::MetricCatalogue;

const TTFT_METRIC: &str = "gen_ai_server_time_to_first_token_seconds";

/// The dashboard of one backend.
pub fn backend_dashboard(metrics: &MetricCatalogue) -> Dashboard {
    Dashboard {
        uid: "tokenweir-backend",
        title: "tokenweir: one backend",
        description: "Metrics of one backend beside the measurements of the gateway. Compare it \
                      with the other backends on the main dashboard.",
        variables: vec![DashboardVariable::MODELS, DashboardVariable::BACKEND],
        rows: vec![
            build_current_row(metrics),
            rows::build_backend_row(metrics),
            build_gateway_view_row(metrics),
            build_engine_view_row(metrics),
        ],
    }
}

/// The row of the latest values.
fn build_current_row(metrics: &MetricCatalogue) -> DashboardRow {
    let latest = |name: &str| format!("max({})", filtered_metric(metrics, name, ""));
    DashboardRow {
        title: "Now",
        panels: vec![
            Panel::stat("Up", "none", "1: the backend is available.")
                .with_query(latest("tokenweir_backend_up"), "up")
                .with_thresholds(Thresholds::Below(1.0, 1.0)),
            Panel::stat("KV usage", "percentunit", "Share of the KV cache that requests occupy.")
                .with_query(latest("tokenweir_backend_kv_usage_ratio"), "used")
                .with_thresholds(Thresholds::Above(0.9, 0.97)),
            Panel::stat("Waiting", "short", "Requests in the queue of the engine. Good: near 0.")
                .with_query(latest("tokenweir_backend_waiting_requests"), "waiting")
                .with_thresholds(Thresholds::Above(8.0, 16.0)),
            Panel::stat("Running", "short", "Requests in the batch of the engine.")
                .with_query(latest("tokenweir_backend_running_requests"), "running"),
            Panel::stat("Stalled streams", "short", "Stalled streams, now. Good: 0.")
                .with_query(
                    format!("sum({})", filtered_metric(metrics, "tokenweir_streams_stalled", "")),
                    "stalled",
                )
                .with_thresholds(Thresholds::Above(1.0, 3.0)),
            Panel::stat("TTFT p95", "s", "Time to first token at p95, as clients see it.")
                .with_query(quantile(metrics, 0.95, TTFT_METRIC, ""), "p95")
                .with_thresholds(Thresholds::Above(1.0, 2.0)),
            Panel::stat("Scrape age", "s", "Below 1 s under load.")
                .with_query(latest("tokenweir_backend_scrape_age_seconds"), "age")
                .with_thresholds(Thresholds::Above(6.0, 20.0)),
            Panel::stat(
                "Load freshness",
                "percentunit",
                "Weight of the last scraped load in routing: 1 when new.",
            )
            .with_query(latest("tokenweir_backend_load_freshness_ratio"), "weight"),
        ],
    }
}

/// The row of measurements by the gateway.
fn build_gateway_view_row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Measured by the gateway",
        panels: vec![
            Panel::lines("Time to first token", "s", "The dots are exemplars.")
                .quantiles(metrics, TTFT_METRIC),
            Panel::lines("Time between outputs", "s", "The dots are exemplars.")
                .quantiles(metrics, "tokenweir_inter_chunk_latency_seconds"),
            Panel::lines(
                "Tokens per event, mean",
                "none",
                "Above 1: speculative decoding, or merged events.",
            )
            .with_query(
                mean_by(metrics, "gen_ai_request_model", "tokenweir_chunk_tokens", ""),
                "{{gen_ai_request_model}}",
            ),
            Panel::stacked(
                "Phases, mean",
                "s",
                "Mean time of the phases of streams. Estimated, unless the engine reports it with \
                 responses.",
            )
            .with_query(mean_by(metrics, "phase", "tokenweir_phase_seconds", ""), "{{phase}}"),
            Panel::lines("Attempts", "reqps", "Attempts per second on this backend, by result.")
                .with_query(
                    rate_by(metrics, "result", "tokenweir_attempts_total", ""),
                    "{{result}}",
                ),
            Panel::lines("Stalls", "short", "Streams per second that stalled.")
                .with_query(
                    rate_by(metrics, "backend", "tokenweir_stalls_total", ""),
                    "{{backend}}",
                ),
            Panel::lines(
                "Prefill backlog",
                "short",
                "Predicted prompt tokens that the engine computes before those of a new request.",
            )
            .with_query(
                format!(
                    "max({})",
                    filtered_metric(metrics, "tokenweir_backend_prefill_backlog_tokens", "")
                ),
                "tokens",
            ),
            Panel::lines(
                "Scrape errors",
                "short",
                "Scrape errors per second, by kind. Good: an empty panel.",
            )
            .with_query(rate_by(metrics, "kind", "tokenweir_scrape_errors_total", ""), "{{kind}}"),
            Panel::lines(
                "Available engine metrics",
                "none",
                "0: the metrics page lacks this metric, and routing does without it. The log of the \
                 gateway has the consequences.",
            )
            .with_query(
                format!(
                    "min by (metric) ({})",
                    filtered_metric(metrics, "tokenweir_backend_metric_available", "")
                ),
                "{{metric}}",
            ),
        ],
    }
}

/// The row of metrics that the engine reports, compared with those of the gateway.
fn build_engine_view_row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Reported by the engine",
        panels: vec![
            Panel::lines(
                "TTFT of engine and gateway, mean",
                "s",
                "The difference is time that the engine does not see: its API server, the network, \
                 the gateway's queue.",
            )
            .with_query(
                mean_by(metrics, "backend", "vllm:time_to_first_token_seconds", ""),
                "engine",
            )
            .with_query(mean_by(metrics, "backend", TTFT_METRIC, ""), "gateway"),
            Panel::lines(
                "Queue and prefill, mean",
                "s",
                "Times in the engine, for all its requests.",
            )
            .with_query(mean_by(metrics, "backend", "vllm:request_queue_time_seconds", ""), "queue")
            .with_query(
                mean_by(metrics, "backend", "vllm:request_prefill_time_seconds", ""),
                "prefill",
            ),
            Panel::lines(
                "Tokens",
                "short",
                "Tokens per second of the engine, for the requests of all clients.",
            )
            .with_query(total_rate(metrics, "vllm:prompt_tokens_total", ""), "prompt")
            .with_query(total_rate(metrics, "vllm:generation_tokens_total", ""), "generated"),
        ],
    }
}
