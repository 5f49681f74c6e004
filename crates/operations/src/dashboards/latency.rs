//! Latency: how long, for how many, and where the time went.

use super::grid::Row;
use super::panel::{Panel, Thresholds};
use super::query::{mean_by, quantile_by};
use crate::catalogue::Catalogue;

const TTFT: &str = "gen_ai_server_time_to_first_token_seconds";
const DURATION: &str = "gen_ai_server_request_duration_seconds";

pub(super) fn row(metrics: &Catalogue) -> Row {
    Row {
        title: "Latency",
        panels: vec![
            Panel::lines(
                "Time to first token",
                "s",
                "Request head read to the first output. p95 below 1 s is good for a chat. Dots are \
                 requests: they open their traces.",
            )
            .quantiles(metrics, TTFT)
            .bad(Thresholds::Above(1.0, 2.0)),
            Panel::lines(
                "Time between outputs (ITL)",
                "s",
                "From one event with output to the next. Good is a p95 below 50 ms; a p99 far above it \
                 means preemptions or long prompts in the batch.",
            )
            .quantiles(metrics, "tokenweir_inter_chunk_seconds")
            .bad(Thresholds::Above(0.1, 0.2)),
            Panel::lines(
                "Time per output token (TPOT)",
                "s",
                "The pace of a whole stream, with the engine's own count. 1 ÷ this is tokens a second \
                 for one user.",
            )
            .quantiles(metrics, "gen_ai_server_time_per_output_token_seconds")
            .bad(Thresholds::Above(0.1, 0.2)),
            Panel::heatmap(metrics,
                "Time to first token, all",
                "s",
                "Each column is one moment. Two bands are two kinds of requests, such as cached and \
                 uncached prompts. A dot opens its trace.",
                TTFT,
            )
            .wide(12),
            Panel::heatmap(metrics,
                "Whole requests, all",
                "s",
                "As the other, of whole requests that generate text. The length of answers decides most of it.",
                DURATION,
            )
            .wide(12),
            Panel::lines(
                "Whole requests (E2E)",
                "s",
                "Request head read to the end of the exchange, of requests that generate text. Judge it beside \
                 the length of answers.",
            )
            .quantiles(metrics, DURATION),
            Panel::lines(
                "TTFT p95 by model",
                "s",
                "Which model is slow.",
            )
            .asks(
                quantile_by(metrics, 0.95, "le, gen_ai_request_model", TTFT, ""),
                "{{gen_ai_request_model}}",
            ),
            Panel::lines("TTFT p95 by replica", "s", "One line above the others: that replica.")
                .asks(quantile_by(metrics, 0.95, "le, backend", TTFT, ""), "{{backend}}"),
            Panel::stacked(
                "Where the time to first token goes",
                "s",
                "Means of the phases before the first output. Queues: too little room. Prefill: long or \
                 uncached prompts. Network: between gateway and engine.",
            )
            .asks(
                mean_by(metrics,
                    "phase",
                    "tokenweir_phase_seconds",
                    "phase!=\"decode\"",
                ),
                "{{phase}}",
            )
            .wide(12),
            Panel::lines(
                "Marks of a stream, p95",
                "s",
                "Response head, first event, first output that is no reasoning. Models that think are \
                 quick to the first token and late to the first answer.",
            )
            .asks(quantile_by(metrics, 0.95, "le, mark", "tokenweir_time_to_mark_seconds", ""), "{{mark}}")
            .wide(12),
        ],
    }
}
