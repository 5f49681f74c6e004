//! The dashboard of one backend: the metrics of its engine and the measurements of the gateway.

use super::grid::{Dashboard, DashboardRow, DashboardVariable};
use super::panel::{Panel, Thresholds};
use super::query::{
    engine_mean, engine_rate, filtered_metric, gauge_by, mean_by, quantile, rate, rate_by,
};
use super::rows;
use crate::catalogue::MetricCatalogue;

const ENGINE_TOKENS_METRIC: &str = "tokenweir_engine_tokens_total";
const TTFT_METRIC: &str = "gen_ai_server_time_to_first_token_seconds";

/// The dashboard of one backend.
pub fn backend_dashboard(metrics: &MetricCatalogue) -> Dashboard {
    Dashboard {
        uid: "tokenweir-backend",
        title: "tokenweir: one backend",
        description: "Metrics of one backend beside the measurements of the gateway. Compare it \
                      with the other backends on the main dashboard.",
        variables: vec![
            DashboardVariable::GATEWAYS,
            DashboardVariable::MODELS,
            DashboardVariable::BACKEND,
        ],
        rows: vec![
            build_current_row(metrics),
            rows::build_backend_row(metrics),
            build_gateway_view_row(metrics),
            build_engine_view_row(metrics),
            build_engine_counter_row(metrics),
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
            Panel::lines("Attempts", "reqps", "Attempts per second on this backend, by result.")
                .with_rate_by(metrics, "result", "tokenweir_attempts_total", ""),
            Panel::lines("Stalls", "short", "Streams per second that stalled.").with_rate_by(
                metrics,
                "backend",
                "tokenweir_stalls_total",
                "",
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
            .with_rate_by(metrics, "kind", "tokenweir_scrape_errors_total", ""),
        ],
    }
}

/// The row of times that the engine reports, compared with those of the gateway.
fn build_engine_view_row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Reported by the engine",
        panels: vec![
            first_token_time(metrics),
            queue_and_prefill_time(metrics),
            inter_token_latency(metrics),
        ],
    }
}

/// The panel that compares the mean TTFT of the engine with that of the gateway.
fn first_token_time(metrics: &MetricCatalogue) -> Panel {
    Panel::lines(
        "TTFT of engine and gateway, mean",
        "s",
        "The difference is time that the engine does not see: its API server, the network, \
         the gateway's queue.",
    )
    .with_query(
        engine_mean(
            metrics,
            "tokenweir_engine_first_token_seconds_total",
            "tokenweir_engine_first_tokens_total",
        ),
        "engine",
    )
    .with_query(mean_by(metrics, "backend", TTFT_METRIC, ""), "gateway")
}

/// The panel of the mean times in the queue and in prefill.
fn queue_and_prefill_time(metrics: &MetricCatalogue) -> Panel {
    Panel::lines("Queue and prefill, mean", "s", "Times in the engine, for all its requests.")
        .with_query(
            engine_mean(
                metrics,
                "tokenweir_engine_queue_seconds_total",
                "tokenweir_engine_queued_requests_total",
            ),
            "queue",
        )
        .with_query(
            engine_mean(
                metrics,
                "tokenweir_engine_prefill_seconds_total",
                "tokenweir_engine_prefilled_requests_total",
            ),
            "prefill",
        )
}

/// The panel of the mean time between two tokens.
fn inter_token_latency(metrics: &MetricCatalogue) -> Panel {
    Panel::lines(
        "Inter-token latency, mean",
        "s",
        "Time between two tokens of a request, as the engine measures it.",
    )
    .with_query(
        engine_mean(
            metrics,
            "tokenweir_engine_inter_token_seconds_total",
            "tokenweir_engine_inter_token_gaps_total",
        ),
        "engine",
    )
}

/// The row of the counters that the engine reports.
fn build_engine_counter_row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Counted by the engine",
        panels: [
            engine_token_panels(metrics),
            vec![accepted_draft_tokens(metrics)],
            engine_fault_panels(metrics),
        ]
        .concat(),
    }
}

/// The panels of the tokens of the engine, beside those of the gateway.
fn engine_token_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Tokens",
            "short",
            "Tokens per second of the engine, for the requests of all clients.",
        )
        .with_query(engine_rate(metrics, "type", ENGINE_TOKENS_METRIC), "{{type}}"),
        Panel::lines(
            "Tokens of the gateway ÷ tokens of the engine",
            "percentunit",
            "Below 1: the engine serves other clients too, or clients disconnected. Above 1 for \
             an hour: a count is wrong.",
        )
        .with_query(
            format!(
                "{}\n/ {}",
                rate_by(metrics, "type", "tokenweir_backend_tokens_total", ""),
                engine_rate(metrics, "type", ENGINE_TOKENS_METRIC),
            ),
            "{{type}}",
        ),
        Panel::lines(
            "Prompt tokens per generated token",
            "none",
            "High: prefill determines the load of the engine. Low: decode does.",
        )
        .with_query(
            format!(
                "max({})\n/ max({})",
                rate(metrics, ENGINE_TOKENS_METRIC, "type=\"input\""),
                rate(metrics, ENGINE_TOKENS_METRIC, "type=\"output\""),
            ),
            "ratio",
        ),
    ]
}

/// The panel of the share of draft tokens that the engine accepted.
fn accepted_draft_tokens(metrics: &MetricCatalogue) -> Panel {
    Panel::lines(
        "Accepted draft tokens",
        "percentunit",
        "Share of the tokens proposed by speculative decoding that the engine accepted. \
         Empty: no speculative decoding.",
    )
    .with_query(
        engine_mean(
            metrics,
            "tokenweir_engine_accepted_tokens_total",
            "tokenweir_engine_draft_tokens_total",
        ),
        "accepted",
    )
}

/// The panels of conditions whose value is 0 on a healthy engine.
fn engine_fault_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Rejected and corrupted requests",
            "reqps",
            "Requests per second that the engine rejected at its own queue limit, and those \
             with NaN in their logits. Good: 0.",
        )
        .with_query(
            engine_rate(metrics, "backend", "tokenweir_engine_admission_rejections_total"),
            "rejected",
        )
        .with_query(
            engine_rate(metrics, "backend", "tokenweir_engine_corrupted_requests_total"),
            "corrupted",
        ),
        Panel::lines(
            "Swapped requests and CPU cache",
            "short",
            "Only vLLM with engine V0: requests whose KV blocks are in CPU memory, and the \
             share of the CPU cache in use. Good: 0.",
        )
        .with_query(gauge_by(metrics, "backend", "tokenweir_engine_swapped_requests"), "swapped")
        .with_query(
            gauge_by(metrics, "backend", "tokenweir_engine_cpu_cache_usage_ratio"),
            "CPU cache",
        ),
        Panel::lines("Restarts", "short", "Restarts of the process in the last hour. Good: 0.")
            .with_query(
                format!(
                    "max by (backend) (increase({}[1h]))",
                    filtered_metric(metrics, "tokenweir_engine_restarts_total", "")
                ),
                "restarts",
            ),
    ]
}
