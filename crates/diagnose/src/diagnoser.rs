//! The diagnoser: takes a sample of each backend at each evaluation, evaluates all rules, and
//! reports the verdicts after debouncing.

use super::alert_texts::AlertTexts;
use super::arbitration::arbitrate;
use super::changes::{ChangeTimes, anomalies, early_changes, has_unexplained_harm, slower_share};
use super::debounce::VerdictDebounce;
use super::evaluation::{Evaluation, RuleMatch, RuleResult};
use super::facts::FactHistory;
use super::fleet::{FleetDiagnoser, FleetObservation, RecentReload, name_differences, name_reload};
use super::harm::is_critical_harm;
use super::history::{BackendHistory, DiagnosisSample, FAST, Ratio, StepSignal};
use super::rule::{DiagnosisRule, LoadDependence};
use super::rules::{RULES, name_other_gateways};
use super::verdict::{
    Confidence, DiagnosedBackend, Diagnosis, Effect, HARMFUL_SLOWER_SHARE, UndeterminedRule,
    Verdict, VerdictSeverity,
};
use std::collections::HashSet;
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
    /// The time since which requests have taken longer than usual. `None`: they take their usual time.
    slower_since: Option<Instant>,
}

/// The history of one backend and the state of each rule.
#[derive(Debug)]
struct BackendDiagnosis {
    id: BackendId,
    history: BackendHistory,
    /// The debounce state and the last match of each rule, in the order of [`RULES`].
    rules: [RuleState; RULES.len()],
}

#[derive(Debug, Default)]
struct RuleState {
    debounce: VerdictDebounce,
    /// The last match of the rule. `None`: no verdict of the rule holds, and the rule has not matched recently.
    last_match: Option<RuleMatch>,
    /// Whether the evidence of the rule has expired, because the load has ended.
    has_expired: bool,
    /// The requests since the last match, if the rule depends on requests.
    since_match: RequestsSinceMatch,
}

/// The requests at a backend since a rule last matched there.
#[derive(Debug, Clone, Copy, Default)]
struct RequestsSinceMatch {
    /// The ratio that [`LoadDependence::Requests`] names for the rule, in the minute before the match. `None`:
    /// unknown.
    matched: Option<f64>,
    /// The sums of the two signals of this ratio since the match.
    part: f64,
    total: f64,
}

type RuleResults = [RuleResult; RULES.len()];

