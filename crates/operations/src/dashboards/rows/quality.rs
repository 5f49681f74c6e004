//! The dashboard row of quality: changes of the content of responses. Its panels are empty without
//! `quality.enabled`.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::{Panel, Thresholds};
use crate::dashboards::query::mean_of_gateways;

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    let mean = |name, window| mean_of_gateways(metrics, "gen_ai_request_model", name, window);
    let (recent, baseline) = ("window=\"recent\"", "window=\"baseline\"");
    let (refusals, scores) = ("tokenweir_quality_refusal_ratio", "tokenweir_quality_score_ratio");
    DashboardRow {
        title: "Quality",
        panels: vec![
            Panel::lines(
                "Output length ÷ baseline",
                "none",
                "Mean output tokens of complete responses, recent window ÷ baseline window. Good: \
                 near 1. A step is a change of the model, of prompts or of limits.",
            )
            .with_query(
                mean("tokenweir_quality_output_drift_ratio", ""),
                "{{gen_ai_request_model}}",
            )
            .with_thresholds(Thresholds::Outside(0.67, 1.5))
            .with_width(6),
            Panel::lines(
                "Model refusals",
                "percentunit",
                "Share of responses that refuse, recent and baseline.",
            )
            .with_query(mean(refusals, recent), "{{gen_ai_request_model}}")
            .with_query(mean(refusals, baseline), "{{gen_ai_request_model}} baseline")
            .with_width(6),
            Panel::lines("Score of the judge", "percentunit", "Mean score, recent and baseline.")
                .with_query(mean(scores, recent), "{{gen_ai_request_model}}")
                .with_query(mean(scores, baseline), "{{gen_ai_request_model}} baseline")
                .with_width(6),
            Panel::stacked(
                "Sampled responses",
                "short",
                "Sampled responses per second for the file and the judge, by result. Good: `done`.",
            )
            .with_rate_by(metrics, "result", "tokenweir_quality_samples_total", "")
            .with_width(6),
        ],
    }
}
