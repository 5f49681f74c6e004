//! Status and metrics of response quality. They have no values unless `quality.enabled` is set.

use super::model_trends::ModelQuality;
use super::sample::QualitySampleCounts;
use serde::Serialize;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::{StatusBlock, StatusSnapshot};
use tokenweir_request::record::ModelLabel;

/// The values of the label `window`: the means of [`ModelQuality`] over the recent and over the
/// baseline window, in the order in which its fields have them.
const WINDOWS: [&str; 2] = ["recent", "baseline"];
const WINDOW: MetricLabel = fixed("window", &WINDOWS);

/// A snapshot of the quality of responses by model, and of the numbers of samples.
#[derive(Debug, Clone, Default, Serialize)]
pub struct QualitySnapshot {
    /// The quality of all models that had a response recently.
    pub models: Vec<ModelQuality>,
    /// Number of samples by result.
    pub samples: QualitySampleCounts,
    /// Why the judge has not scored one of the last samples. `None`: it has scored them, or there is none.
    pub judge_error: Option<String>,
}

/// The quality of responses by model. `None`: `quality` is disabled.
#[derive(Debug, Clone, Default, Serialize)]
pub struct QualityStatus(pub Option<QualitySnapshot>);

impl StatusBlock for QualityStatus {
    const KEY: Option<&'static str> = Some("quality");
}

/// The metrics of response quality.
pub const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_quality_refusal_ratio",
        "Share of complete responses in which the model declined.",
        &[MODEL, WINDOW],
        Status(|status, emit| {
            for_each_model(status, |model| {
                emit_by_window(&model.model, model.refusals, emit);
            });
        }),
    ),
    row(
        "tokenweir_quality_score_ratio",
        "Mean response score by quality.judge, 0 to 1.",
        &[MODEL, WINDOW],
        Status(|status, emit| {
            for_each_model(status, |model| {
                emit_by_window(&model.model, model.scores, emit);
            });
        }),
    ),
    row(
        "tokenweir_quality_samples_total",
        "Responses sampled for quality.file and quality.judge, by result.",
        &[computed("result", || {
            QualitySampleCounts::default()
                .by_result()
                .map(|(result, _)| result)
                .to_vec()
        })],
        Status(|status, emit| {
            let Some(quality) = quality(status) else {
                return;
            };
            for (result, count) in quality.samples.by_result() {
                emit(&[result], count as f64);
            }
        }),
    ),
];

fn quality(status: &StatusSnapshot) -> Option<&QualitySnapshot> {
    let QualityStatus(quality) = status.blocks.get::<QualityStatus>()?;
    quality.as_ref()
}

/// Calls `emit` with the quality of each model that is a label value and had a recent response.
/// Then calls `emit` with an empty [`ModelQuality`] for each model that has series from the start and had no
/// recent response.
fn for_each_model(status: &StatusSnapshot, mut emit: impl FnMut(&ModelQuality)) {
    let Some(quality) = quality(status) else {
        return;
    };
    let is_label = |name: &str| {
        name == ModelLabel::OTHER || status.models.iter().any(|model| *model.name == *name)
    };
    quality
        .models
        .iter()
        .filter(|model| is_label(&model.model))
        .for_each(&mut emit);
    let other = status.models.is_empty().then_some(ModelLabel::OTHER);
    let seeded = status.models.iter().filter(|model| model.is_seeded);
    for name in other.into_iter().chain(seeded.map(|model| &*model.name)) {
        if !quality.models.iter().any(|model| model.model == name) {
            emit(&ModelQuality {
                model: name.to_owned(),
                ..ModelQuality::default()
            });
        }
    }
}

/// Emits the recent mean and the baseline mean of a model. A missing mean is NaN.
fn emit_by_window(model: &str, means: [Option<f64>; 2], emit: MetricEmitter<'_>) {
    for (window, mean) in WINDOWS.iter().zip(means) {
        emit(&[model, window], mean.unwrap_or(f64::NAN));
    }
}
