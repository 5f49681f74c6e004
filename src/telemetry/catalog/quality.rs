//! Whether answers are as good as they were. Without `quality.enabled` there is nothing to tell.

use super::super::metric::{Emit, Kind, Label, Read, Row, SAMPLE_RESULTS, WINDOWS};
use super::super::quality::OfModel;
use super::super::vitals::Vitals;
use tokenweir_core::record::ModelLabel;

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "tokenweir_quality_output_drift_ratio",
        help: "Mean output tokens of whole answers: those of quality.recent / those of quality.baseline.",
        kind: Kind::Gauge,
        labels: &[Label::Model],
        read: Read::Vitals(|vitals, emit| {
            by_model(vitals, |model| {
                emit(&[&model.model], model.output_drift.unwrap_or(f64::NAN));
            });
        }),
    },
    Row {
        name: "tokenweir_quality_refusal_ratio",
        help: "Whole answers that refuse / whole answers, of quality.recent and of quality.baseline.",
        kind: Kind::Gauge,
        labels: &[Label::Model, Label::Window],
        read: Read::Vitals(|vitals, emit| {
            by_model(vitals, |model| by_window(&model.model, model.refusals, emit));
        }),
    },
    Row {
        name: "tokenweir_quality_score_ratio",
        help: "Mean score that the judge gave to answers, from 0 to 1, of quality.recent and of quality.baseline.",
        kind: Kind::Gauge,
        labels: &[Label::Model, Label::Window],
        read: Read::Vitals(|vitals, emit| {
            by_model(vitals, |model| by_window(&model.model, model.scores, emit));
        }),
    },
    Row {
        name: "tokenweir_quality_samples_total",
        help: "Answers in the sample for quality.file and quality.judge, by what became of them.",
        kind: Kind::Counter,
        labels: &[Label::Sample],
        read: Read::Vitals(|vitals, emit| {
            let Some(quality) = &vitals.quality else { return };
            let samples = &quality.samples;
            let counts =
                [samples.done, samples.dropped, samples.redactor_failed, samples.judge_failed];
            for (result, count) in SAMPLE_RESULTS.iter().zip(counts) {
                emit(&[result], count as f64);
            }
        }),
    },
];

/// Each model that is a label value and had an answer lately, and those that had none.
fn by_model(vitals: &Vitals, mut tell: impl FnMut(&OfModel)) {
    let Some(quality) = &vitals.quality else { return };
    let is_label = |name: &str| {
        name == ModelLabel::OTHER || vitals.models.iter().any(|model| *model.name == *name)
    };
    quality.models.iter().filter(|model| is_label(&model.model)).for_each(&mut tell);
    let other = vitals.models.is_empty().then_some(ModelLabel::OTHER);
    let seeded = vitals.models.iter().filter(|model| model.is_seeded);
    for name in other.into_iter().chain(seeded.map(|model| &*model.name)) {
        if !quality.models.iter().any(|model| model.model == name) {
            tell(&OfModel { model: name.to_owned(), ..OfModel::default() });
        }
    }
}

fn by_window(model: &str, means: [Option<f64>; 2], emit: Emit<'_>) {
    for (window, mean) in WINDOWS.iter().zip(means) {
        emit(&[model, window], mean.unwrap_or(f64::NAN));
    }
}
