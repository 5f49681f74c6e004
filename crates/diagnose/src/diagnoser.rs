//! The diagnoser: takes a sample of each backend at each evaluation, evaluates all rules, and
//! reports the verdicts after debouncing.

use super::anomaly;
use super::debounce::VerdictDebounce;
use super::evaluation::{Evaluation, RuleMatch, RuleResult};
use super::fleet::{FleetDiagnoser, FleetObservation};
use super::harm::is_critical_harm;
use super::history::{BackendHistory, DiagnosisSample, FAST, StepSignal};
use super::rules::{DiagnosisRule, LoadDependence, RULES, RequestEvidence};
use super::verdict::{
    Confidence, DiagnosedBackend, Diagnosis, UndeterminedRule, Verdict, VerdictSeverity,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;

/// Diagnoses a set of backends.
#[derive(Debug, Default)]
pub struct Diagnoser {
    backends: Vec<BackendDiagnosis>,
    fleet: FleetDiagnoser,
}

/// The history of one backend and the state of each rule.
#[derive(Debug)]
struct BackendDiagnosis {
    id: BackendId,
    history: BackendHistory,
    debounces: [VerdictDebounce; RULES.len()],
    /// The last match of each rule. `None`: no verdict of the rule holds, and the rule has not matched
    /// recently.
    last_matches: [Option<RuleMatch>; RULES.len()],
    /// Whether the evidence of each rule has expired, because the load has ended.
    has_expired: [bool; RULES.len()],
    /// The requests since the last match of each rule that depends on requests.
    since_match: [RequestsSinceMatch; RULES.len()],
}

/// The requests at a backend since a rule last matched there.
#[derive(Debug, Clone, Copy, Default)]
struct RequestsSinceMatch {
    /// `sum` ÷ `count` of the [`RequestEvidence`] of the rule, in the last minute before the match. `None`:
    /// unknown.
    matched: Option<f64>,
    /// The two signals of the [`RequestEvidence`], summed since the match.
    sum: f64,
    count: f64,
}

/// The results of all rules at one backend.
type RuleResults = [RuleResult; RULES.len()];

/// Minimum number of samples in the short window for an evaluation: 30 seconds of samples.
const MIN_EVALUATED_STEPS: usize = 6;
const MISSING_SAMPLES: &str = "30 seconds of samples";
const MISSING_ANSWER: &str = "a response: the backend is down";
/// A condition has ended if `sum` ÷ `count` of its [`RequestEvidence`] since the last match is at most this
/// share of the value at that match, and `count` is at least `min_count`.
const RECOVERED_PART: f64 = 0.5;
/// A condition that an evaluation does not find counts as ended if the `count` of its [`RequestEvidence`]
/// since the last match is at least this many times `min_count`, whatever `sum` ÷ `count` is.
const ENOUGH_REQUESTS: f64 = 20.0;
/// The text that is added to the cause of a verdict that is kept because too few requests show whether its
/// condition has ended.
const AVOIDED_NOTE: &str = "routing avoids it, so too few requests show whether this has ended";
/// Time after which a change of the traffic that a verdict reports becomes usual, minute by minute.
const USUAL_AFTER: Duration = Duration::from_mins(15);
/// Time without any load after which the evidence of a verdict about load no longer counts.
const LOAD_EXPIRY: Duration = Duration::from_secs(30);

// === impl Diagnoser ===

impl Diagnoser {
    /// Adds a sample of each backend and diagnoses them at `now`, without a gateway. Backends
    /// without a sample are forgotten.
    pub fn diagnose(
        &mut self,
        samples: Vec<(BackendId, DiagnosisSample)>,
        now: Instant,
    ) -> Diagnosis {
        let mut diagnosis = self.diagnose_backends(samples, &FleetObservation::default(), now);
        diagnosis.verdicts.sort_by_key(|verdict| std::cmp::Reverse(verdict.severity));
        diagnosis
    }

    /// Adds a sample of each backend and diagnoses them and the fleet at `now`. Backends without a
    /// sample are forgotten.
    pub fn diagnose_gateway(
        &mut self,
        samples: Vec<(BackendId, DiagnosisSample)>,
        fleet: &FleetObservation,
        now: Instant,
    ) -> Diagnosis {
        let verdicts = self.fleet.diagnose(fleet, now);
        let mut diagnosis = self.diagnose_backends(samples, fleet, now);
        diagnosis.verdicts.splice(0..0, verdicts);
        // The sort is stable, so verdicts about the fleet come first at the same severity.
        diagnosis.verdicts.sort_by_key(|verdict| std::cmp::Reverse(verdict.severity));
        diagnosis
    }

    fn diagnose_backends(
        &mut self,
        samples: Vec<(BackendId, DiagnosisSample)>,
        fleet: &FleetObservation,
        now: Instant,
    ) -> Diagnosis {
        self.backends.retain(|known| samples.iter().any(|(id, _)| *id == known.id));
        for (id, sample) in samples {
            let backend = self.backend_or_insert(id);
            let is_healthy = backend.is_healthy(now);
            backend.history.push(sample, is_healthy);
        }
        self.expire_evidence(fleet);
        let results: Vec<RuleResults> =
            (0..self.backends.len()).map(|index| self.evaluate_rules(index, fleet)).collect();
        let totals: [u64; RULES.len()] = std::array::from_fn(|rule| {
            let total = RULES[rule].harm().total;
            self.backends.iter().map(|backend| backend.sum(total)).sum()
        });
        let mut diagnosis = Diagnosis::default();
        for (backend, results) in self.backends.iter_mut().zip(results) {
            let is_excluded = fleet.exclusion(&backend.id).is_some();
            backend.update(results, is_excluded, &totals, now, &mut diagnosis);
        }
        for index in 0..self.backends.len() {
            self.add_anomalies(index, &mut diagnosis);
        }
        diagnosis
    }

    /// Ends the verdicts about load at the backends that had no load for [`LOAD_EXPIRY`]. The earlier steps
    /// with load do not show a condition that holds now. A verdict about requests does not end while peers
    /// get requests for a model of the backend: then routing avoids the backend, so the lack of requests does
    /// not show that the condition has ended.
    fn expire_evidence(&mut self, fleet: &FleetObservation) {
        let is_expired: Vec<bool> = self
            .backends
            .iter()
            .map(|backend| backend.history.has_no_load_for(LOAD_EXPIRY))
            .collect();
        let is_fleet_idle = is_expired.iter().all(|is_expired| *is_expired);
        let models: HashMap<&BackendId, &[Arc<str>]> =
            fleet.backends.iter().map(|backend| (&backend.id, &*backend.models)).collect();
        let with_load =
            self.backends.iter().zip(&is_expired).filter(|(_, is_expired)| !**is_expired);
        let requested: HashSet<&Arc<str>> = with_load
            .filter_map(|(backend, _)| models.get(&backend.id))
            .flat_map(|models| models.iter())
            .collect();
        for (backend, is_expired) in self.backends.iter_mut().zip(is_expired) {
            let models = models.get(&backend.id).copied().unwrap_or_default();
            let is_unasked =
                !models.is_empty() && models.iter().all(|model| !requested.contains(model));
            for (index, rule) in RULES.iter().enumerate() {
                backend.has_expired[index] = match rule.load_dependence() {
                    LoadDependence::None => false,
                    LoadDependence::Backend => is_expired,
                    LoadDependence::Fleet => is_fleet_idle,
                    LoadDependence::Requests => is_fleet_idle || is_unasked,
                };
                if backend.has_expired[index] {
                    backend.debounces[index] = VerdictDebounce::default();
                    backend.last_matches[index] = None;
                }
            }
        }
    }

    fn backend_or_insert(&mut self, id: BackendId) -> &mut BackendDiagnosis {
        let index = self.backends.iter().position(|known| known.id == id).unwrap_or_else(|| {
            self.backends.push(BackendDiagnosis::new(id));
            self.backends.len() - 1
        });
        &mut self.backends[index]
    }

    fn evaluation(&self, index: usize) -> Evaluation<'_> {
        let others = self.backends.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.map(|(_, other)| &other.history).filter(|other| other.is_up());
        Evaluation { history: &self.backends[index].history, others: others.collect() }
    }

    /// Evaluates all rules for one backend, if it is up and has enough samples.
    fn evaluate_rules(&self, index: usize, fleet: &FleetObservation) -> RuleResults {
        let evaluation = self.evaluation(index);
        let backend = &self.backends[index];
        if !evaluation.history.is_up() {
            let missing = fleet.exclusion(&backend.id).unwrap_or(MISSING_ANSWER);
            return std::array::from_fn(|_| Err(vec![missing]));
        }
        if evaluation.short_window().len() < MIN_EVALUATED_STEPS {
            return std::array::from_fn(|_| Err(vec![MISSING_SAMPLES]));
        }
        std::array::from_fn(|rule| RULES[rule].judge(&evaluation, backend.has_expired[rule]))
    }

    /// Adds the anomalies of a backend.
    fn add_anomalies(&self, index: usize, diagnosis: &mut Diagnosis) {
        let id = self.backends[index].id.as_str();
        let evaluation = self.evaluation(index);
        let has_evidence = evaluation.history.is_up()
            && evaluation.short_window().len() >= MIN_EVALUATED_STEPS
            && !evaluation.history.has_no_load_for(LOAD_EXPIRY);
        if !has_evidence {
            return;
        }
        diagnosis.anomalies.extend(anomaly::anomalies(id, &evaluation));
    }
}

