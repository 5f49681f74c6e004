//! The alerts, as a table: what is wrong, how it is known, what to do, and which other alerts it
//! makes needless. Rules, runbooks and the routing of alerts are all printed from it.
//!
//! Each fires on harm and not on heat: a full cache alone is a cache well used. Each has a guard
//! against little traffic, so that one unlucky request at night wakes nobody.

mod capacity;
mod gateway;
mod latency;
mod quality;
mod replicas;
mod slo;

use std::borrow::Cow;

/// One alert.
#[derive(Debug, Clone)]
pub struct Alert {
    /// Its name.
    pub name: &'static str,
    /// When it fires, in short, for tables.
    pub when: &'static str,
    /// Which part it is about. Alerts of one area make one notification.
    pub area: &'static str,
    /// How fast somebody has to look.
    pub severity: Severity,
    /// The condition, as Prometheus is asked for it.
    pub expr: Cow<'static, str>,
    /// How long the condition must hold.
    pub holds_for: &'static str,
    /// How long it stays after the condition has ended: those that come and go.
    pub stays_for: Option<&'static str>,
    /// One line, with Prometheus' templates.
    pub summary: &'static str,
    /// What was measured, with Prometheus' templates.
    pub description: &'static str,
    /// The runbook: what it means.
    pub meaning: &'static str,
    /// The runbook: how to see that it is true.
    pub confirm: &'static str,
    /// The runbook: what to do.
    pub action: &'static str,
    /// Alerts that say nothing new while this one fires.
    pub silences: Vec<Silence>,
}

/// How fast somebody has to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Now: users are being failed.
    Page,
    /// In working hours.
    Ticket,
}

/// An alert that another one makes needless.
#[derive(Debug, Clone, Copy)]
pub struct Silence {
    /// The needless one.
    pub alert: &'static str,
    /// Where these labels are the same on both.
    pub equal: &'static [&'static str],
}

/// All alerts, the most urgent areas first.
pub fn all() -> Vec<Alert> {
    [
        slo::alerts(),
        replicas::alerts(),
        capacity::alerts(),
        latency::alerts(),
        quality::alerts(),
        gateway::alerts(),
    ]
    .concat()
}

// === impl Alert ===

impl Alert {
    /// Where the page of runbooks has it. Markdown's anchors are lowercase.
    pub fn anchor(&self) -> String {
        self.name.to_lowercase()
    }
}

// === impl Severity ===

impl Severity {
    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Ticket => "ticket",
        }
    }
}

/// Silences an alert about the same replica.
const fn of_same_backend(alert: &'static str) -> Silence {
    Silence { alert, equal: &["backend"] }
}

/// Silences an alert wherever it is about.
const fn everywhere(alert: &'static str) -> Silence {
    Silence { alert, equal: &[] }
}
