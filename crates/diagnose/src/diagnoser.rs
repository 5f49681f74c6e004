//! The diagnoser: takes a sample of each backend at each evaluation, evaluates all rules, and
//! reports the verdicts after debouncing.

use super::alert_texts::AlertTexts;
use super::anomaly;
use super::arbitration::arbitrate;
use super::changes::{ChangeTimes, early_changes, has_unexplained_harm, slower_share};
use super::debounce::VerdictDebounce;
use super::evaluation::{Evaluation, RuleMatch, RuleResult};
use super::facts::FactHistory;
use super::fleet::{FleetDiagnoser, FleetObservation, RecentReload, name_differences};
use super::harm::is_critical_harm;
use super::history::{BackendHistory, DiagnosisSample, FAST, StepSignal};
use super::rules::{DiagnosisRule, LoadDependence, RULES, RequestEvidence, name_other_gateways};
use super::verdict::{
    Anomaly, Confidence, DiagnosedBackend, Diagnosis, HARMFUL_SLOWER_SHARE, UndeterminedRule,
    Verdict, VerdictSeverity,
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
    changes: ChangeTimes,
    alert_texts: AlertTexts,
    facts: FactHistory,
    /// Since when requests have taken longer than usual. `None`: they do not.
    slower_since: Option<Instant>,
}

/// The history of one backend and the state of each rule.
#[derive(Debug)]
struct BackendDiagnosis {
    id: BackendId,
    history: BackendHistory,
    /// The state of each rule, in the order of [`RULES`].
    rules: [RuleState; RULES.len()],
}

/// The state of a rule at one backend.
#[derive(Debug, Default)]
struct RuleState {
    debounce: VerdictDebounce,
    /// `None`: no verdict of the rule holds, and the rule has not matched recently.
    last_match: Option<RuleMatch>,
    /// Whether the evidence of the rule has expired, because the load has ended.
    has_expired: bool,
    /// The requests since the last match, if the rule depends on requests.
    since_match: RequestsSinceMatch,
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
/// Maximum number of changed facts among the changes. They come first, because they can be causes.
const MAX_CHANGED_FACTS: usize = 2;
/// Time without any load after which the evidence of a verdict about load no longer counts.
const LOAD_EXPIRY: Duration = Duration::from_secs(30);

impl Diagnoser {
    /// Adds a sample of each backend and diagnoses them at `now`, without a gateway. Backends
    /// without a sample are forgotten.
    pub fn diagnose(
        &mut self,
        samples: Vec<(BackendId, DiagnosisSample)>,
        now: Instant,
    ) -> Diagnosis {
        let mut diagnosis = self.diagnose_backends(samples, &FleetObservation::default(), now);
        diagnosis
            .verdicts
            .sort_by_key(|verdict| std::cmp::Reverse(verdict.severity));
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
        let mut samples = samples;
        let gateways = samples
            .iter_mut()
            .filter_map(|(_, sample)| sample.gateway.as_mut());
        let is_disturbed = self.fleet.is_disturbed(now);
        gateways.for_each(|gateway| gateway.is_disturbed = is_disturbed);
        let mut diagnosis = self.diagnose_backends(samples, fleet, now);
        diagnosis.verdicts.splice(0..0, verdicts);
        name_differences(&mut diagnosis.verdicts, &fleet.backends);
        if fleet.gateway.connected_gateways == 0 {
            let all = (0..self.backends.len()).map(|index| self.evaluation(index));
            let up: Vec<Evaluation<'_>> = all.filter(|it| it.history.is_up()).collect();
            name_other_gateways(&mut diagnosis.verdicts, &up);
        }
        let client = fleet.main_client.as_deref();
        arbitrate(&mut diagnosis.verdicts, &fleet.backends, client);
        // The sort is stable, so verdicts about the fleet come first at the same severity.
        diagnosis
            .verdicts
            .sort_by_key(|verdict| std::cmp::Reverse(verdict.severity));
        let facts = self.facts.observe(&fleet.backends, now);
        let facts = facts.into_iter().take(MAX_CHANGED_FACTS);
        diagnosis.changes.splice(0..0, facts);
        diagnosis.has_unexplained_harm = has_unexplained_harm(&diagnosis.verdicts, fleet);
        if diagnosis.has_unexplained_harm {
            let reload = fleet.reload.as_ref().and_then(RecentReload::change);
            diagnosis.changes.splice(0..0, reload);
        }
        diagnosis.alert_texts = self.alert_texts.of(&diagnosis.verdicts);
        diagnosis
    }

