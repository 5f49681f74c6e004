//! Generates the page about the diagnosis: a handwritten text, the runbook of each alert, and a section about
//! each verdict.

use super::alerts::{self, Alert, AlertSeverity, Runbook};
use tokenweir_diagnose::{VerdictDescription, verdict_descriptions};

/// The handwritten text of the page, with a placeholder such as `{alerts}` for each generated part.
const TEXT: &str = include_str!("diagnosis_page.txt");

/// Generates the page.
pub(super) fn print() -> String {
    let alerts = alerts::all();
    let pages = alerts.iter().filter(|alert| alert.severity == AlertSeverity::Page);
    let pages: Vec<String> = pages.map(|alert| format!("`{}`", alert.name)).collect();
    let sections: String = alerts.iter().map(alert_section).collect();
    let verdicts: String =
        verdict_descriptions().map(|verdict| verdict_section(&verdict, &alerts)).collect();
    TEXT.replace("{pages}", &pages.join(", "))
        .replace("{alerts}", sections.trim_end())
        .replace("{verdicts}", verdicts.trim_end())
}

fn alert_section(alert: &Alert) -> String {
    let Alert { name, holds_for, .. } = alert;
    let severity = alert.severity.as_str();
    let text = match alert.runbook {
        Runbook::Own { meaning, confirm, action } => {
            format!("{meaning}\n\n**Verify:** {confirm}\n\n**Do:** {action}")
        }
        Runbook::Verdict(verdict) => format!("Fires while the verdict `{verdict}` holds."),
        Runbook::EachVerdict(meaning) => format!("{meaning} The alert links to the verdict."),
    };
    format!("### {name}\n\n*{severity} after {holds_for}.* {text}\n\n")
}

fn verdict_section(verdict: &VerdictDescription, alerts: &[Alert]) -> String {
    let VerdictDescription { name, severity, meaning, evidence, excluded, .. } = verdict;
    let VerdictDescription { remedy, disproof, pages, .. } = verdict;
    let own =
        alerts.iter().find(|alert| matches!(alert.runbook, Runbook::Verdict(it) if it == *name));
    let own = own.map_or_else(String::new, |alert| format!("; `{}`", alert.name));
    let pages = if *pages { "; pages" } else { "" };
    let excluded = if excluded.is_empty() { String::new() } else { format!(" Not if {excluded}.") };
    format!(
        "### {name}\n\n*{severity}{pages}{own}.* {meaning}\n\n**Evidence:** {evidence}{excluded}\n\n\
         **Do:** {remedy}\n\n**Disproof:** {disproof}\n\n"
    )
}