/// Minimum number of samples in the short window for an evaluation: 30 seconds of samples.
const MIN_EVALUATED_STEPS: usize = 6;
const MISSING_SAMPLES: &str = "30 seconds of samples";
const MISSING_ANSWER: &str = "a response: the backend is down";
/// A condition has ended if its ratio of requests since the last match is at most this share of the ratio at
/// the match, and enough requests have been counted.
const RECOVERED_PART: f64 = 0.5;
/// A condition that an evaluation does not find counts as ended if the total of its ratio of requests
/// since the last match is at least this many times the minimum, whatever the ratio is.
const ENOUGH_REQUESTS: f64 = 20.0;
/// Time after which a change of the traffic that a verdict reports becomes usual, minute by minute.
const USUAL_AFTER: Duration = Duration::from_mins(15);
/// Maximum number of changed facts in the list of changes. They come first, because they can be causes.
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
        diagnosis.sort();
        diagnosis
    }

    /// Adds a sample of each backend and diagnoses them and the fleet at `now`. Backends without a
    /// sample are forgotten.
    pub fn diagnose_gateway(
        &mut self,
        mut samples: Vec<(BackendId, DiagnosisSample)>,
        fleet: &FleetObservation,
        now: Instant,
    ) -> Diagnosis {
        let verdicts = self.fleet.diagnose(fleet, now);
        let is_disturbed = self.fleet.is_disturbed(now);
        for (_, sample) in &mut samples {
            if let Some(gateway) = &mut sample.gateway {
                gateway.is_disturbed = is_disturbed;
            }
        }
        let mut diagnosis = self.diagnose_backends(samples, fleet, now);
        diagnosis.verdicts.splice(0..0, verdicts);
        name_differences(&mut diagnosis.verdicts, &fleet.backends);
        if fleet.gateway.connected_gateways == 0 {
            let histories = self.backends.iter().map(|backend| &backend.history);
            name_other_gateways(&mut diagnosis.verdicts, histories.filter(|it| it.is_up()));
        }
        let client = fleet.main_client.as_deref();
        arbitrate(&mut diagnosis.verdicts, &fleet.backends, client);
        for verdict in diagnosis.verdicts.iter_mut().filter(|it| it.is_common) {
            name_reload(verdict, fleet);
        }
        // The sort is stable, so verdicts about the fleet come first at the same severity.
        diagnosis.sort();
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
        let evaluations = evaluations(&self.backends);
        let known = self.backends.iter().zip(&evaluations);
        let results = known.map(|(it, of)| it.evaluate_rules(of, fleet));
        let results: Vec<RuleResults> = results.collect();
        let mut diagnosis = self.find_changes(now);
        let totals: [u64; RULES.len()] = std::array::from_fn(|rule| {
            let total = RULES[rule].harm.total;
            self.backends.iter().map(|backend| backend.sum(total)).sum()
        });
        for (backend, results) in self.backends.iter_mut().zip(results) {
            let is_excluded = fleet.exclusion(&backend.id).is_some();
            backend.update(results, is_excluded, &totals, now, &mut diagnosis);
        }
        diagnosis
    }

    /// Finds anomalies, the share of requests that are slower than usual, and the strongest changes.
    fn find_changes(&mut self, now: Instant) -> Diagnosis {
        let evaluations = evaluations(&self.backends);
        let known = self.backends.iter().zip(&evaluations);
        let up = known.filter(|(backend, _)| backend.history.is_up());
        let up: Vec<(&str, &Evaluation<'_>)> = up.map(|(it, of)| (it.id.as_str(), of)).collect();
        let mut diagnosis = Diagnosis::default();
        let with_evidence = up.iter().filter(|(_, it)| {
            it.minute.len() >= MIN_EVALUATED_STEPS && !it.history.has_no_load_for(LOAD_EXPIRY)
        });
        diagnosis.anomalies = with_evidence
            .flat_map(|(id, it)| anomalies(id, it))
            .collect();
        diagnosis.slower_share = slower_share(up.iter().map(|(_, it)| *it));
        if diagnosis.slower_share < HARMFUL_SLOWER_SHARE {
            self.slower_since = None;
        } else {
            self.slower_since.get_or_insert(now);
        }
        let mut changed = diagnosis.anomalies.clone();
        // The histories of new backends are too short for anomalies.
        changed.extend(up.iter().flat_map(|(id, it)| early_changes(id, it)));
        // The clocks of gateway and engine differ, so a mean can be negative. Such a mean shows nothing.
        changed.retain(|change| change.value >= 0.0);
        diagnosis.changes = self.changes.strongest(&changed, up.len(), now);
        diagnosis
    }

    /// Ends the verdicts about load at the backends that had no load for [`LOAD_EXPIRY`]. The earlier steps
    /// with load do not show a condition that holds now. A verdict about requests does not end while peers
    /// get requests for a model of the backend: then routing avoids the backend, so the lack of requests does
    /// not show that the condition has ended.
    fn expire_evidence(&mut self, fleet: &FleetObservation) {
        let has_load = |it: &&BackendDiagnosis| !it.history.has_no_load_for(LOAD_EXPIRY);
        let busy: HashSet<&BackendId> = self
            .backends
            .iter()
            .filter(has_load)
            .map(|it| &it.id)
            .collect();
        let is_fleet_idle = busy.is_empty();
        let with_load = fleet.backends.iter().filter(|it| busy.contains(&it.id));
        let requested: HashSet<&Arc<str>> = with_load.flat_map(|it| &it.models).collect();
        for backend in &mut self.backends {
            let is_expired = backend.history.has_no_load_for(LOAD_EXPIRY);
            let models = fleet.backend(backend.id.as_str()).map(|it| &it.models);
            let is_unasked = models.is_some_and(|models| {
                !models.is_empty() && models.iter().all(|model| !requested.contains(model))
            });
            // A failed canary request shows this condition even without requests of clients.
            let has_silent_canary = backend.history.has_silent_canary();
            for (rule, state) in RULES.iter().zip(&mut backend.rules) {
                state.has_expired = match rule.load {
                    LoadDependence::None => false,
                    LoadDependence::Requests(_) if has_silent_canary && rule.name == "stalls" => {
                        false
                    }
                    LoadDependence::Backend => is_expired,
                    LoadDependence::Requests(_) => is_fleet_idle || is_unasked,
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
}

/// The input of the rules for each of these backends.
fn evaluations(backends: &[BackendDiagnosis]) -> Vec<Evaluation<'_>> {
    let mut evaluations = Vec::new();
    for backend in backends {
        let others = backends.iter().filter(|other| other.id != backend.id);
        let others = others.map(|other| &other.history);
        let others = others.filter(|other| other.is_up());
        evaluations.push(Evaluation::new(&backend.history, others.collect()));
    }
    evaluations
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

    /// Evaluates all rules for the backend, if it is up and has enough samples.
    fn evaluate_rules(&self, evaluation: &Evaluation<'_>, fleet: &FleetObservation) -> RuleResults {
        let mut missing = None;
        if !self.history.is_up() {
            missing = Some(fleet.exclusion(&self.id).unwrap_or(MISSING_ANSWER));
        } else if evaluation.minute.len() < MIN_EVALUATED_STEPS {
            missing = Some(MISSING_SAMPLES);
        }
        std::array::from_fn(|rule| match missing {
            Some(missing) => Err(vec![missing]),
            None => RULES[rule].judge(evaluation, self.rules[rule].has_expired),
        })
    }

    /// The sum of a signal in the last minute.
    fn sum(&self, signal: StepSignal) -> u64 {
        self.history.window(FAST).total(signal) as u64
    }

    /// Whether no verdict holds at the backend. A verdict that has lasted very long does not count, because its
    /// values have become usual.
    fn is_healthy(&self, now: Instant) -> bool {
        self.rules.iter().zip(&RULES).all(|(state, rule)| {
            let since = state.debounce.since();
            let age = since.map(|since| now.saturating_duration_since(since));
            age.is_none_or(|age| rule.becomes_usual && age >= USUAL_AFTER)
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
            let is_explained = self.is_explained(index);
            let state = &mut self.rules[index];
            // The rule about unreadable metrics does not count, because it does not need data from the engine.
            is_determined |= result.is_ok() && !rule.needs.is_empty();
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
            let is_critical = is_critical_harm(self.sum(rule.harm.part), totals[index]);
            let verdict = self.rules[index].active_verdict(rule, is_critical, now);
            if let Some(mut verdict) = verdict {
                verdict.backend = self.id.to_string();
                if is_held {
                    verdict.is_held = true;
                    verdict.add_to_cause(
                        "routing avoids it, so too few requests show whether this has ended",
                    );
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

    /// Whether an earlier rule whose condition can cause that of the rule `index` holds or has matched
    /// recently. The debounces of earlier rules are already up to date.
    fn is_explained(&self, index: usize) -> bool {
        let effect = Effect::of(RULES[index].name);
        let mut earlier = RULES.iter().zip(&self.rules).take(index);
        earlier.any(|(cause, state)| {
            state.debounce.is_active_or_pending() && Effect::caused_by(cause.name).contains(&effect)
        })
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
        let LoadDependence::Requests(Ratio {
            part,
            total,
            min_total,
        }) = rule.load
        else {
            return false;
        };
        let window = history.window(FAST);
        let requests = &mut self.since_match;
        if is_found {
            *requests = RequestsSinceMatch {
                matched: window.ratio(part, total, 1.0),
                ..RequestsSinceMatch::default()
            };
            return false;
        }
        requests.part += window.latest(part).unwrap_or(0.0);
        requests.total += window.latest(total).unwrap_or(0.0);
        let has_recovered = requests
            .matched
            .is_none_or(|matched| requests.part <= RECOVERED_PART * matched * requests.total);
        let is_enough = requests.total >= min_total && has_recovered
            || requests.total >= ENOUGH_REQUESTS * min_total;
        !is_enough
    }

    /// Keeps the remedy of the previous match if both matches recommend about the same value, so that the
    /// number in the remedy does not change at each evaluation.
    fn hold_remedy(&self, mut rule_match: RuleMatch) -> RuleMatch {
        if let Some(before) = &self.last_match
            && let Some(held) = before.recommended
            && let Some(now) = rule_match.recommended
            && held.abs_diff(now) * 4 <= held
        {
            rule_match.remedy.clone_from(&before.remedy);
            rule_match.recommended = before.recommended;
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
        let is_about_requests = !matches!(rule.load, LoadDependence::None);
        let severity = if is_critical && is_about_requests {
            VerdictSeverity::Critical
        } else {
            rule_match.severity.unwrap_or(rule.lowest)
        };
        let verdict = rule.verdict(severity);
        Some(Verdict {
            cause: rule_match.cause.clone(),
            confidence: Confidence::from_signals(rule_match.signals),
            origin: rule_match.origin.unwrap_or(verdict.origin),
            age_seconds: now.saturating_duration_since(since).as_secs_f64(),
            evidence: rule_match.evidence.clone(),
            remedy,
            ..verdict
        })
    }
}
