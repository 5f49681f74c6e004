//! The description of an alert: its condition and texts.

use std::borrow::Cow;
use tokenweir_protocol::named_enum;

/// One alert, with the texts of its rule and of its runbook.
#[derive(Debug, Clone)]
pub struct Alert {
    /// The name of the alert, such as `TokenweirDown`.
    pub name: &'static str,
    /// The urgency of the alert.
    pub severity: AlertSeverity,
    /// The condition, as a Prometheus query.
    pub expr: Cow<'static, str>,
    /// The time for which the condition must hold before the alert fires, as a duration of
    /// Prometheus.
    pub holds_for: &'static str,
    /// The time for which the alert keeps firing after the condition has ended, as a duration of Prometheus.
    /// It is set for conditions that fluctuate. `None`: the alert ends as soon as the condition ends.
    pub stays_for: Option<&'static str>,
    /// A one-line summary with templates of Prometheus, such as `{{ $labels.backend }}`.
    pub summary: &'static str,
    /// A description of the measured values with templates of Prometheus, such as `{{ $value }}`.
    pub description: &'static str,
    /// The texts of the runbook, or the verdict whose section is the runbook.
    pub runbook: Runbook,
}

/// The runbook of an alert: a section of the page about the diagnosis.
#[derive(Debug, Clone)]
pub enum Runbook {
    /// The runbook is a section of its own with these texts.
    Own {
        /// The condition of the alert and its meaning.
        meaning: &'static str,
        /// How the operator verifies the fault.
        confirm: &'static str,
        /// What the operator does about the fault.
        action: &'static str,
    },
    /// The alert reads the metric of the verdict with this name. The runbook is the section of this verdict.
    Verdict(&'static str),
    /// The alert reads the metrics of several verdicts. Its label `verdict` has the name of one verdict, and
    /// the section of this verdict is the runbook. The text is the meaning of the alert.
    EachVerdict(&'static str),
}

named_enum! {
    /// The urgency of an alert.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AlertSeverity {
        /// Clients are harmed: an operator must act now.
        Page = "page",
        /// An operator must act in working hours.
        Ticket = "ticket",
    }
}

// === impl Alert ===

impl Alert {
    /// The anchor of the runbook on the page of runbooks: the name of the alert in lower case, or the name of
    /// the verdict.
    pub fn anchor(&self) -> String {
        match self.runbook {
            Runbook::Own { .. } => self.name.to_lowercase(),
            Runbook::Verdict(verdict) => verdict.to_owned(),
            Runbook::EachVerdict(_) => "{{ $labels.verdict }}".to_owned(),
        }
    }
}
