//! Detects anomalies, which are values that are far from their usual values. They are hints for an
//! investigation, and not verdicts.

use super::evaluation::{ANOMALY_Z_SCORE, Evaluation};
use super::history::{AdverseChange, WindowMeasure};
use super::verdict::Anomaly;

/// A value is anomalous only if it is above or below its usual value by at least this factor.
const MIN_CHANGE_FACTOR: f64 = 2.0;
/// The names of the measures that can be anomalous. Measures whose changes cannot harm requests are left out.
pub fn measure_names() -> impl Iterator<Item = &'static str> {
    let can_harm = |adverse| !matches!(adverse, AdverseChange::None);
    let measures = WindowMeasure::ALL.into_iter();
    measures
        .filter(move |measure| can_harm(measure.adverse_change()))
        .map(WindowMeasure::as_str)
}

impl Anomaly {
    /// The anomaly of a measure of a backend.
    pub(super) fn of(backend: &str, measure: WindowMeasure, value: f64, usual: f64) -> Self {
        Self {
            backend: backend.to_owned(),
            measure: measure.as_str().into(),
            value,
            unit: measure.unit().into(),
            usual,
        }
    }
}

/// The measures of a backend that are far from their usual values, in the direction that can harm
/// requests.
pub(super) fn anomalies<'a>(
    backend: &'a str,
    evaluation: &'a Evaluation<'_>,
) -> impl Iterator<Item = Anomaly> + 'a {
    WindowMeasure::ALL.into_iter().filter_map(move |measure| {
        let value = evaluation.short_window().get(measure)?;
        let baseline = evaluation.baseline(measure)?;
        let z = baseline.z_score(value);
        let median = baseline.median;
        let has_risen = z >= ANOMALY_Z_SCORE && value >= MIN_CHANGE_FACTOR * median;
        let has_fallen = z <= -ANOMALY_Z_SCORE && value * MIN_CHANGE_FACTOR <= median;
        // A change that cannot harm requests, such as an empty queue, is no anomaly.
        let is_adverse = measure.adverse_change().includes(has_risen, has_fallen);
        is_adverse.then(|| Anomaly::of(backend, measure, value, median))
    })
}