// === impl BackendDiagnosis ===

impl BackendDiagnosis {
    fn new(id: BackendId) -> Self {
        Self {
            id,
            history: BackendHistory::default(),
            debounces: [VerdictDebounce::default(); RULES.len()],
            last_matches: [const { None }; RULES.len()],
            has_expired: [false; RULES.len()],
            since_match: [RequestsSinceMatch::default(); RULES.len()],
        }
    }

    /// The sum of a signal in the last minute.
    fn sum(&self, signal: StepSignal) -> u64 {
        self.history.window(FAST).sum(signal).unwrap_or(0.0) as u64
    }

    /// Whether no verdict holds, except for one that lasts for so long that it shows what is usual now.
    fn is_healthy(&self, now: Instant) -> bool {
        self.debounces.iter().zip(&RULES).all(|(debounce, rule)| match debounce.since() {
            Some(since) => {
                rule.becomes_usual() && now.saturating_duration_since(since) >= USUAL_AFTER
            }
            None => true,
        })
    }

    /// Whether the backend got too few requests since the last match to show that the condition of the rule
    /// has ended. `is_found`: whether the current evaluation found the condition.
    fn lacks_requests(&mut self, index: usize, is_found: bool) -> bool {
        let Some(evidence) = RULES[index].request_evidence() else { return false };
        let RequestEvidence { sum, count, min_count } = evidence;
        let requests = &mut self.since_match[index];
        if is_found {
            let matched = self.history.window(FAST).ratio(sum, count, 1.0);
            *requests = RequestsSinceMatch { matched, ..RequestsSinceMatch::default() };
            return false;
        }
        let latest = |signal| self.history.window(FAST).latest(signal).unwrap_or(0.0);
        requests.sum += latest(sum);
        requests.count += latest(count);
        let has_recovered = requests
            .matched
            .is_none_or(|matched| requests.sum <= RECOVERED_PART * matched * requests.count);
        let is_enough = requests.count >= min_count && has_recovered
            || requests.count >= ENOUGH_REQUESTS * min_count;
        !is_enough
    }

