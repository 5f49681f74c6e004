//! Quality: whether answers are what they were. Empty without `quality.enabled`.

use super::grid::Row;
use super::panel::{Panel, Thresholds};
use super::query::{mean_of_gateways, rate_by};
use crate::catalogue::Catalogue;

pub(super) fn row(metrics: &Catalogue) -> Row {
    let mean = |name, window| mean_of_gateways(metrics, "gen_ai_request_model", name, window);
    let (lately, usually) = ("window=\"recent\"", "window=\"baseline\"");
    let (refusals, scores) = ("tokenweir_quality_refusal_ratio", "tokenweir_quality_score_ratio");
    Row {
        title: "Quality",
        panels: vec![
            Panel::lines(
                "Length of answers ÷ usual",
                "none",
                "Mean output tokens of whole answers, lately over for long. Good is near 1; a step is a \
                 change of the model, of prompts or of limits.",
            )
            .asks(mean("tokenweir_quality_output_drift_ratio", ""), "{{gen_ai_request_model}}")
            .bad(Thresholds::Outside(0.67, 1.5))
            .wide(6),
            Panel::lines("Answers that refuse", "percentunit", "Lately, and what is usual.")
                .asks(mean(refusals, lately), "{{gen_ai_request_model}}")
                .asks(mean(refusals, usually), "{{gen_ai_request_model}} usually")
                .wide(6),
            Panel::lines("Score of the judge", "percentunit", "Its mean, lately and what is usual.")
                .asks(mean(scores, lately), "{{gen_ai_request_model}}")
                .asks(mean(scores, usually), "{{gen_ai_request_model}} usually")
                .wide(6),
            Panel::stacked(
                "Answers in the sample",
                "short",
                "Answers a second for the file and the judge, by what became of them. Good is `done`.",
            )
            .asks(rate_by(metrics, "result", "tokenweir_quality_samples_total", ""), "{{result}}")
            .wide(6),
        ],
    }
}
