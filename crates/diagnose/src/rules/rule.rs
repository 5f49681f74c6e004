//! A rule: its texts, the signals that it needs, and the function that evaluates it.

use crate::evaluation::{Evaluation, RuleOutcome};
use crate::history::StepSignal;
use crate::verdict::VerdictSeverity;

/// A rule: one condition.
pub struct DiagnosisRule {
    /// The name: the label value, the name in JSON and the anchor of its documentation.
    pub name: &'static str,
    /// The severity.
    pub severity: VerdictSeverity,
    /// The meaning, in one sentence.
    pub meaning: &'static str,
    /// The remedy.
    pub remedy: &'static str,
    /// An observation that would disprove the condition.
    pub disproof: &'static str,
    /// Rules that explain this one: while one of them holds, this one is suppressed.
    pub explained_by: &'static [&'static str],
    /// The signals that the rule needs.
    pub(super) needs: &'static [StepSignal],
    pub(super) judge: fn(&Evaluation<'_>) -> RuleOutcome,
}

impl DiagnosisRule {
    /// Evaluates the rule. The error is the list of missing data.
    pub(crate) fn judge(&self, case: &Evaluation<'_>) -> Result<RuleOutcome, Vec<&'static str>> {
        let window = case.fast();
        let is_missing = |signal: &&StepSignal| !window.has_signal(**signal);
        let mut missing: Vec<&'static str> =
            self.needs.iter().filter(is_missing).map(|signal| signal.source()).collect();
        missing.dedup();
        if missing.is_empty() { Ok((self.judge)(case)) } else { Err(missing) }
    }

    /// Link to the documentation of the rule.
    pub fn runbook(&self) -> String {
        format!("docs/operate/diagnose.md#{}", self.name)
    }
}
