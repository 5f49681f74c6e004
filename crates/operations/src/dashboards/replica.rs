//! One replica: what it says of itself beside what was seen of it.

use super::diagnosis;
use super::grid::{Dashboard, Row, Variable};
use super::panel::{Panel, Thresholds};
use super::query::{mean_by, of, quantile, rate_by, total_rate};
use crate::catalogue::Catalogue;

const TTFT: &str = "gen_ai_server_time_to_first_token_seconds";

/// The dashboard of one replica.
pub fn replica(metrics: &Catalogue) -> Dashboard {
    Dashboard {
        uid: "tokenweir-replica",
        title: "tokenweir: one replica",
        description: "What a replica says of itself beside what was seen of it. Compare it with the others \
                      on the main dashboard.",
        variables: vec![Variable::MODELS, Variable::BACKEND],
        rows: vec![now(metrics), diagnosis::of_one(metrics), seen(metrics), inside(metrics)],
    }
}

fn now(metrics: &Catalogue) -> Row {
    let latest = |name: &str| format!("max({})", of(metrics, name, ""));
    Row {
        title: "Now",
        panels: vec![
            Panel::stat("Up", "none", "1: it may be sent requests.")
                .asks(latest("tokenweir_backend_up"), "up")
                .bad(Thresholds::Below(1.0, 1.0)),
            Panel::stat("KV cache", "percentunit", "Share that requests hold.")
                .asks(latest("tokenweir_backend_kv_usage_ratio"), "used")
                .bad(Thresholds::Above(0.9, 0.97)),
            Panel::stat("Waiting", "short", "Requests in its queue. Good is near 0.")
                .asks(latest("tokenweir_backend_waiting"), "waiting")
                .bad(Thresholds::Above(8.0, 16.0)),
            Panel::stat("Running", "short", "Requests in its batch.")
                .asks(latest("tokenweir_backend_running"), "running"),
            Panel::stat("Standing still", "short", "Silent streams, now. Good is 0.")
                .asks(format!("sum({})", of(metrics, "tokenweir_streams_stalled", "")), "stalled")
                .bad(Thresholds::Above(1.0, 3.0)),
            Panel::stat("TTFT p95", "s", "As clients saw it.")
                .asks(quantile(metrics, 0.95, TTFT, ""), "p95")
                .bad(Thresholds::Above(1.0, 2.0)),
            Panel::stat("Age of what it said", "s", "Below a second under load.")
                .asks(latest("tokenweir_backend_snapshot_age_seconds"), "age")
                .bad(Thresholds::Above(6.0, 20.0)),
            Panel::stat(
                "Weight of what it said",
                "percentunit",
                "1 when new; routing trusts it so much.",
            )
            .asks(latest("tokenweir_backend_confidence_ratio"), "weight"),
        ],
    }
}

fn seen(metrics: &Catalogue) -> Row {
    Row {
        title: "Seen from the gateway",
        panels: vec![
            Panel::lines("Time to first token", "s", "Dots are requests.").quantiles(metrics, TTFT),
            Panel::lines("Time between outputs (ITL)", "s", "Dots are requests.")
                .quantiles(metrics, "tokenweir_inter_chunk_seconds"),
            Panel::lines(
                "Tokens in an event, mean",
                "none",
                "Above 1: speculative decoding, or merged events.",
            )
            .asks(mean_by(metrics, "gen_ai_request_model", "tokenweir_chunk_tokens", ""), "{{gen_ai_request_model}}"),
            Panel::stacked(
                "Phases, mean",
                "s",
                "Where the time of its streams goes. Estimated, unless the engine tells it with answers.",
            )
            .asks(mean_by(metrics, "phase", "tokenweir_phase_seconds", ""), "{{phase}}"),
            Panel::lines("Attempts", "reqps", "Requests sent to it, by how that went.")
                .asks(rate_by(metrics, "result", "tokenweir_attempts_total", ""), "{{result}}"),
            Panel::lines("Stalls", "short", "Streams a second that fell silent for too long.")
                .asks(rate_by(metrics, "backend", "tokenweir_stalls_total", ""), "{{backend}}"),
            Panel::lines(
                "Work before a new prompt",
                "short",
                "Prompt tokens that it is believed to have to compute first.",
            )
            .asks(
                format!("max({})", of(metrics, "tokenweir_backend_prefill_backlog_tokens", "")),
                "tokens",
            ),
            Panel::lines("Looks that failed", "short", "By kind. Good is an empty panel.")
                .asks(rate_by(metrics, "kind", "tokenweir_scrape_errors_total", ""), "{{kind}}"),
            Panel::lines(
                "What its metrics do not tell",
                "none",
                "0: routing does without that signal. The log says what is lost.",
            )
            .asks(
                format!("min by (signal) ({})", of(metrics, "tokenweir_backend_signal", "")),
                "{{signal}}",
            ),
        ],
    }
}

fn inside(metrics: &Catalogue) -> Row {
    Row {
        title: "What its engine says",
        panels: vec![
            Panel::lines(
                "TTFT, engine and gateway, mean",
                "s",
                "The gap is time that the engine does not see: its API server, the network, the \
                 gateway's queue.",
            )
            .asks(mean_by(metrics, "backend", "vllm:time_to_first_token_seconds", ""), "engine")
            .asks(mean_by(metrics, "backend", TTFT, ""), "gateway"),
            Panel::lines("Queue and prefill, mean", "s", "In the engine, of all its requests.")
                .asks(mean_by(metrics, "backend", "vllm:request_queue_time_seconds", ""), "queue")
                .asks(
                    mean_by(metrics, "backend", "vllm:request_prefill_time_seconds", ""),
                    "prefill",
                ),
            Panel::lines("Tokens", "short", "Tokens a second of its engine, from whomever.")
                .asks(total_rate(metrics, "vllm:prompt_tokens_total", ""), "prompt")
                .asks(total_rate(metrics, "vllm:generation_tokens_total", ""), "generated"),
        ],
    }
}
