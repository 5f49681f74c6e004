//! The conditions, as a table. A row says what is wrong, what it takes to say so, what explains it
//! away, what to do and what would prove it wrong; a function beside it judges the numbers.
//!
//! Each fires on harm and not on heat: a full cache alone is a cache well used.

mod cache;
mod fleet;
mod flow;
mod leak;
mod prefill;

use super::case::{Case, Judgement};
use super::step::Signal;
use super::verdict::Severity;
pub use cache::safe_max_num_seqs;

/// One condition.
pub struct Rule {
    /// Its name: the label value, the key in JSON and the anchor of its runbook.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it is, in one sentence.
    pub meaning: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// What would prove it wrong.
    pub disproof: &'static str,
    /// Conditions that explain it: while one of them is there, this one says nothing new.
    pub explained_by: &'static [&'static str],
    /// What has to be told.
    needs: &'static [Signal],
    judge: fn(&Case<'_>) -> Judgement,
}

/// All of them: those that explain others come first.
pub const RULES: [Rule; 12] = [
    flow::BLIND,
    cache::THRASHING,
    cache::BACKLOG,
    prefill::DECODE_STARVATION,
    prefill::PREFILL_STARVATION,
    flow::STALLS,
    flow::ABORT_SPIKE,
    flow::FRONT_END_GAP,
    leak::MEMORY_LEAK,
    fleet::GPU_UNDERUSED,
    fleet::IMBALANCE,
    cache::PREFIX_MISSES,
];

impl Rule {
    /// What it says of a case, and what is missing if it cannot tell.
    pub(super) fn judge(&self, case: &Case<'_>) -> Result<Judgement, Vec<&'static str>> {
        let window = case.fast();
        let is_missing = |signal: &&Signal| !window.tells(**signal);
        let mut missing: Vec<&'static str> =
            self.needs.iter().filter(is_missing).map(|signal| signal.source()).collect();
        missing.dedup();
        if missing.is_empty() { Ok((self.judge)(case)) } else { Err(missing) }
    }

    /// Whether it says that a replica tells nothing.
    pub(super) fn is_about_silence(&self) -> bool {
        self.name == flow::BLIND.name
    }

    /// Where more is said of it.
    pub fn runbook(&self) -> String {
        format!("docs/diagnose.md#{}", self.name)
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
            assert!(names.insert(rule.name), "{} stands twice", rule.name);
            for text in [rule.meaning, rule.remedy, rule.disproof] {
                assert!(text.ends_with('.') && text.len() > 20, "{}: {text}", rule.name);
            }
        }
    }

    #[test]
    fn each_rule_has_its_section_in_the_document() {
        let document = include_str!("../../../../docs/diagnose.md");
        for rule in &RULES {
            assert!(document.contains(&format!("\n### {}\n", rule.name)), "{}", rule.name);
            assert!(document.contains(rule.remedy), "{}: {}", rule.name, rule.remedy);
            assert!(document.contains(rule.disproof), "{}: {}", rule.name, rule.disproof);
        }
    }
}
