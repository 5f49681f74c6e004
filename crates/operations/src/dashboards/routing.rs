//! Routing: who gets what, and how good the predictions are.

use super::grid::Row;
use super::panel::{Panel, Thresholds};
use super::query::{gauge_by, of, quantile, quantile_by, rate_by};
use crate::catalogue::Catalogue;

pub(super) fn row(metrics: &Catalogue) -> Row {
    Row {
        title: "Routing",
        panels: vec![
            Panel::stacked(
                "Requests by replica",
                "reqps",
                "Even among equal replicas, unless prefixes or sessions hold requests together.",
            )
            .asks(rate_by(metrics, "backend", "tokenweir_route_decisions_total", ""), "{{backend}}"),
            Panel::stacked("Requests by reason", "reqps", "Why each replica was chosen.")
                .asks(rate_by(metrics, "reason", "tokenweir_route_decisions_total", ""), "{{reason}}"),
            Panel::stacked(
                "In flight by replica",
                "short",
                "Requests of this gateway at each replica.",
            )
            .asks(
                format!(
                    "sum by (backend) ({})",
                    of(metrics, "tokenweir_backend_requests_in_flight", "")
                ),
                "{{backend}}",
            ),
            Panel::lines(
                "Off the prediction",
                "s",
                "How far the predicted time to first output was off, to either side. Compare with TTFT.",
            )
            .asks(quantile(metrics, 0.5, "tokenweir_route_prediction_error_seconds", ""), "p50")
            .asks(quantile(metrics, 0.95, "tokenweir_route_prediction_error_seconds", ""), "p95"),
            Panel::lines(
                "True ÷ predicted, median",
                "none",
                "1 is right. A replica that stays above 1 is slower than it looks.",
            )
            .asks(
                quantile_by(metrics, 0.5, "le, backend", "tokenweir_route_prediction_ratio", ""),
                "{{backend}}",
            )
            .bad(Thresholds::Above(1.5, 2.0)),
            Panel::lines(
                "Age of what replicas said",
                "s",
                "Below a second under load, up to 5 s when idle (`watch`).",
            )
            .asks(gauge_by(metrics, "backend", "tokenweir_backend_snapshot_age_seconds"), "{{backend}}")
            .bad(Thresholds::Above(6.0, 20.0)),
            Panel::lines(
                "Policies in the shadow: agreement",
                "percentunit",
                "How often each policy of `routing.shadow` would have chosen the same.",
            )
            .asks(
                format!(
                    "{}\n/ {}",
                    rate_by(metrics, "policy", "tokenweir_shadow_decisions_total", "result=\"same\""),
                    rate_by(metrics, "policy", "tokenweir_shadow_decisions_total", ""),
                ),
                "{{policy}}",
            )
            .wide(12),
            Panel::lines(
                "Policies in the shadow: cost",
                "s",
                "Predicted seconds of waiting in each second that their other choices would have cost, \
                 less what they would have saved.",
            )
            .asks(
                format!(
                    "{}\n- {}",
                    rate_by(metrics, "policy", "tokenweir_shadow_regret_seconds_total", ""),
                    rate_by(metrics, "policy", "tokenweir_shadow_saving_seconds_total", ""),
                ),
                "{{policy}}",
            )
            .wide(12),
        ],
    }
}
