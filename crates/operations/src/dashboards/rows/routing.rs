//! The dashboard row of routing: decisions of the policy, and the accuracy of its predictions.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::{Panel, Thresholds};
use crate::dashboards::query::{filtered_metric, quantile, rate_by};

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Routing",
        panels: [
            decision_panels(metrics),
            prediction_panels(metrics),
            shadow_policy_panels(metrics),
        ]
        .concat(),
    }
}

/// The panels of the decisions, and of the requests in flight that result from them.
fn decision_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    let decisions = |label| rate_by(metrics, label, "tokenweir_routing_decisions_total", "");
    vec![
        Panel::stacked(
            "Requests by backend",
            "reqps",
            "Routing decisions per second. Equal backends get equal shares, unless prefixes or \
             sessions bind requests to a backend.",
        )
        .with_query(decisions("backend"), "{{backend}}"),
        Panel::stacked(
            "Requests by reason",
            "reqps",
            "Routing decisions per second, by the reason for the choice.",
        )
        .with_query(decisions("reason"), "{{reason}}"),
        Panel::stacked(
            "Requests in flight by backend",
            "short",
            "Requests of the gateways at each backend.",
        )
        .with_query(
            format!(
                "sum by (backend) ({})",
                filtered_metric(metrics, "tokenweir_backend_requests_in_flight", "")
            ),
            "{{backend}}",
        ),
    ]
}

/// The panels of the accuracy of predictions, and of the age of the scraped values behind them.
fn prediction_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Prediction error",
            "s",
            "Absolute difference of the predicted and the actual time to first output. Compare \
             it with TTFT.",
        )
        .with_query(quantile(metrics, 0.5, "tokenweir_routing_prediction_error_seconds", ""), "p50")
        .with_query(
            quantile(metrics, 0.95, "tokenweir_routing_prediction_error_seconds", ""),
            "p95",
        ),
        Panel::lines(
            "Actual ÷ predicted, median",
            "none",
            "1 is exact. Above 1: backends are slower than their load suggests. With \
             `metrics.level: full` the histogram has the label `backend`.",
        )
        .with_query(quantile(metrics, 0.5, "tokenweir_routing_prediction_ratio", ""), "p50")
        .with_thresholds(Thresholds::Above(1.5, 2.0)),
        Panel::lines("Scrape age", "s", "Below 1 s under load, up to 5 s when idle (`scrape`).")
            .with_gauge_by(metrics, "backend", "tokenweir_backend_scrape_age_seconds")
            .with_thresholds(Thresholds::Above(6.0, 20.0)),
    ]
}

/// The panels of the policies of `routing.shadow`, compared with the applied policy.
fn shadow_policy_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Shadow policies: agreement",
            "percentunit",
            "Share of decisions in which each policy of `routing.shadow` would have chosen the \
             same backend.",
        )
        .with_query(
            format!(
                "{}\n/ {}",
                rate_by(metrics, "policy", "tokenweir_shadow_decisions_total", "result=\"same\""),
                rate_by(metrics, "policy", "tokenweir_shadow_decisions_total", ""),
            ),
            "{{policy}}",
        )
        .with_width(12),
        Panel::lines(
            "Shadow policies: cost",
            "s",
            "Predicted seconds of waiting per second that the other choices of each shadow \
             policy would have cost, minus those that they would have saved.",
        )
        .with_query(
            format!(
                "{}\n- {}",
                rate_by(metrics, "policy", "tokenweir_shadow_regret_seconds_total", ""),
                rate_by(metrics, "policy", "tokenweir_shadow_saving_seconds_total", ""),
            ),
            "{{policy}}",
        )
        .with_width(12),
    ]
}
