//! Anomalies, which are values that are far from their usual values, and the strongest changes in words: the
//! anomalies that an operator reads first. They are hints for an investigation, not verdicts. Several measures
//! show the same change, so at most one measure of each kind is chosen, and a cause is preferred to its
//! consequences.

use super::evaluation::{ANOMALY_Z_SCORE, Evaluation};
use super::fleet::{FleetObservation, RecentCounts};
use super::history::{AdverseChange, ChangeKind, ChangeWords, WindowMeasure};
use super::verdict::{Anomaly, Change, Verdict, VerdictSeverity};
use std::collections::HashMap;
use std::time::Instant;
use tokenweir_request::significance::is_share_above;

/// The time at which each current change was found.
#[derive(Debug, Default)]
pub(super) struct ChangeTimes(HashMap<ChangeKey, Instant>);

/// The name of a backend (empty for most backends together) and the name of a measure.
type ChangeKey = (String, String);

/// Minimum number of harmed requests, and then their minimum share, for which changes are named although no
/// verdict explains the harm.
const MIN_UNEXPLAINED: u64 = 3;
const UNEXPLAINED_SHARE: f64 = 0.01;
const MAX_CHANGES: usize = 2;
/// Maximum factor of a change, because the usual value can be zero.
const MAX_FACTOR: f64 = 100.0;
/// Requests are slower than usual if their mean duration and their time per output token are both at least this
/// many times the usual value. One alone is not enough: longer answers take longer, and shorter answers need
/// more time for each token.
const SLOWER_FACTOR: f64 = 1.5;
/// Minimum change against the first half minute, in multiples of the smallest relevant deviation. It is high,
/// because half a minute shows less than an hour what is usual.
const EARLY_DEVIATIONS: f64 = 10.0;
/// Above this multiple of the usual rate of requests, the load explains slower requests.
const HIGHER_LOAD_FACTOR: f64 = 1.3;

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
        let usual = evaluation.baseline(measure)?;
        let least = ANOMALY_Z_SCORE * usual.deviation;
        adverse_change(backend, evaluation, measure, usual.median, least)
    })
}

/// The change of a measure from `usual`, if it is at least [`MIN_CHANGE_FACTOR`] and `least`. `None`: the
/// change is smaller, or it cannot harm requests, such as an empty queue.
pub(super) fn adverse_change(
    backend: &str,
    evaluation: &Evaluation<'_>,
    measure: WindowMeasure,
    usual: f64,
    least: f64,
) -> Option<Anomaly> {
    let value = evaluation.minute.get(measure)?;
    let has_risen = value >= MIN_CHANGE_FACTOR * usual && value - usual >= least;
    let has_fallen = value * MIN_CHANGE_FACTOR <= usual && usual - value >= least;
    let is_adverse = measure.adverse_change().includes(has_risen, has_fallen);
    is_adverse.then(|| Anomaly::of(backend, measure, value, usual))
}

/// The share of the requests that are slower than usual, although the backends get no more requests than usual.
pub(super) fn slower_share<'a>(evaluations: impl Iterator<Item = &'a Evaluation<'a>>) -> f64 {
    let mut slower = 0.0;
    let mut all = 0.0;
    for evaluation in evaluations {
        let rate = evaluation.minute.get(WindowMeasure::RequestRate);
        let rate = rate.unwrap_or_default();
        all += rate;
        if is_slower(evaluation) && has_usual_load(evaluation, rate) {
            slower += rate;
        }
    }
    if all > 0.0 { slower / all } else { 0.0 }
}

fn is_slower(evaluation: &Evaluation<'_>) -> bool {
    let measures = [
        WindowMeasure::RequestSeconds,
        WindowMeasure::SecondsPerToken,
    ];
    measures.into_iter().all(|measure| {
        evaluation.has_risen(measure, SLOWER_FACTOR)
            || early_change("", evaluation, measure).is_some_and(|found| found.value > found.usual)
    })
}

fn has_usual_load(evaluation: &Evaluation<'_>, rate: f64) -> bool {
    let usual = evaluation.history.past(WindowMeasure::RequestRate);
    usual.is_some_and(|usual| rate <= HIGHER_LOAD_FACTOR * usual)
}

/// The measures that differ from the first half minute, for a backend whose history is too short for anomalies.
pub(super) fn early_changes(backend: &str, evaluation: &Evaluation<'_>) -> Vec<Anomaly> {
    let measures = WindowMeasure::ALL.into_iter();
    let found = measures.filter_map(|measure| early_change(backend, evaluation, measure));
    found.collect()
}

