//! Detects anomalies, which are values that are far from their usual values, and pairs of values that
//! are correlated. Anomalies and pairs are hints for an investigation, and not verdicts.

use super::evaluation::{ANOMALY_Z_SCORE, Evaluation};
use super::history::{
    AdverseChange, HistoryStep, StepSignal, StepValueFn, StepWindow, WindowMeasure,
    rank_correlation,
};
use super::verdict::{Anomaly, CorrelatedPair};

/// A value is anomalous only if it is above or below its usual value by at least this factor.
const MIN_CHANGE_FACTOR: f64 = 2.0;
/// Minimum number of steps of the history in which both values of a pair are known. With fewer steps, no
/// correlation is computed. A step is the time between two samples, and not a scheduler step of the engine.
const MIN_PAIRED_SAMPLES: usize = 20;
/// Minimum absolute correlation of a pair that is reported.
const MIN_CORRELATION: f64 = 0.7;

/// The pairs of values that are tested for correlation: the name and the signal of the first value, and the
/// name of the second value with the function that reads it from a step.
const CORRELATION_CANDIDATES: [(&str, StepSignal, &str, StepValueFn); 5] = [
    ("kv_usage", StepSignal::KvUsage, "engine_ttft", mean_ttft),
    ("waiting", StepSignal::Waiting, "engine_ttft", mean_ttft),
    ("kv_usage", StepSignal::KvUsage, "waiting", |step| step.get(StepSignal::Waiting)),
    ("running", StepSignal::Running, "engine_inter_token", mean_inter_token_latency),
    ("preemptions", StepSignal::Preemptions, "engine_inter_token", mean_inter_token_latency),
];

/// The names of the measures that can be anomalous: a change of their value can harm requests.
pub fn measure_names() -> impl Iterator<Item = &'static str> {
    let can_harm = |adverse| !matches!(adverse, AdverseChange::None);
    let measures = WindowMeasure::ALL.into_iter();
    measures.filter(move |measure| can_harm(measure.adverse_change())).map(WindowMeasure::as_str)
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
        // A change that cannot harm requests, such as an empty queue, is no anomaly.
        let is_adverse = match measure.adverse_change() {
            AdverseChange::Rise => z >= ANOMALY_Z_SCORE && value >= MIN_CHANGE_FACTOR * median,
            AdverseChange::Fall => z <= -ANOMALY_Z_SCORE && value * MIN_CHANGE_FACTOR <= median,
            AdverseChange::None => false,
        };
        is_adverse.then(|| Anomaly {
            backend: backend.to_owned(),
            measure: measure.as_str().into(),
            value,
            unit: measure.unit().into(),
            usual: median,
        })
    })
}

/// The pairs of values of a backend that are correlated in the window.
pub(super) fn pairs<'a>(
    backend: &'a str,
    window: StepWindow<'a>,
) -> impl Iterator<Item = CorrelatedPair> + 'a {
    CORRELATION_CANDIDATES.iter().filter_map(move |(first, signal, second, read_second)| {
        let samples = window.pairs(*signal, *read_second);
        let correlation = rank_correlation(&samples, MIN_PAIRED_SAMPLES)?;
        (correlation.abs() >= MIN_CORRELATION).then(|| CorrelatedPair {
            backend: backend.to_owned(),
            first: (*first).into(),
            second: (*second).into(),
            correlation,
            moments: samples.len(),
        })
    })
}

fn mean_ttft(step: &HistoryStep) -> Option<f64> {
    mean_value(step, StepSignal::FirstTokenSeconds, StepSignal::FirstTokens)
}

fn mean_inter_token_latency(step: &HistoryStep) -> Option<f64> {
    mean_value(step, StepSignal::InterTokenSeconds, StepSignal::Gaps)
}

/// The signal `sum` of a step divided by its signal `count`. `None`: one of them is unknown, or the count
/// is below 1.
fn mean_value(step: &HistoryStep, sum: StepSignal, count: StepSignal) -> Option<f64> {
    let count = step.get(count).filter(|count| *count >= 1.0)?;
    Some(step.get(sum)? / count)
}
