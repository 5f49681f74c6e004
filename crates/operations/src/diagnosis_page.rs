//! Generates the page about the diagnosis: a handwritten text with the runbook of each alert, and a section about
//! each verdict.

use tokenweir_diagnose::DiagnosisRule;

/// The handwritten text of the page, with a placeholder for the sections of the verdicts.
const TEXT: &str = include_str!("diagnosis_page.txt");

/// Generates the page about these rules of the diagnosis. `alerts`: the alert rules.
pub(super) fn print(rules: &[&DiagnosisRule], alerts: &str) -> String {
    let sections = rules.iter().map(|rule| verdict_section(rule, alerts));
    let verdicts: String = sections.collect();
    TEXT.replace("{verdicts}", verdicts.trim_end())
}

fn verdict_section(verdict: &DiagnosisRule, rules: &str) -> String {
    let DiagnosisRule {
        name,
        severity,
        meaning,
        evidence,
        excluded,
        ..
    } = verdict;
    let DiagnosisRule {
        remedy,
        disproof,
        pages,
        ..
    } = verdict;
    let own = alert_of(name, rules).map_or_else(String::new, |alert| format!("; `{alert}`"));
    let pages = if *pages { "; pages" } else { "" };
    let excluded = if excluded.is_empty() {
        String::new()
    } else {
        format!(" Not if {excluded}.")
    };
    format!(
        "### {name}\n\n*{severity}{pages}{own}.* {meaning}\n\n**Evidence:** {evidence}{excluded}\n\n\
         **Do:** {remedy}\n\n**Disproof:** {disproof}\n\n"
    )
}

/// The name of the alert that uses the section of this verdict as its runbook. `None`: the verdict has no alert
/// of its own.
fn alert_of<'a>(verdict: &str, rules: &'a str) -> Option<&'a str> {
    let link = format!("#{verdict}\n");
    let mut rules = rules.split("- alert: ");
    rules.find(|rule| rule.contains(&link))?.lines().next()
}
