//! One alert: its condition, texts and inhibitions.

use std::borrow::Cow;

/// One alert.
#[derive(Debug, Clone)]
pub struct Alert {
    /// The name.
    pub name: &'static str,
    /// When it fires, as a short clause for tables.
    pub when: &'static str,
    /// The area. Alertmanager groups the alerts of one area into one notification.
    pub area: &'static str,
    /// The urgency.
    pub severity: AlertSeverity,
    /// The condition, as a query of Prometheus.
    pub expr: Cow<'static, str>,
    /// How long the condition must hold.
    pub holds_for: &'static str,
    /// How long it keeps firing after the condition has ended, for conditions that fluctuate.
    pub stays_for: Option<&'static str>,
    /// A one-line summary, with templates of Prometheus.
    pub summary: &'static str,
    /// A description of the measured values, with templates of Prometheus.
    pub description: &'static str,
    /// Runbook: the meaning of the alert.
    pub meaning: &'static str,
    /// Runbook: how to verify the alert.
    pub confirm: &'static str,
    /// Runbook: the remedy.
    pub action: &'static str,
    /// Alerts that this one inhibits.
    pub silences: Vec<AlertInhibition>,
}

/// The urgency of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlertSeverity {
    /// Act now: clients are harmed.
    Page,
    /// Act in working hours.
    Ticket,
}

/// An alert that another one inhibits.
#[derive(Debug, Clone, Copy)]
pub struct AlertInhibition {
    /// The inhibited alert.
    pub alert: &'static str,
    /// The labels that must be equal on both alerts.
    pub equal: &'static [&'static str],
}

// === impl Alert ===

impl Alert {
    /// The anchor in the page of runbooks. Markdown anchors are lower case.
    pub fn anchor(&self) -> String {
        self.name.to_lowercase()
    }
}

// === impl Severity ===

impl AlertSeverity {
    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Ticket => "ticket",
        }
    }
}

/// Inhibits an alert about the same backend.
pub(super) const fn inhibit_for_same_backend(alert: &'static str) -> AlertInhibition {
    AlertInhibition { alert, equal: &["backend"] }
}

/// Inhibits an alert for all backends and models.
pub(super) const fn inhibit_everywhere(alert: &'static str) -> AlertInhibition {
    AlertInhibition { alert, equal: &[] }
}
