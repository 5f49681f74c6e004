//! The first row: is anybody served badly?

use super::grid::Row;
use super::panel::{Panel, Thresholds};
use super::query::{gauge_by, of, quantile, rate, share, total_rate};
use crate::catalogue::Catalogue;

/// Outcomes for which replicas are to blame.
pub(super) const FAILED: &str =
    "outcome=~\"upstream_error|stream_error|truncated|aborted|timeout\"";

pub(super) fn row(metrics: &Catalogue) -> Row {
    Row {
        title: "Golden signals",
        panels: vec![
            Panel::stat(
                "TTFT p95",
                "s",
                "95 of 100 streams have their first output sooner. People find a chat quick below 1 s.",
            )
            .asks(quantile(metrics, 0.95, "gen_ai_server_time_to_first_token_seconds", ""), "p95")
            .bad(Thresholds::Above(1.0, 2.0)),
            Panel::stat(
                "KV cache, fullest",
                "percentunit",
                "Of the fullest replica. High is good use, until requests wait or are preempted: then \
                 see Cache efficiency.",
            )
            .asks(
                format!("max({})", gauge_by(metrics, "backend", "tokenweir_backend_kv_usage_ratio")),
                "fullest",
            )
            .bad(Thresholds::Above(0.9, 0.97)),
            Panel::stat(
                "Queue depth",
                "short",
                "Requests that wait, in the gateway and in all engines. Good is near zero; a few that \
                 come and go do no harm.",
            )
            .asks(
                format!(
                    "sum({})\n+ sum({})",
                    of(metrics, "tokenweir_queue_requests", ""),
                    gauge_by(metrics, "backend", "tokenweir_backend_waiting"),
                ),
                "waiting",
            )
            .bad(Thresholds::Above(10.0, 50.0)),
            Panel::stat(
                "Time between outputs p95",
                "s",
                "Of all gaps between two outputs of a stream. Text flows below 50 ms, and is slower than \
                 people read above 200 ms.",
            )
            .asks(quantile(metrics, 0.95, "tokenweir_inter_chunk_seconds", ""), "p95")
            .bad(Thresholds::Above(0.1, 0.2)),
            Panel::stat("Requests", "reqps", "Requests that ended, however they did.")
                .asks(total_rate(metrics, "tokenweir_requests_total", ""), "requests"),
            Panel::stat(
                "Failed",
                "percentunit",
                "Share of requests that a replica failed: errors, cut streams, no answer. Good is 0.",
            )
            .asks(
                share(
                    &total_rate(metrics, "tokenweir_requests_total", FAILED),
                    &total_rate(metrics, "tokenweir_requests_total", ""),
                ),
                "failed",
            )
            .bad(Thresholds::Above(0.01, 0.05)),
            Panel::stat("Output tokens", "short", "Output tokens a second of all replicas.").asks(
                format!(
                    "{}\n+ sum({})",
                    total_rate(metrics, "tokenweir_tokens_total", "type=\"output\""),
                    rate(metrics, "tokenweir_estimated_output_tokens_total", ""),
                ),
                "tokens/s",
            ),
            Panel::stat("Replicas up", "percentunit", "Share of the replicas that may be sent requests.")
                .asks(format!("avg({})", gauge_by(metrics, "backend", "tokenweir_backend_up")), "up")
                .bad(Thresholds::Below(1.0, 0.5)),
        ],
    }
}