    fn diagnose_backends(
        &mut self,
        samples: Vec<(BackendId, DiagnosisSample)>,
        fleet: &FleetObservation,
        now: Instant,
    ) -> Diagnosis {
        self.backends
            .retain(|known| samples.iter().any(|(id, _)| *id == known.id));
        let is_slower = self
            .slower_since
            .is_some_and(|since| now.saturating_duration_since(since) < USUAL_AFTER);
        for (id, sample) in samples {
            let backend = self.backend_or_insert(id);
            let is_healthy = backend.is_healthy(now) && !is_slower;
            backend.history.push(sample, is_healthy);
        }
        self.expire_evidence(fleet);
        let results: Vec<RuleResults> = (0..self.backends.len())
            .map(|index| self.evaluate_rules(index, fleet))
            .collect();
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
        self.add_changes(&mut diagnosis, now);
        diagnosis
    }

    /// Adds the share of backends that are slower than usual, and the strongest changes.
    fn add_changes(&mut self, diagnosis: &mut Diagnosis, now: Instant) {
        let mut up: Vec<usize> = (0..self.backends.len()).collect();
        up.retain(|index| self.evaluation(*index).history.is_up());
        let evaluations: Vec<Evaluation<'_>> =
            up.iter().map(|index| self.evaluation(*index)).collect();
        diagnosis.slower_share = slower_share(&evaluations);
        let early = self.early_changes();
        let mut changed = [diagnosis.anomalies.clone(), early].concat();
        let is_up = |name: &str| {
            let mut ids = up.iter().map(|index| self.backends[*index].id.as_str());
            ids.any(|id| id == name)
        };
        // A mean of clocks that differ can be below zero, which is no time.
        changed.retain(|change| is_up(&change.backend) && change.value >= 0.0);
        let is_harmful = diagnosis.slower_share >= HARMFUL_SLOWER_SHARE;
        self.slower_since = if is_harmful {
            self.slower_since.or(Some(now))
        } else {
            None
        };
        diagnosis.changes = self.changes.strongest(&changed, up.len(), now);
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
        let models: HashMap<&BackendId, &[Arc<str>]> = fleet
            .backends
            .iter()
            .map(|backend| (&backend.id, &*backend.models))
            .collect();
        let with_load = self
            .backends
            .iter()
            .zip(&is_expired)
            .filter(|(_, is_expired)| !**is_expired);
        let requested: HashSet<&Arc<str>> = with_load
            .filter_map(|(backend, _)| models.get(&backend.id))
            .flat_map(|models| models.iter())
            .collect();
        for (backend, is_expired) in self.backends.iter_mut().zip(is_expired) {
            let models = models.get(&backend.id).copied().unwrap_or_default();
            let is_unasked =
                !models.is_empty() && models.iter().all(|model| !requested.contains(model));
            // A canary request shows this condition without requests of clients.
            let has_silent_canary = backend.history.has_silent_canary();
            for (rule, state) in RULES.iter().zip(&mut backend.rules) {
                state.has_expired = match rule.load_dependence() {
                    LoadDependence::None => false,
                    LoadDependence::Requests if has_silent_canary && rule.name == "stalls" => false,
                    LoadDependence::Backend => is_expired,
                    LoadDependence::Requests => is_fleet_idle || is_unasked,
                };
                if state.has_expired {
                    state.debounce = VerdictDebounce::default();
                    state.last_match = None;
                }
            }
        }
    }

    fn backend_or_insert(&mut self, id: BackendId) -> &mut BackendDiagnosis {
        let index = self
            .backends
            .iter()
            .position(|known| known.id == id)
            .unwrap_or_else(|| {
                self.backends.push(BackendDiagnosis::new(id));
                self.backends.len() - 1
            });
        &mut self.backends[index]
    }

    fn evaluation(&self, index: usize) -> Evaluation<'_> {
        let others = self
            .backends
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index);
        let others = others
            .map(|(_, other)| &other.history)
            .filter(|other| other.is_up());
        Evaluation {
            history: &self.backends[index].history,
            others: others.collect(),
        }
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
        std::array::from_fn(|rule| RULES[rule].judge(&evaluation, backend.rules[rule].has_expired))
    }

    /// The changes of the backends whose histories are too short for anomalies.
    fn early_changes(&self) -> Vec<Anomaly> {
        let backends = 0..self.backends.len();
        backends
            .flat_map(|index| {
                early_changes(self.backends[index].id.as_str(), &self.evaluation(index))
            })
            .collect()
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
        diagnosis
            .anomalies
            .extend(anomaly::anomalies(id, &evaluation));
    }
}

impl BackendDiagnosis {
    fn new(id: BackendId) -> Self {
        let rules = std::array::from_fn(|_| RuleState::default());
        Self {
            id,
            history: BackendHistory::default(),
            rules,
        }
    }

    /// The sum of a signal in the last minute.
    fn sum(&self, signal: StepSignal) -> u64 {
        self.history.window(FAST).sum(signal).unwrap_or(0.0) as u64
    }

