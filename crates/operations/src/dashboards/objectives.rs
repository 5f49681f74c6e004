//! Objectives: how many requests are as good as promised, and what is left of the budget.

use super::grid::Row;
use super::panel::{Panel, Thresholds};
use super::query::rate_by;
use crate::catalogue::Catalogue;

pub(super) fn row(metrics: &Catalogue) -> Row {
    Row {
        title: "SLO",
        panels: vec![
            Panel::lines(
                "Good requests",
                "percentunit",
                "Share of requests that meet each objective of the configuration (`slos`), with the \
                 objective itself as a line.",
            )
            .asks("1 - tokenweir:slo_bad:ratio_rate5m", "{{slo}}")
            .asks("max by (slo) (tokenweir_slo_objective_ratio)", "{{slo}} objective"),
            Panel::lines(
                "Burn rate, 1 h",
                "none",
                "Bad requests ÷ bad requests that the objective allows. Up to 1 the budget of 30 days \
                 lasts; above 14.4 for an hour somebody is called.",
            )
            .asks("tokenweir:slo_bad:ratio_rate1h / on (slo) tokenweir:slo_budget:ratio", "{{slo}}")
            .bad(Thresholds::Above(1.0, 14.4)),
            Panel::lines(
                "Budget left, 30 days",
                "percentunit",
                "What may still go bad. Below 0 the objective of the last 30 days is missed.",
            )
            .asks(
                "1 - tokenweir:slo_bad:ratio_rate30d / on (slo) tokenweir:slo_budget:ratio",
                "{{slo}}",
            )
            .bad(Thresholds::Below(0.25, 0.0)),
            Panel::lines(
                "Goodput",
                "reqps",
                "Requests a second that meet their objective, and all requests that were judged.",
            )
            .asks(
                rate_by(metrics, "slo", "tokenweir_slo_requests_total", "result=\"good\""),
                "{{slo}} good",
            )
            .asks(rate_by(metrics, "slo", "tokenweir_slo_requests_total", ""), "{{slo}} judged")
            .wide(12),
            Panel::stacked(
                "Slow requests by cause",
                "reqps",
                "Requests over a limit of `slow`, by what took most of their time. This is where to \
                 look first when an objective burns.",
            )
            .asks(rate_by(metrics, "cause", "tokenweir_slow_requests_total", ""), "{{cause}}")
            .wide(12),
        ],
    }
}
