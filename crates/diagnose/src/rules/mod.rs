//! The rules, one row each: the meaning of the condition, the required signals, the rules that
//! explain it, the remedy and the disproof. A function beside each row evaluates it.
//!
//! A rule requires harm to clients: a full cache alone is a cache that is well used.

mod cache;
mod fleet;
mod leak;
mod prefill;
mod request_flow;

use super::evaluation::{Evaluation, RuleOutcome};
use super::step::StepSignal;
use super::verdict::VerdictSeverity;
pub use cache::safe_max_num_seqs;

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
    needs: &'static [StepSignal],
    judge: fn(&Evaluation<'_>) -> RuleOutcome,
}

/// All rules. A rule comes after the rules that explain it.
pub const RULES: [DiagnosisRule; 12] = [
    request_flow::BLIND,
    cache::THRASHING,
    cache::BACKLOG,
    prefill::DECODE_STARVATION,
    prefill::PREFILL_STARVATION,
    request_flow::STALLS,
    request_flow::ABORT_SPIKE,
    request_flow::FRONT_END_GAP,
    leak::MEMORY_LEAK,
    fleet::GPU_UNDERUSED,
    fleet::IMBALANCE,
    cache::PREFIX_MISSES,
];

impl DiagnosisRule {
    /// Evaluates the rule. The error is the list of missing data.
    pub(super) fn judge(&self, case: &Evaluation<'_>) -> Result<RuleOutcome, Vec<&'static str>> {
        let window = case.fast();
        let is_missing = |signal: &&StepSignal| !window.has_signal(**signal);
        let mut missing: Vec<&'static str> =
            self.needs.iter().filter(is_missing).map(|signal| signal.source()).collect();
        missing.dedup();
        if missing.is_empty() { Ok((self.judge)(case)) } else { Err(missing) }
    }

    /// Whether the rule reports that the metrics of a backend cannot be read.
    pub(super) fn is_metrics_unreadable(&self) -> bool {
        self.name == request_flow::BLIND.name
    }

    /// Link to the documentation of the rule.
    pub fn runbook(&self) -> String {
        format!("docs/operate/diagnose.md#{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_rule_has_its_name_and_comes_after_what_explains_it() {
        let mut names = BTreeSet::new();
        for rule in &RULES {
            for other in rule.explained_by {
                assert!(names.contains(other), "{} is explained by {other}", rule.name);
            }
            assert!(names.insert(rule.name), "{} is listed twice", rule.name);
            for text in [rule.meaning, rule.remedy, rule.disproof] {
                assert!(text.ends_with('.') && text.len() > 20, "{}: {text}", rule.name);
            }
        }
    }

    #[test]
    fn each_rule_has_its_section_in_the_document() {
        let document = include_str!("../../../../docs/operate/diagnose.md");
        for rule in &RULES {
            assert!(document.contains(&format!("\n### {}\n", rule.name)), "{}", rule.name);
            assert!(document.contains(rule.remedy), "{}: {}", rule.name, rule.remedy);
            assert!(document.contains(rule.disproof), "{}: {}", rule.name, rule.disproof);
        }
    }
}
