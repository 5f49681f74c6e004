//! The texts of all rules, of engines and of the fleet, in one form for documents and alerts.

use super::fleet::FLEET_RULES;
use super::rules::RULES;

/// The texts of one rule, for readers that need no access to the rule itself.
#[derive(Debug, Clone, Copy)]
pub struct VerdictDescription {
    /// Name of the rule and of its verdict, such as `kv_backlog`.
    pub name: &'static str,
    /// The severities that the verdict can have, and when it has each of them, in words.
    pub severity: &'static str,
    /// The meaning of the condition.
    pub meaning: &'static str,
    /// The values that show the condition.
    pub evidence: &'static str,
    /// The conditions under which the rule does not apply, as clauses. Empty: the rule always applies.
    pub excluded: &'static str,
    /// What an operator can do against the condition.
    pub remedy: &'static str,
    /// An observation that would disprove the condition.
    pub disproof: &'static str,
    /// Whether an operator must act at once while the verdict is critical.
    pub pages: bool,
}

/// The texts of all rules: those about the fleet and the gateway, and then those about engines.
pub fn verdict_descriptions() -> impl Iterator<Item = VerdictDescription> {
    let fleet = FLEET_RULES.iter().map(|rule| VerdictDescription {
        name: rule.name,
        severity: rule.severity,
        meaning: rule.meaning,
        evidence: rule.evidence,
        excluded: rule.excluded,
        remedy: rule.remedy,
        disproof: rule.disproof,
        pages: rule.pages,
    });
    let engines = RULES.iter().map(|rule| VerdictDescription {
        name: rule.name,
        severity: rule.severities(),
        meaning: rule.meaning,
        evidence: rule.evidence,
        excluded: rule.excluded,
        remedy: rule.remedy,
        disproof: rule.disproof,
        pages: rule.pages,
    });
    fleet.chain(engines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_verdict_has_a_unique_name_and_all_texts() {
        let mut names = BTreeSet::new();
        for verdict in verdict_descriptions() {
            assert!(names.insert(verdict.name), "{} is listed twice", verdict.name);
            let VerdictDescription { meaning, evidence, remedy, disproof, .. } = verdict;
            for text in [meaning, evidence, remedy, disproof] {
                assert!(text.ends_with('.') && text.len() > 20, "{}: {text}", verdict.name);
            }
            assert!(!verdict.excluded.ends_with('.'), "{}", verdict.name);
        }
    }
}
