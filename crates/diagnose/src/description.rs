//! The texts of all rules, of engines and of the fleet, in one form for documents and alerts.

use super::fleet::FLEET_RULES;
use super::rules::{DiagnosisRule, RULES};
use super::verdict::VerdictDescription;

/// The texts of all rules: those about the fleet and the gateway, and then those about engines.
pub fn verdict_descriptions() -> impl Iterator<Item = VerdictDescription> {
    FLEET_RULES
        .into_iter()
        .copied()
        .chain(RULES.iter().map(DiagnosisRule::description))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_name_is_unique_and_no_text_missing() {
        let mut names = BTreeSet::new();
        for verdict in verdict_descriptions() {
            assert!(
                names.insert(verdict.name),
                "{} is listed twice",
                verdict.name
            );
            let VerdictDescription {
                meaning,
                evidence,
                remedy,
                disproof,
                ..
            } = verdict;
            for text in [meaning, evidence, remedy, disproof] {
                assert!(
                    text.ends_with('.') && text.len() > 20,
                    "{}: {text}",
                    verdict.name
                );
            }
            assert!(!verdict.excluded.ends_with('.'), "{}", verdict.name);
        }
    }
}
