//! Quality trends by model.

use super::trend::MeanTrend;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokenweir_core::record::{ModelLabel, RequestRecord, Timings};

/// The trends of all models with a recent response.
pub(super) struct QualityTrends {
    window: Duration,
    baseline_window: Duration,
    /// By label value, so that clients cannot make the map grow.
    models: Mutex<BTreeMap<Box<str>, ModelTrends>>,
}

/// A snapshot of the quality of one model. `None`: too few responses.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ModelQuality {
    /// The model as a label value.
    pub model: String,
    /// Mean output tokens per response: recent / baseline.
    pub output_drift: Option<f64>,
    /// Share of responses in which the model declined: recent and baseline.
    pub refusals: [Option<f64>; 2],
    /// Mean score of the judge: recent and baseline.
    pub scores: [Option<f64>; 2],
}

struct ModelTrends {
    tokens: MeanTrend,
    refusals: MeanTrend,
    scores: MeanTrend,
}

/// A model is removed after this many baseline windows without a response.
const EVICTION_BASELINE_WINDOWS: u32 = 3;
/// Most models with trends of their own. Further models share the trends of `_other`.
const MAX_TRACKED_MODELS: usize = 512;

impl QualityTrends {
    /// No trends yet.
    pub(super) const fn new(window: Duration, baseline_window: Duration) -> Self {
        Self { window, baseline_window, models: Mutex::new(BTreeMap::new()) }
    }

    /// Records a complete response.
    pub(super) fn record_response(&self, record: &RequestRecord) {
        let Timings { accepted, ended, .. } = record.timings;
        let now = ended.unwrap_or(accepted);
        let [_, tokens, ..] = record.engine_token_counts();
        self.update_model(record.model.as_str(), |model| {
            // The error of an estimated count is larger than a typical drift.
            if let Some(tokens) = tokens {
                model.tokens.add(tokens as f64, now);
            }
            model.refusals.add(f64::from(u8::from(record.is_model_refusal())), now);
        });
    }

    /// Records a score of the judge for a response of this model.
    pub(super) fn record_score(&self, model: &str, score: f64, now: Instant) {
        self.update_model(model, |model| model.scores.add(score, now));
    }

    /// A snapshot at `now`, without models that had no response for long.
    pub(super) fn snapshot(&self, now: Instant) -> Vec<ModelQuality> {
        let mut models = self.lock_models();
        let max_age = self.baseline_window.saturating_mul(EVICTION_BASELINE_WINDOWS);
        models.retain(|_, model| {
            let last = model.refusals.last_update().max(model.scores.last_update());
            last.is_none_or(|last| now.saturating_duration_since(last) < max_age)
        });
        let snapshots = models.iter().map(|(name, model)| ModelQuality {
            model: name.to_string(),
            output_drift: model.tokens.drift(now),
            refusals: model.refusals.means(now),
            scores: model.scores.means(now),
        });
        snapshots.collect()
    }

    fn update_model(&self, name: &str, change: impl FnOnce(&mut ModelTrends)) {
        let mut models = self.lock_models();
        // Models can be added faster than old ones are removed.
        let has_own_trends = models.len() < MAX_TRACKED_MODELS || models.contains_key(name);
        let name = if has_own_trends { name } else { ModelLabel::OTHER };
        if let Some(model) = models.get_mut(name) {
            return change(model);
        }
        let trend = MeanTrend::new(self.window, self.baseline_window);
        let model = ModelTrends { tokens: trend, refusals: trend, scores: trend };
        change(models.entry(name.into()).or_insert(model));
    }

    fn lock_models(&self) -> MutexGuard<'_, BTreeMap<Box<str>, ModelTrends>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
