//! The trends of model refusals and scores, by model.

use super::trend::MeanTrend;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokenweir_protocol::mutex::lock;
use tokenweir_request::record::{ModelLabel, RequestRecord, Timings};

/// The trends of all models that had a response recently.
pub(super) struct QualityTrends {
    /// Time constant of the recent means.
    window: Duration,
    /// Time constant of the baseline means.
    baseline_window: Duration,
    /// The trends of each model. The key is the label value of the model. Clients cannot extend the set of
    /// label values, so they cannot make the map grow.
    models: Mutex<BTreeMap<Box<str>, ModelTrends>>,
}

/// A snapshot of the quality of one model. A value of `None` means that the model had too few
/// responses.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ModelQuality {
    /// The model as a label value.
    pub model: String,
    /// Share of responses in which the model declined: the recent mean and the baseline mean.
    pub refusals: [Option<f64>; 2],
    /// Score of the judge: the recent mean and the baseline mean.
    pub scores: [Option<f64>; 2],
}

/// The trends of model refusals and scores of one model.
struct ModelTrends {
    /// Trend of the model refusals. A response in which the model declined counts as 1, any other
    /// response as 0.
    refusals: MeanTrend,
    /// Trend of the scores of the judge, 0 to 1.
    scores: MeanTrend,
}

/// Number of baseline windows without a response after which the trends of a model are removed.
const EVICTION_BASELINE_WINDOWS: u32 = 3;
/// Maximum number of models with trends of their own. Further models share the trends of `_other`.
const MAX_TRACKED_MODELS: usize = 512;

impl QualityTrends {
    /// Creates an empty set of trends. `window` and `baseline_window` are the time constants of the
    /// recent and of the baseline means.
    pub(super) const fn new(window: Duration, baseline_window: Duration) -> Self {
        Self {
            window,
            baseline_window,
            models: Mutex::new(BTreeMap::new()),
        }
    }

    /// Adds a complete response to the trends of its model.
    pub(super) fn record_response(&self, record: &RequestRecord) {
        let Timings {
            accepted, ended, ..
        } = record.timings;
        let now = ended.unwrap_or(accepted);
        self.update_model(record.model.as_str(), |model| {
            model
                .refusals
                .add(f64::from(record.is_model_refusal()), now);
        });
    }

    /// Adds a score of the judge to the trends of this model.
    pub(super) fn record_score(&self, model: &str, score: f64, now: Instant) {
        self.update_model(model, |model| model.scores.add(score, now));
    }

    /// Returns the quality of all models at `now`. Removes the trends of models that had no
    /// response for [`EVICTION_BASELINE_WINDOWS`] baseline windows.
    pub(super) fn snapshot(&self, now: Instant) -> Vec<ModelQuality> {
        let mut models = lock(&self.models);
        let max_age = self
            .baseline_window
            .saturating_mul(EVICTION_BASELINE_WINDOWS);
        models.retain(|_, model| {
            let last = model.refusals.last_update().max(model.scores.last_update());
            last.is_none_or(|last| now.saturating_duration_since(last) < max_age)
        });
        let snapshots = models.iter().map(|(name, model)| ModelQuality {
            model: name.to_string(),
            refusals: model.refusals.means(now),
            scores: model.scores.means(now),
        });
        snapshots.collect()
    }

    /// Applies `change` to the trends of this model, or to those of `_other` if there are too many
    /// models. Creates the trends if they do not exist.
    fn update_model(&self, name: &str, change: impl FnOnce(&mut ModelTrends)) {
        let mut models = lock(&self.models);
        // The number of models is limited here, because models can be added faster than the trends
        // of idle models are removed.
        let has_own_trends = models.len() < MAX_TRACKED_MODELS || models.contains_key(name);
        let name = if has_own_trends {
            name
        } else {
            ModelLabel::OTHER
        };
        if let Some(model) = models.get_mut(name) {
            return change(model);
        }
        let trend = MeanTrend::new(self.window, self.baseline_window);
        let model = ModelTrends {
            refusals: trend,
            scores: trend,
        };
        change(models.entry(name.into()).or_insert(model));
    }
}
