//! The diagnoser: takes a sample of each backend at each evaluation, evaluates all rules, and
//! reports the verdicts after debouncing.

use super::anomaly;
use super::debounce::VerdictDebounce;
use super::evaluation::{Evaluation, RuleMatch, RuleOutcome};
use super::history::{BackendHistory, DiagnosisSample, LONG_WINDOW};
use super::rules::{DiagnosisRule, RULES};
use super::verdict::{Confidence, DiagnosedBackend, Diagnosis, UndeterminedRule, Verdict};
use std::time::Instant;
use tokenweir_core::record::BackendId;

/// Diagnoses a set of backends.
#[derive(Debug, Default)]
pub struct Diagnoser {
    backends: Vec<BackendDiagnosis>,
}

/// The history of one backend and the state of each rule.
#[derive(Debug)]
struct BackendDiagnosis {
    id: BackendId,
    history: BackendHistory,
    debounces: [VerdictDebounce; RULES.len()],
    /// The last match of each rule. `None`: the rule has no verdict and no recent match.
    last_matches: [Option<RuleMatch>; RULES.len()],
}

/// The results of all rules at one backend. An error is the list of the data that a rule lacks.
type RuleResults = [Result<RuleOutcome, Vec<&'static str>>; RULES.len()];

/// Minimum number of samples in the short window for an evaluation: 45 seconds of samples.
const MIN_EVALUATED_STEPS: usize = 9;
const MISSING_SAMPLES: &str = "45 seconds of samples";
const MISSING_ANSWER: &str = "a response: the backend is down";

// === impl Diagnoser ===

impl Diagnoser {
    /// Adds a sample of each backend and diagnoses them at `now`. Backends without a sample are
    /// forgotten.
    pub fn diagnose(
        &mut self,
        samples: Vec<(BackendId, DiagnosisSample)>,
        now: Instant,
    ) -> Diagnosis {
        self.backends.retain(|known| samples.iter().any(|(id, _)| *id == known.id));
        for (id, sample) in samples {
            let backend = self.backend_or_insert(id);
            let is_healthy = backend.debounces.iter().all(|debounce| debounce.since().is_none());
            backend.history.push(sample, is_healthy);
        }
        let results: Vec<RuleResults> =
            (0..self.backends.len()).map(|index| self.evaluate_rules(index)).collect();
        let mut diagnosis = Diagnosis::default();
        for (backend, results) in self.backends.iter_mut().zip(results) {
            backend.update(results, now, &mut diagnosis);
        }
        for index in 0..self.backends.len() {
            self.add_anomalies(index, &mut diagnosis);
        }
        diagnosis.verdicts.sort_by_key(|verdict| std::cmp::Reverse(verdict.severity));
        diagnosis
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
    fn evaluate_rules(&self, index: usize) -> RuleResults {
        let evaluation = self.evaluation(index);
        if !evaluation.history.is_up() {
            return std::array::from_fn(|_| Err(vec![MISSING_ANSWER]));
        }
        if evaluation.short_window().len() < MIN_EVALUATED_STEPS {
            return std::array::from_fn(|_| Err(vec![MISSING_SAMPLES]));
        }
        std::array::from_fn(|rule| RULES[rule].judge(&evaluation))
    }

    /// Adds the anomalies and correlated pairs of a backend.
    fn add_anomalies(&self, index: usize, diagnosis: &mut Diagnosis) {
        let (id, evaluation) = (self.backends[index].id.as_str(), self.evaluation(index));
        diagnosis.anomalies.extend(anomaly::anomalies(id, &evaluation));
        diagnosis.pairs.extend(anomaly::pairs(id, evaluation.history.window(LONG_WINDOW)));
    }
}

// === impl BackendDiagnosis ===

impl BackendDiagnosis {
    fn new(id: BackendId) -> Self {
        Self {
            id,
            history: BackendHistory::new(),
            debounces: [VerdictDebounce::default(); RULES.len()],
            last_matches: [const { None }; RULES.len()],
        }
    }

    /// Updates the verdicts of the backend with the results of an evaluation. Adds the verdicts,
    /// the undetermined rules and the backend to the diagnosis.
    fn update(&mut self, results: RuleResults, now: Instant, diagnosis: &mut Diagnosis) {
        let mut is_determined = false;
        for (index, result) in results.into_iter().enumerate() {
            let rule = &RULES[index];
            let (rule_match, missing) = match result {
                Ok(RuleOutcome::Present(rule_match)) if !self.is_explained(rule) => {
                    (Some(rule_match), None)
                }
                Ok(RuleOutcome::Present(_) | RuleOutcome::Absent) => (None, None),
                Ok(RuleOutcome::Unknown(reason)) => (None, Some(vec![reason])),
                Err(missing) => (None, Some(missing)),
            };
            // The rule for unreadable metrics does not count, because it does not diagnose the
            // engine.
            is_determined |= missing.is_none() && !rule.is_metrics_unreadable();
            self.debounces[index].update(rule_match.is_some(), now);
            if rule_match.is_some() {
                self.last_matches[index] = rule_match;
            }
            if let Some(verdict) = self.active_verdict(index, now) {
                diagnosis.verdicts.push(verdict);
            } else if let Some(missing) = missing {
                let (verdict, backend) = (rule.name.into(), self.id.to_string());
                let missing = missing.into_iter().map(Into::into).collect();
                diagnosis.undetermined.push(UndeterminedRule { verdict, backend, missing });
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

    /// The verdict of a rule. `None`: no verdict holds.
    fn active_verdict(&mut self, index: usize, now: Instant) -> Option<Verdict> {
        let Some(since) = self.debounces[index].since() else {
            if !self.debounces[index].is_active_or_pending() {
                self.last_matches[index] = None;
            }
            return None;
        };
        let (rule, rule_match) = (&RULES[index], self.last_matches[index].as_ref()?);
        let remedy = match &rule_match.remedy {
            Some(specific) => format!("{specific} {}", rule.remedy),
            None => rule.remedy.to_owned(),
        };
        Some(Verdict {
            verdict: rule.name.into(),
            backend: self.id.to_string(),
            severity: rule.severity,
            confidence: Confidence::from_signals(rule_match.signals),
            meaning: rule.meaning.into(),
            cause: rule_match.cause.map(Into::into),
            age_seconds: now.saturating_duration_since(since).as_secs_f64(),
            evidence: rule_match.evidence.clone(),
            remedy,
            disproof: rule.disproof.into(),
            runbook: rule.runbook(),
        })
    }
}