fn early_change(
    backend: &str,
    evaluation: &Evaluation<'_>,
    measure: WindowMeasure,
) -> Option<Anomaly> {
    let usual = evaluation.history.early_value(measure)?;
    let least = EARLY_DEVIATIONS * measure.min_deviation();
    adverse_change(backend, evaluation, measure, usual, least)
}

impl ChangeTimes {
    /// The strongest changes among the anomalies of `backends` backends at `now`.
    pub(super) fn strongest(
        &mut self,
        anomalies: &[Anomaly],
        backends: usize,
        now: Instant,
    ) -> Vec<Change> {
        let mut changes = all_changes(anomalies, backends);
        let mut begins = HashMap::new();
        for change in &mut changes {
            let key = (change.backend.clone(), change.measure.to_string());
            let begin = self.0.get(&key).copied().unwrap_or(now);
            change.age_seconds = now.saturating_duration_since(begin).as_secs_f64();
            begins.insert(key, begin);
        }
        self.0 = begins;
        changes.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let mut kinds: Vec<ChangeKind> = Vec::new();
        changes.retain(|change| {
            let kind = words(&change.measure).kind;
            let is_new = !kinds.contains(&kind) || kind == ChangeKind::Cause;
            kinds.push(kind);
            is_new
        });
        changes.truncate(MAX_CHANGES);
        changes
    }
}

/// The changes of each backend. A change of the same measure at most backends is one change.
fn all_changes(anomalies: &[Anomaly], backends: usize) -> Vec<Change> {
    let mut measures: Vec<&str> = Vec::new();
    for anomaly in anomalies {
        if !measures.contains(&&*anomaly.measure) {
            measures.push(&anomaly.measure);
        }
    }
    let mut changes = Vec::new();
    for measure in measures {
        let group = anomalies.iter().filter(|it| it.measure == measure);
        let mut group: Vec<&Anomaly> = group.collect();
        group.sort_by(|a, b| factor(a).total_cmp(&factor(b)));
        if let Some(subject) = common_subject(group.len(), backends) {
            let middle = group[group.len() / 2];
            changes.push(change(middle, String::new(), &subject));
        } else {
            changes.extend(
                group
                    .iter()
                    .map(|it| change(it, it.backend.clone(), &it.backend)),
            );
        }
    }
    changes
}

/// The subject of a change that `count` of `backends` backends have, as text. `None`: they are not most of the
/// backends, so each has its own change.
pub(super) fn common_subject(count: usize, backends: usize) -> Option<String> {
    if count < 2 || 2 * count <= backends {
        return None;
    }
    Some(if count == backends {
        "all backends".to_owned()
    } else {
        format!("{count} of {backends} backends")
    })
}

fn change(anomaly: &Anomaly, backend: String, subject: &str) -> Change {
    let text = words(&anomaly.measure).text;
    let value = amount(anomaly.value, &anomaly.unit);
    let usual = amount(anomaly.usual, &anomaly.unit);
    Change {
        words: format!("{subject}: {text} {value}, usually {usual}"),
        backend,
        measure: anomaly.measure.clone(),
        factor: factor(anomaly),
        age_seconds: 0.0,
    }
}

fn factor(anomaly: &Anomaly) -> f64 {
    if anomaly.usual > 0.0 {
        (anomaly.value / anomaly.usual).min(MAX_FACTOR)
    } else {
        MAX_FACTOR
    }
}

/// The weight of a change: how far its value is from usual. The weight is doubled for a cause, multiplied by
/// four for a change at most backends, and halved for a number of requests.
fn weight(change: &Change) -> f64 {
    let distance = change.factor.max(1.0 / MAX_FACTOR).ln().abs();
    let of_kind = match words(&change.measure).kind {
        ChangeKind::Cause => 2.0,
        ChangeKind::Tokens | ChangeKind::FirstTokens | ChangeKind::Requests => 1.0,
        ChangeKind::Load => 0.5,
    };
    let of_scope = if change.backend.is_empty() { 4.0 } else { 1.0 };
    // A mean varies less by chance than a quantile.
    let is_quantile = change.measure == WindowMeasure::GapP99.as_str();
    let of_measure = if is_quantile { 0.5 } else { 1.0 };
    distance * of_kind * of_scope * of_measure
}

