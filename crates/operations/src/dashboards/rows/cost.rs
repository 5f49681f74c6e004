//! The dashboard row of the cost of tokens. Its panels are empty without `cost` in the configuration.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::Panel;
use crate::dashboards::query::{gauge_by, total_rate};

/// The counter of the output tokens of backends, and its label matcher.
const OUTPUT_TOKENS: (&str, &str) = ("tokenweir_backend_tokens_total", "type=\"output\"");

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Cost",
        panels: vec![
            Panel::lines(
                "Cost of a million output tokens",
                "short",
                "Price of all GPUs divided by the output tokens, in the currency of `cost`. It rises \
                 while the backends are idle. Empty without `cost` in the configuration.",
            )
            .with_query(
                format!(
                    "1e6 / 3600 * sum({})\n/ {}",
                    gauge_by(metrics, "backend", "tokenweir_backend_price_per_hour"),
                    total_rate(metrics, OUTPUT_TOKENS.0, OUTPUT_TOKENS.1),
                ),
                "cost",
            ),
            Panel::lines(
                "Output tokens per GPU-second",
                "short",
                "Output tokens divided by the GPUs of all backends. Empty without `gpus` in the \
                 configuration.",
            )
            .with_query(
                format!(
                    "{}\n/ sum({})",
                    total_rate(metrics, OUTPUT_TOKENS.0, OUTPUT_TOKENS.1),
                    gauge_by(metrics, "backend", "tokenweir_backend_gpus"),
                ),
                "tokens",
            ),
        ],
    }
}
