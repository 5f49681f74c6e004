//! The trends of each model.

use super::trend::Trend;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokenweir_core::record::{ModelLabel, RequestRecord, Timings};

/// The trends of all models that had an answer lately.
pub(super) struct Trends {
    recent: Duration,
    baseline: Duration,
    /// By label value, so that clients cannot make them many.
    models: Mutex<BTreeMap<Box<str>, Model>>,
}

/// One model at one moment. What is `None` has too few answers to tell.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OfModel {
    /// The label value.
    pub model: String,
    /// Mean of the output tokens of an answer, lately over for long.
    pub output_drift: Option<f64>,
    /// Share of answers that refuse: lately, and for long.
    pub refusals: [Option<f64>; 2],
    /// Mean of the scores of the judge: lately, and for long.
    pub scores: [Option<f64>; 2],
}

struct Model {
    tokens: Trend,
    refusals: Trend,
    scores: Trend,
}

/// A model of which nothing came for so many times what it is compared to is forgotten.
const FORGOTTEN: u32 = 3;
/// Models with trends of their own; the others share those of `_other`.
const MOST: usize = 512;

impl Trends {
    /// Nothing has come.
    pub(super) const fn over(recent: Duration, baseline: Duration) -> Self {
        Self { recent, baseline, models: Mutex::new(BTreeMap::new()) }
    }

    /// An answer ended well.
    pub(super) fn answer(&self, record: &RequestRecord) {
        let Timings { accepted, ended, .. } = record.timings;
        let now = ended.unwrap_or(accepted);
        let [_, tokens, ..] = record.counted_tokens();
        self.with(record.model.as_str(), |model| {
            // A count that is estimated is off by more than a drift is.
            if let Some(tokens) = tokens {
                model.tokens.add(tokens as f64, now);
            }
            model.refusals.add(f64::from(u8::from(record.is_refused_answer())), now);
        });
    }

    /// An answer of this model was judged.
    pub(super) fn score(&self, model: &str, score: f64, now: Instant) {
        self.with(model, |model| model.scores.add(score, now));
    }

    /// How they are at `now`.
    pub(super) fn at(&self, now: Instant) -> Vec<OfModel> {
        let mut models = self.models();
        let oldest = self.baseline.saturating_mul(FORGOTTEN);
        models.retain(|_, model| {
            let last = model.refusals.last().max(model.scores.last());
            last.is_none_or(|last| now.saturating_duration_since(last) < oldest)
        });
        let told = models.iter().map(|(name, model)| OfModel {
            model: name.to_string(),
            output_drift: model.tokens.drift(now),
            refusals: model.refusals.means(now),
            scores: model.scores.means(now),
        });
        told.collect()
    }

    fn with(&self, name: &str, change: impl FnOnce(&mut Model)) {
        let mut models = self.models();
        // Models come and go faster than they are forgotten.
        let is_known = models.len() < MOST || models.contains_key(name);
        let name = if is_known { name } else { ModelLabel::OTHER };
        if let Some(model) = models.get_mut(name) {
            return change(model);
        }
        let trend = Trend::over(self.recent, self.baseline);
        let model = Model { tokens: trend, refusals: trend, scores: trend };
        change(models.entry(name.into()).or_insert(model));
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Model>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
