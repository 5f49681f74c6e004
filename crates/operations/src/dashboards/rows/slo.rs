//! The dashboard row of objectives: the share of good requests and the remaining error budget.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::{Panel, Thresholds};
use crate::dashboards::query::rate_by;

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow { title: "SLO", panels: [objective_panels(), request_panels(metrics)].concat() }
}

/// The panels of the objectives: good requests, burn rate and remaining error budget.
fn objective_panels() -> Vec<Panel> {
    vec![
        Panel::lines(
            "Good requests",
            "percentunit",
            "Share of requests that meet each objective of the configuration (`slos`), with \
             the objective itself as a line.",
        )
        .with_query("1 - tokenweir:slo_bad:ratio_rate5m", "{{slo}}")
        .with_query("max by (slo) (tokenweir_slo_objective_ratio)", "{{slo}} objective"),
        Panel::lines(
            "Burn rate, 1 h",
            "none",
            "Bad requests ÷ bad requests that the objective allows. At up to 1, the 30-day \
             budget lasts; above 14.4 for an hour, a page is sent.",
        )
        .with_query(
            "tokenweir:slo_bad:ratio_rate1h / on (slo) tokenweir:slo_budget:ratio",
            "{{slo}}",
        )
        .with_thresholds(Thresholds::Above(1.0, 14.4)),
        Panel::lines(
            "Budget left, 30 days",
            "percentunit",
            "Share of the error budget that is left. Below 0, the objective of the last 30 \
             days is missed.",
        )
        .with_query(
            "1 - tokenweir:slo_bad:ratio_rate30d / on (slo) tokenweir:slo_budget:ratio",
            "{{slo}}",
        )
        .with_thresholds(Thresholds::Below(0.25, 0.0)),
    ]
}

/// The panels of the rates of the requests that meet or miss an objective.
fn request_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Goodput",
            "reqps",
            "Requests per second that meet their objective, and all requests per second that \
             are judged by it.",
        )
        .with_query(
            rate_by(metrics, "slo", "tokenweir_slo_requests_total", "result=\"good\""),
            "{{slo}} good",
        )
        .with_query(rate_by(metrics, "slo", "tokenweir_slo_requests_total", ""), "{{slo}} judged")
        .with_width(12),
        Panel::stacked(
            "Slow requests by cause",
            "reqps",
            "Requests above a limit of `slow`, by the phase or event that took most of their \
             time. Start here when an objective burns its budget.",
        )
        .with_rate_by(metrics, "cause", "tokenweir_slow_requests_total", "")
        .with_width(12),
    ]
}
