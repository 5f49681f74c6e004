//! The strongest changes in words: the anomalies that an operator reads first. Several measures show the same
//! change, so at most one measure of each kind is chosen, and a cause is preferred to its consequences.

use super::evaluation::Evaluation;
use super::fleet::{FleetObservation, RecentCounts};
use super::history::WindowMeasure;
use super::verdict::{Anomaly, Change, Verdict, VerdictSeverity};
use std::collections::HashMap;
use std::time::Instant;
use tokenweir_request::significance::is_share_above;

/// The times at which the current changes were found.
#[derive(Debug, Default)]
pub(super) struct ChangeTimes(HashMap<ChangeKey, Instant>);

/// A backend, or the empty name for most backends, and a measure.
type ChangeKey = (String, String);

/// Minimum number and share of harmed requests for which a change is named if no verdict is.
const MIN_UNEXPLAINED: u64 = 3;
const UNEXPLAINED_SHARE: f64 = 0.01;
/// Maximum number of changes.
const MAX_CHANGES: usize = 2;
/// Greatest factor of a change. The usual value can be zero.
const MAX_FACTOR: f64 = 100.0;
/// A request is slower than usual if its mean duration and its time per output token are at least this many
/// times usual. Both, because longer answers take longer, and shorter ones have more time for each token.
const SLOWER_FACTOR: f64 = 1.5;
/// The factor of a change from the first half minute, which is known less well than the last hour, and its minimum
/// in smallest relevant deviations.
const EARLY_FACTOR: f64 = 2.0;
const EARLY_DEVIATIONS: f64 = 10.0;
/// Above this multiple of the usual rate of requests, the load explains slower requests.
const HIGHER_LOAD_FACTOR: f64 = 1.3;

/// A kind of change. Measures of one kind show the same change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What clients send, or how engines work: a cause.
    Cause,
    /// The times of tokens.
    Tokens,
    /// The times of first tokens.
    FirstTokens,
    /// The times of whole requests.
    Requests,
    /// The number of requests, which follows from the times.
    Load,
}

/// The words for a measure.
struct Words {
    kind: Kind,
    text: &'static str,
}

/// The share of the requests of these backends that are slower than usual, although not more requests came.
pub(super) fn slower_share(evaluations: &[Evaluation<'_>]) -> f64 {
    let mut slower = 0.0;
    let mut all = 0.0;
    for evaluation in evaluations {
        let rate = evaluation.short_window().get(WindowMeasure::RequestRate);
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
    let history = evaluation.history;
    let usual = history
        .usual(WindowMeasure::RequestRate)
        .or(history.early_value(WindowMeasure::RequestRate));
    usual.is_some_and(|usual| rate <= HIGHER_LOAD_FACTOR * usual)
}

/// The measures that differ by [`EARLY_FACTOR`] from those of the first half minute, at a backend whose history is
/// too short for anomalies.
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
    let value = evaluation.short_window().get(measure)?;
    let least = EARLY_DEVIATIONS * measure.min_deviation();
    let has_risen = value >= EARLY_FACTOR * usual && value - usual >= least;
    let has_fallen = value * EARLY_FACTOR <= usual && usual - value >= least;
    let is_adverse = measure.adverse_change().includes(has_risen, has_fallen);
    is_adverse.then(|| Anomaly::of(backend, measure, value, usual))
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
        let mut kinds: Vec<Kind> = Vec::new();
        changes.retain(|change| {
            let kind = words(&change.measure).kind;
            let is_new = !kinds.contains(&kind) || kind == Kind::Cause;
            kinds.push(kind);
            is_new
        });
        changes.truncate(MAX_CHANGES);
        changes
    }
}

/// The changes of each backend. A change of the same measure at most backends is one change.
fn all_changes(anomalies: &[Anomaly], backends: usize) -> Vec<Change> {
    let mut by_measure: Vec<(&str, Vec<&Anomaly>)> = Vec::new();
    for anomaly in anomalies {
        let known = by_measure
            .iter_mut()
            .find(|(measure, _)| *measure == anomaly.measure);
        match known {
            Some((_, group)) => group.push(anomaly),
            None => by_measure.push((&anomaly.measure, vec![anomaly])),
        }
    }
    let mut changes = Vec::new();
    for (_, mut group) in by_measure {
        group.sort_by(|a, b| factor(a).total_cmp(&factor(b)));
        if let Some(subject) = common_subject(group.len(), backends) {
            let middle = group[group.len() / 2];
            changes.push(change(middle, String::new(), &subject));
        } else {
            changes.extend(
                group
                    .into_iter()
                    .map(|anomaly| change(anomaly, anomaly.backend.clone(), &anomaly.backend)),
            );
        }
    }
    changes
}

