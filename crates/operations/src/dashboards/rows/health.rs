//! The dashboard row of system health: requests, their outcomes and their tokens.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::{Panel, Thresholds};
use crate::dashboards::query::filtered_metric;
use crate::outcomes::FAILED_OUTCOMES;

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "System health",
        panels: [outcome_panels(metrics), token_panels(metrics), fault_panels(metrics)].concat(),
    }
}

/// The panels of the outcomes of requests, and of client disconnects.
fn outcome_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::stacked(
            "Requests by outcome",
            "reqps",
            "Ended requests per second. Good: almost all are `ok`.",
        )
        .with_rate_by(metrics, "outcome", "tokenweir_requests_total", ""),
        Panel::lines(
            "Failed requests",
            "reqps",
            "Failed requests per second, by outcome. Good: an empty panel.",
        )
        .with_rate_by(metrics, "outcome", "tokenweir_requests_total", FAILED_OUTCOMES),
        Panel::lines(
            "Responses by status",
            "reqps",
            "Responses per second, by HTTP status. A rise of 401, 404 or 429 is a fault of a client or \
             of one backend. Good: almost all are 200.",
        )
        .with_rate_by(
            metrics,
            "http_response_status_code",
            "tokenweir_http_responses_total",
            "",
        ),
        Panel::lines(
            "Client disconnects",
            "reqps",
            "Disconnects per second, by the phase of the request. In `queued`, `headers` or \
             `prefill` the response was too slow; in `decode` the user stopped it, or a client \
             timeout ended it.",
        )
        .with_rate_by(metrics, "phase", "tokenweir_client_disconnects_total", ""),
    ]
}

/// The panels of tokens, of the reasons why outputs end, and of wasted tokens.
fn token_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::stacked(
            "Tokens",
            "short",
            "Tokens per second. Cached tokens are part of the input, reasoning is part of the \
             output.",
        )
        .with_rate_by(metrics, "type", "tokenweir_tokens_total", "type=~\"input|output\""),
        Panel::stacked(
            "Finish reasons",
            "short",
            "Choices per second, by finish reason. `stop` and `tool_calls` are complete \
             outputs. A high rate of `length` means that limits cut outputs.",
        )
        .with_rate_by(metrics, "reason", "tokenweir_finish_reasons_total", ""),
        Panel::lines(
            "Wasted tokens",
            "short",
            "Tokens per second that engines computed in vain: of responses that no client \
             received completely, and prompts that a failover computed again.",
        )
        .with_rate_by(metrics, "reason", "tokenweir_wasted_tokens_total", ""),
    ]
}

/// The panels of unavailable backends, stalled streams and failed terminations.
fn fault_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines("Backends up", "none", "1 while the backend is available.")
            .with_gauge_by(metrics, "backend", "tokenweir_backend_up")
            .with_thresholds(Thresholds::Below(1.0, 1.0)),
        Panel::lines(
            "Stalled streams",
            "short",
            "Streams without output for much longer than usual, now. Good: 0.",
        )
        .with_query(
            format!(
                "sum by (backend) ({})",
                filtered_metric(metrics, "tokenweir_streams_stalled", "")
            ),
            "{{backend}}",
        ),
        Panel::lines(
            "Terminations other than ok",
            "reqps",
            "Terminations per second. They are more exact than outcomes: `truncated_cut` is a \
             backend that died, `upstream_abort` an engine that aborted the request.",
        )
        .with_rate_by(
            metrics,
            "termination",
            "tokenweir_request_terminations_total",
            "termination!~\"ok.*\"",
        ),
    ]
}
