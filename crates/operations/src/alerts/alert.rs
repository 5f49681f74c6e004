//! The description of an alert: its condition, texts and inhibitions.

use std::borrow::Cow;

/// One alert, with the texts of its rule and of its runbook.
#[derive(Debug, Clone)]
pub struct Alert {
    /// The name of the alert, such as `TokenweirDown`.
    pub name: &'static str,
    /// The condition in words, as a short clause for tables.
    pub when: &'static str,
    /// The area of the alert, such as `latency`. Alertmanager groups the alerts of one area into
    /// one notification.
    pub area: &'static str,
    /// The urgency of the alert.
    pub severity: AlertSeverity,
    /// The condition, as a Prometheus query.
    pub expr: Cow<'static, str>,
    /// The time for which the condition must hold before the alert fires, as a duration of
    /// Prometheus.
    pub holds_for: &'static str,
    /// The time for which the alert keeps firing after the condition has ended, as a duration of
    /// Prometheus. It is set for conditions that fluctuate. `None`: the alert ends with the
    /// condition.
    pub stays_for: Option<&'static str>,
    /// A one-line summary with templates of Prometheus, such as `{{ $labels.backend }}`.
    pub summary: &'static str,
    /// A description of the measured values with templates of Prometheus, such as `{{ $value }}`.
    pub description: &'static str,
    /// Runbook: the meaning of the alert.
    pub meaning: &'static str,
    /// Runbook: the verification of the alert.
    pub confirm: &'static str,
    /// Runbook: the remedy.
    pub action: &'static str,
    /// The alerts that send no notification while this alert fires.
    pub silences: Vec<AlertInhibition>,
}

/// The urgency of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlertSeverity {
    /// Clients are harmed: an operator must act now.
    Page,
    /// An operator must act in working hours.
    Ticket,
}

/// An inhibition: while the inhibiting alert fires, `alert` sends no notification.
#[derive(Debug, Clone, Copy)]
pub struct AlertInhibition {
    /// Name of the inhibited alert.
    pub alert: &'static str,
    /// The labels whose values must be equal on both alerts.
    pub equal: &'static [&'static str],
}

// === impl Alert ===

impl Alert {
    /// The anchor of the alert in the page of runbooks: its name in lower case.
    pub fn anchor(&self) -> String {
        self.name.to_lowercase()
    }
}

// === impl AlertSeverity ===

impl AlertSeverity {
    /// The value of the label `severity`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Ticket => "ticket",
        }
    }
}

/// A firing `alert` mutes the alert that has this inhibition, if both have the same label `backend`.
pub(super) const fn inhibit_for_same_backend(alert: &'static str) -> AlertInhibition {
    AlertInhibition { alert, equal: &["backend"] }
}

/// A firing `alert` mutes the alert that has this inhibition, for every backend and model.
pub(super) const fn inhibit_everywhere(alert: &'static str) -> AlertInhibition {
    AlertInhibition { alert, equal: &[] }
}