    /// Whether no verdict holds, except for one that lasts for so long that it shows what is usual now.
    fn is_healthy(&self, now: Instant) -> bool {
        self.rules
            .iter()
            .zip(&RULES)
            .all(|(state, rule)| match state.debounce.since() {
                Some(since) => {
                    rule.becomes_usual() && now.saturating_duration_since(since) >= USUAL_AFTER
                }
                None => true,
            })
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
            let is_explained = self.is_explained(rule);
            let state = &mut self.rules[index];
            // The rule for unreadable metrics does not count, because it does not diagnose the
            // engine.
            is_determined |= result.is_ok() && !rule.is_metrics_unreadable();
            let mut is_held = false;
            let mut missing = None;
            match result {
                Ok(found) => {
                    let found = if is_explained { None } else { found };
                    is_held = state.lacks_requests(rule, &self.history, found.is_some());
                    if is_held && !is_explained {
                        state.debounce.hold(now);
                    }
                    state.debounce.update(found.is_some(), now);
                    if let Some(found) = found {
                        state.last_match = Some(state.hold_remedy(found));
                    }
                }
                Err(reasons) => {
                    state.debounce.update(false, now);
                    missing = Some(reasons);
                }
            }
            let harmed = self.sum(rule.harm().harmed);
            let is_critical = is_critical_harm(harmed, totals[index]);
            let verdict = self.rules[index].active_verdict(rule, is_critical, now);
            if let Some(mut verdict) = verdict {
                verdict.backend = self.id.to_string();
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
        diagnosis.backends.push(DiagnosedBackend {
            backend: self.id.to_string(),
            is_determined,
        });
    }

    /// Whether the condition of a rule that explains `rule` holds or was found recently. The
    /// explaining rules come earlier in the table, so their debounces are already up to date.
    fn is_explained(&self, rule: &DiagnosisRule) -> bool {
        let explains = |(other, state): (&DiagnosisRule, &RuleState)| {
            rule.explained_by.contains(&other.name) && state.debounce.is_active_or_pending()
        };
        RULES.iter().zip(&self.rules).any(explains)
    }
}

impl RuleState {
    /// Whether the backend got too few requests since the last match to show that the condition of the rule
    /// has ended. `is_found`: whether the current evaluation found the condition.
    fn lacks_requests(
        &mut self,
        rule: &DiagnosisRule,
        history: &BackendHistory,
        is_found: bool,
    ) -> bool {
        let Some(evidence) = rule.request_evidence() else {
            return false;
        };
        let RequestEvidence {
            sum,
            count,
            min_count,
        } = evidence;
        let window = history.window(FAST);
        let requests = &mut self.since_match;
        if is_found {
            let matched = window.ratio(sum, count, 1.0);
            *requests = RequestsSinceMatch {
                matched,
                ..RequestsSinceMatch::default()
            };
            return false;
        }
        requests.sum += window.latest(sum).unwrap_or(0.0);
        requests.count += window.latest(count).unwrap_or(0.0);
        let has_recovered = requests
            .matched
            .is_none_or(|matched| requests.sum <= RECOVERED_PART * matched * requests.count);
        let is_enough = requests.count >= min_count && has_recovered
            || requests.count >= ENOUGH_REQUESTS * min_count;
        !is_enough
    }

    /// Returns the match. If it and the previous match recommend about the same value, it gets the remedy of
    /// the previous match, so that the number in the remedy does not change at each evaluation.
    fn hold_remedy(&self, rule_match: RuleMatch) -> RuleMatch {
        if let Some(before) = &self.last_match
            && let Some(held) = before.recommended
            && let Some(now) = rule_match.recommended
            && held.abs_diff(now) * 4 <= held
        {
            let remedy = before.remedy.clone();
            return RuleMatch {
                remedy,
                recommended: before.recommended,
                ..rule_match
            };
        }
        rule_match
    }

    /// The verdict of the rule, without its backend. `None`: no verdict holds.
    fn active_verdict(
        &mut self,
        rule: &DiagnosisRule,
        is_critical: bool,
        now: Instant,
    ) -> Option<Verdict> {
        let Some(since) = self.debounce.since() else {
            if !self.debounce.is_active_or_pending() {
                self.last_match = None;
            }
            return None;
        };
        let rule_match = self.last_match.as_ref()?;
        let remedy = match &rule_match.remedy {
            Some(specific) => format!("{specific} {}", rule.remedy),
            None => rule.remedy.to_owned(),
        };
        let is_critical = is_critical && rule.is_about_requests();
        let severity = if is_critical {
            VerdictSeverity::Critical
        } else {
            rule_match.severity.unwrap_or(rule.severity)
        };
        let description = rule.description();
        let cause = rule_match.cause.as_deref().map(str::to_owned);
        let verdict = description.verdict(severity, cause);
        Some(Verdict {
            confidence: Confidence::from_signals(rule_match.signals),
            origin: rule_match.origin.unwrap_or(verdict.origin),
            age_seconds: now.saturating_duration_since(since).as_secs_f64(),
            evidence: rule_match.evidence.clone(),
            remedy,
            ..verdict
        })
    }
}
