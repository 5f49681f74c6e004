//! The dashboard row of latency: distributions of latencies, and the phases of the time of
//! requests.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::{Panel, Thresholds};
use crate::dashboards::query::{mean_by, quantile_by};

const TTFT_METRIC: &str = "gen_ai_server_time_to_first_token_seconds";
const DURATION_METRIC: &str = "gen_ai_server_request_duration_seconds";

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Latency",
        panels: [
            vec![time_to_first_token(metrics)],
            token_time_panels(metrics),
            duration_panels(metrics),
            first_output_panels(metrics),
            vec![stream_milestones(metrics)],
        ]
        .concat(),
    }
}

/// The panels of the times between outputs and per output token.
fn token_time_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Time between outputs",
            "s",
            "From one event with output to the next. Good: a p95 below 50 ms. A p99 far above \
             the p95 means preemptions or long prompts in the batch.",
        )
        .quantiles(metrics, "tokenweir_inter_chunk_latency_seconds")
        .with_thresholds(Thresholds::Above(0.1, 0.2)),
        Panel::lines(
            "Time per output token (TPOT)",
            "s",
            "Mean time per token of a stream, by the engine's token count. 1 ÷ TPOT is the \
             tokens per second of one stream.",
        )
        .quantiles(metrics, "gen_ai_server_time_per_output_token_seconds")
        .with_thresholds(Thresholds::Above(0.1, 0.2)),
    ]
}

/// The panels of the distributions of TTFT and duration, and of the quantiles of the duration.
fn duration_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::heatmap(
            metrics,
            "Time to first token, distribution",
            "s",
            "Two bands are two kinds of requests, such as cached and uncached prompts. A dot \
             is an exemplar, which opens its trace.",
            TTFT_METRIC,
        )
        .with_width(12),
        Panel::heatmap(
            metrics,
            "Request duration, distribution",
            "s",
            "Duration of requests that generate text. The number of output tokens determines \
             most of it.",
            DURATION_METRIC,
        )
        .with_width(12),
        Panel::lines(
            "Request duration (E2E)",
            "s",
            "From the request head to the end of the exchange, for requests that generate \
             text. Compare it with the length of responses.",
        )
        .quantiles(metrics, DURATION_METRIC),
    ]
}

/// The panels that show which model, backend or phase delays the first output.
fn first_output_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines("TTFT p95 by model", "s", "Shows which model is slow.").with_query(
            quantile_by(metrics, 0.95, "le, gen_ai_request_model", TTFT_METRIC, ""),
            "{{gen_ai_request_model}}",
        ),
        Panel::lines("TTFT p95 by backend", "s", "Shows which backend is slow.")
            .with_query(quantile_by(metrics, 0.95, "le, backend", TTFT_METRIC, ""), "{{backend}}"),
        Panel::stacked(
            "Phases of the time to first token",
            "s",
            "Mean time of the phases before the first output. Queues: too little capacity. \
             Front end: the engine's API server, which reads the prompt. Prefill: long or uncached \
             prompts. Unexplained: nothing that the backend reports.",
        )
        .with_query(
            mean_by(metrics, "phase", "tokenweir_phase_seconds", "phase!=\"decode\""),
            "{{phase}}",
        )
        .with_width(12),
    ]
}

/// The panel of the times to the milestones of a stream, p95.
fn stream_milestones(metrics: &MetricCatalogue) -> Panel {
    let milestones = [
        ("le", "tokenweir_time_to_response_headers_seconds", "headers"),
        ("le", "tokenweir_time_to_first_event_seconds", "first event"),
        ("le", "tokenweir_time_to_first_answer_seconds", "first answer"),
        ("le, channel", "tokenweir_time_to_first_channel_output_seconds", "first {{channel}}"),
    ];
    let panel = Panel::lines(
        "Milestones of a stream, p95",
        "s",
        "Time to the response headers, to the first event, and to the first reasoning, text \
         and tool call. Reasoning models have an early first event and a late first text.",
    )
    .with_width(12);
    milestones.into_iter().fold(panel, |panel, (labels, histogram, legend)| {
        panel.with_query(quantile_by(metrics, 0.95, labels, histogram, ""), legend)
    })
}

fn time_to_first_token(metrics: &MetricCatalogue) -> Panel {
    Panel::lines(
        "Time to first token",
        "s",
        "From the request head to the first output. A p95 below 1 s is good for a chat. \
         The dots are exemplars, which open traces.",
    )
    .quantiles(metrics, TTFT_METRIC)
    .with_thresholds(Thresholds::Above(1.0, 2.0))
}