    /// Updates the verdicts of the backend with the results of an evaluation. Adds the verdicts, the
    /// undetermined rules and the backend to the diagnosis. `is_excluded`: the state of the backend, such as
    /// a drain, excludes it from requests. The backend then counts as diagnosed. `totals`: for each rule, the
    /// number of requests at all backends of which those that are harmed here are a share.
    fn update(
        &mut self,
        results: RuleResults,
        is_excluded: bool,
        totals: &[u64; RULES.len()],
        now: Instant,
        diagnosis: &mut Diagnosis,
    ) {
        let mut is_determined = is_excluded;
        for (index, result) in results.into_iter().enumerate() {
            let rule = &RULES[index];
            let (rule_match, missing) = match result {
                Ok(_) if self.is_explained(rule) => (None, None),
                Ok(rule_match) => (rule_match, None),
                Err(missing) => (None, Some(missing)),
            };
            // The rule for unreadable metrics does not count, because it does not diagnose the
            // engine.
            is_determined |= missing.is_none() && !rule.is_metrics_unreadable();
            let is_held = missing.is_none() && self.lacks_requests(index, rule_match.is_some());
            if is_held && !self.is_explained(rule) {
                self.debounces[index].hold(now);
            }
            self.debounces[index].update(rule_match.is_some(), now);
            if let Some(rule_match) = rule_match {
                self.last_matches[index] = Some(self.hold_remedy(index, rule_match));
            }
            let is_critical = is_critical_harm(self.sum(rule.harm().harmed), totals[index]);
            if let Some(mut verdict) = self.active_verdict(index, is_critical, now) {
                if is_held {
                    verdict.is_held = true;
                    verdict.add_to_cause(AVOIDED_NOTE);
                }
                diagnosis.verdicts.push(verdict);
            } else if let Some(missing) = missing {
                diagnosis.undetermined.push(UndeterminedRule {
                    verdict: rule.name.into(),
                    backend: self.id.to_string(),
                    missing: missing.into_iter().map(Into::into).collect(),
                });
            }
        }
        diagnosis.backends.push(DiagnosedBackend { backend: self.id.to_string(), is_determined });
    }

