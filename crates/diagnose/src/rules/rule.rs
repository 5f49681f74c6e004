//! A rule: its texts, the signals that it needs, and the function that evaluates it.

use crate::evaluation::{Evaluation, RuleResult};
use crate::history::StepSignal;
use crate::verdict::VerdictSeverity;

/// A rule, which detects one condition.
pub struct DiagnosisRule {
    /// The name of the rule. It is also its label value in metrics, its name in JSON, and the anchor of its
    /// documentation.
    pub name: &'static str,
    /// The lowest severity that a verdict of the rule has.
    pub severity: VerdictSeverity,
    /// The meaning of the condition, in one sentence.
    pub meaning: &'static str,
    /// The values that show the condition, in words.
    pub evidence: &'static str,
    /// The conditions under which the rule does not apply, as clauses. Empty: the rule always applies.
    pub excluded: &'static str,
    /// What an operator can do against the condition.
    pub remedy: &'static str,
    /// An observation that would disprove the condition.
    pub disproof: &'static str,
    /// Whether an operator must act at once while the verdict is critical.
    pub pages: bool,
    /// The names of the rules that explain this rule. While the condition of one of them holds,
    /// this rule is suppressed.
    pub explained_by: &'static [&'static str],
    /// The signals without which the rule is undetermined.
    pub(super) needs: &'static [StepSignal],
    /// Evaluates the rule. All signals in `needs` are available.
    pub(super) judge: fn(&Evaluation<'_>) -> RuleResult,
}

impl DiagnosisRule {
    /// Evaluates the rule. If signals are missing, the error is the list of the sources of these signals.
    /// `has_expired`: the evidence no longer counts, so the condition does not hold.
    pub(crate) fn judge(&self, evaluation: &Evaluation<'_>, has_expired: bool) -> RuleResult {
        let window = evaluation.short_window();
        let is_missing = |signal: &&StepSignal| !window.has_signal(**signal);
        let mut missing: Vec<&'static str> = self
            .needs
            .iter()
            .filter(is_missing)
            .map(|signal| signal.source())
            .collect();
        missing.dedup();
        match missing.is_empty() {
            false => Err(missing),
            true if has_expired => Ok(None),
            true => (self.judge)(evaluation),
        }
    }
}