/// The words for the backends that have the same change, if they are most of all `backends`: then it is one change.
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

/// The weight of a change: how far its value is from usual. Causes count twice, changes at most backends
/// four times, numbers of requests half.
fn weight(change: &Change) -> f64 {
    let distance = change.factor.max(1.0 / MAX_FACTOR).ln().abs();
    let of_kind = match words(&change.measure).kind {
        Kind::Cause => 2.0,
        Kind::Tokens | Kind::FirstTokens | Kind::Requests => 1.0,
        Kind::Load => 0.5,
    };
    let of_scope = if change.backend.is_empty() { 4.0 } else { 1.0 };
    // A mean is known better than a quantile.
    let is_quantile = change.measure == WindowMeasure::GapP99.as_str();
    let of_measure = if is_quantile { 0.5 } else { 1.0 };
    distance * of_kind * of_scope * of_measure
}

/// A value as text, with its unit.
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

/// The words for the measure with this name.
fn words(measure: &str) -> Words {
    let known = WindowMeasure::ALL
        .into_iter()
        .find(|known| known.as_str() == measure);
    let Some(known) = known else {
        return Words::of(Kind::Load, "a measure");
    };
    if let Some(text) = cause(known) {
        return Words::of(Kind::Cause, text);
    }
    match known {
        WindowMeasure::EngineInterToken => Words::of(Kind::Tokens, "time between tokens"),
        WindowMeasure::GapP99 => Words::of(Kind::Tokens, "p99 of the time between tokens"),
        WindowMeasure::GenerationRate => Words::of(Kind::Tokens, "generated tokens"),
        WindowMeasure::Ttft | WindowMeasure::EngineTtft => {
            Words::of(Kind::FirstTokens, "time to first token")
        }
        WindowMeasure::SlowShare => Words::of(Kind::FirstTokens, "late first tokens"),
        WindowMeasure::QueueTime => Words::of(Kind::FirstTokens, "time in the engine's queue"),
        WindowMeasure::PrefillTime => Words::of(Kind::FirstTokens, "time of the prefill"),
        WindowMeasure::RequestSeconds => Words::of(Kind::Requests, "duration of requests"),
        WindowMeasure::SecondsPerToken => Words::of(Kind::Requests, "time per output token"),
        WindowMeasure::Waiting => Words::of(Kind::Load, "waiting requests"),
        WindowMeasure::Running => Words::of(Kind::Load, "running requests"),
        WindowMeasure::InFlight => Words::of(Kind::Load, "requests in flight"),
        WindowMeasure::KvUsage | WindowMeasure::KvUsageP90 => {
            Words::of(Kind::Load, "usage of the KV cache")
        }
        other => Words::of(Kind::Load, other.as_str()),
    }
}

/// The words for a measure of what clients send, or of how engines work. `None`: another measure.
fn cause(measure: WindowMeasure) -> Option<&'static str> {
    Some(match measure {
        WindowMeasure::PromptTokens => "prompt length",
        WindowMeasure::AnswerTokens => "length of answers",
        WindowMeasure::DraftAcceptance => "acceptance of draft tokens",
        WindowMeasure::PrefixHitRatio => "prefix hit ratio",
        WindowMeasure::PreemptionRate => "preemptions",
        WindowMeasure::PreemptionsPerRequest => "preemptions per request",
        WindowMeasure::CancelRatio => "clients that disconnect",
        WindowMeasure::EmptyShare => "empty responses",
        WindowMeasure::RepetitiveShare => "answers that repeat themselves",
        WindowMeasure::NonAsciiShare => "text outside ASCII in answers",
        WindowMeasure::DamagedShare => "answers with damaged characters",
        WindowMeasure::ToolCallShare => "tool calls among the answers to requests with tools",
        WindowMeasure::MissingJsonShare => "answers that are not the requested JSON",
        WindowMeasure::ReasoningAloneShare => "responses with reasoning alone",
        WindowMeasure::WrongUsageShare => "responses with wrong token counts",
        WindowMeasure::CutShare => "responses that end at a limit",
        WindowMeasure::StallsPerStream => "stalls per stream",
        WindowMeasure::FrontEnd => "time before the engine",
        _ => return None,
    })
}

impl Words {
    fn of(kind: Kind, text: &'static str) -> Self {
        Self { kind, text }
    }
}

/// Whether a significant share of the clients is harmed, and no verdict is more than a note.
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