fn amount(value: f64, unit: &str) -> String {
    match unit {
        "s" if value < 0.01 => format!("{:.1} ms", 1e3 * value),
        "s" if value < 1.0 => format!("{:.0} ms", 1e3 * value),
        "s" => format!("{value:.2} s"),
        "ratio" => format!("{:.0} %", 100.0 * value),
        unit if value < 10.0 => format!("{value:.1} {unit}"),
        unit => format!("{value:.0} {unit}"),
    }
}

fn words(measure: &str) -> ChangeWords {
    let mut measures = WindowMeasure::ALL.into_iter();
    let known = measures.find(|known| known.as_str() == measure);
    known.and_then(WindowMeasure::words).unwrap_or(ChangeWords {
        kind: ChangeKind::Load,
        text: known.map_or("a measure", WindowMeasure::as_str),
    })
}

/// Whether a significant share of the requests is harmed, and all verdicts are only notes.
pub(crate) fn has_unexplained_harm(verdicts: &[Verdict], fleet: &FleetObservation) -> bool {
    let is_explained = verdicts
        .iter()
        .any(|verdict| verdict.severity > VerdictSeverity::Info);
    let RecentCounts {
        harmed, requests, ..
    } = fleet.counts;
    !is_explained
        && harmed >= MIN_UNEXPLAINED
        && is_share_above(harmed, requests, UNEXPLAINED_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenweir_protocol::clock;

    fn words_of(anomalies: &[Anomaly], backends: usize) -> Vec<String> {
        let changes = ChangeTimes::default().strongest(anomalies, backends, clock::epoch());
        changes.into_iter().map(|change| change.words).collect()
    }

    #[test]
    fn a_common_change_is_named_once() {
        let mut anomalies = Vec::new();
        for backend in ["gpu-0", "gpu-1", "gpu-2"] {
            anomalies.push(Anomaly::of(
                backend,
                WindowMeasure::EngineInterToken,
                0.04,
                0.01,
            ));
            anomalies.push(Anomaly::of(backend, WindowMeasure::GapP99, 0.05, 0.012));
            anomalies.push(Anomaly::of(backend, WindowMeasure::InFlight, 9.0, 3.0));
            anomalies.push(Anomaly::of(
                backend,
                WindowMeasure::RequestSeconds,
                1.5,
                0.5,
            ));
        }
        let expected = [
            "all backends: time between tokens 40 ms, usually 10 ms",
            "all backends: duration of requests 1.50 s, usually 500 ms",
        ];
        assert_eq!(words_of(&anomalies, 3), expected);
    }

    #[test]
    fn a_cause_comes_before_its_consequences() {
        let anomalies = [
            Anomaly::of("gpu-0", WindowMeasure::EngineInterToken, 0.03, 0.01),
            Anomaly::of("gpu-0", WindowMeasure::DraftAcceptance, 0.05, 0.75),
            Anomaly::of("gpu-0", WindowMeasure::Running, 9.0, 1.0),
        ];
        let expected = [
            "gpu-0: acceptance of draft tokens 5 %, usually 75 %",
            "gpu-0: time between tokens 30 ms, usually 10 ms",
        ];
        assert_eq!(words_of(&anomalies, 3), expected);
    }

    #[test]
    fn the_age_counts_from_the_first_sight() {
        let mut times = ChangeTimes::default();
        let found = [Anomaly::of("gpu-0", WindowMeasure::Ttft, 1.0, 0.1)];
        let start = clock::epoch();
        assert!(times.strongest(&found, 1, start)[0].age_seconds.abs() < 1e-9);
        let later = times.strongest(&found, 1, start + Duration::from_secs(30));
        assert!((later[0].age_seconds - 30.0).abs() < 1e-9);
        assert_eq!(times.strongest(&[], 1, start), []);
    }

    #[test]
    fn harm_without_a_verdict_is_unexplained() {
        let mut fleet = FleetObservation::default();
        fleet.counts.requests = 200;
        fleet.counts.harmed = 3;
        assert!(!has_unexplained_harm(&[], &fleet), "three can be chance");
        fleet.counts.harmed = 8;
        assert!(has_unexplained_harm(&[], &fleet));
        let note = |severity| Verdict {
            severity,
            ..Verdict::default()
        };
        assert!(has_unexplained_harm(&[note(VerdictSeverity::Info)], &fleet));
        let warning = note(VerdictSeverity::Warning);
        assert!(!has_unexplained_harm(&[warning], &fleet));
    }
}