    /// Whether the condition of a rule that explains `rule` holds or was found recently. The
    /// explaining rules come earlier in the table, so their debounces are already up to date.
    fn is_explained(&self, rule: &DiagnosisRule) -> bool {
        let explains = |(other, debounce): (&DiagnosisRule, &VerdictDebounce)| {
            rule.explained_by.contains(&other.name) && debounce.is_active_or_pending()
        };
        RULES.iter().zip(&self.debounces).any(explains)
    }

    /// Returns the match. If it and the previous match recommend about the same value, it gets the remedy of
    /// the previous match, so that the number in the remedy does not change at each evaluation.
    fn hold_remedy(&self, index: usize, rule_match: RuleMatch) -> RuleMatch {
        let is_about_same = |before: &&RuleMatch| {
            let values = before.recommended.zip(rule_match.recommended);
            values.is_some_and(|(before, now)| before.abs_diff(now) * 4 <= before)
        };
        match self.last_matches[index].as_ref().filter(is_about_same) {
            Some(before) => RuleMatch {
                remedy: before.remedy.clone(),
                recommended: before.recommended,
                ..rule_match
            },
            None => rule_match,
        }
    }

    /// The verdict of the rule with this index in [`RULES`]. `None`: no verdict holds.
    fn active_verdict(&mut self, index: usize, is_critical: bool, now: Instant) -> Option<Verdict> {
        let Some(since) = self.debounces[index].since() else {
            if !self.debounces[index].is_active_or_pending() {
                self.last_matches[index] = None;
            }
            return None;
        };
        let rule = &RULES[index];
        let rule_match = self.last_matches[index].as_ref()?;
        let remedy = match &rule_match.remedy {
            Some(specific) => format!("{specific} {}", rule.remedy),
            None => rule.remedy.to_owned(),
        };
        let severity = if is_critical && rule.is_about_requests() {
            VerdictSeverity::Critical
        } else {
            rule.severity
        };
        Some(Verdict {
            backend: self.id.to_string(),
            confidence: Confidence::from_signals(rule_match.signals),
            age_seconds: now.saturating_duration_since(since).as_secs_f64(),
            evidence: rule_match.evidence.clone(),
            remedy,
            ..rule.description().verdict(severity, rule_match.cause.map(str::to_owned))
        })
    }
}
