//! The result of a check: the observation, why it matters, and the remedy.

use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingSeverity {
    /// Useful to know, or a limit of what can be observed.
    Note,
    /// It has a cost, now or later.
    Warning,
    /// It does not work, or it is open to every client that reaches the port.
    Error,
}

/// A remark of a check about one backend, or about the deployment as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// The severity.
    pub severity: FindingSeverity,
    /// The observation.
    pub observation: String,
    /// Why it matters.
    pub reason: String,
    /// The flag, environment variable or command that corrects it. `None`: unknown.
    pub remedy: Option<String>,
}

/// A remark with its check and the backends that it applies to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// The severity.
    pub severity: FindingSeverity,
    /// The names of the backends; empty if it is about the deployment as a whole.
    pub backends: Vec<String>,
    /// The observation.
    pub observation: String,
    /// Why it matters.
    pub reason: String,
    /// The remedy.
    pub remedy: Option<String>,
}

impl FindingSeverity {
    /// The name in a report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl Remark {
    /// A remark of severity `note`.
    pub(super) fn note(seen: impl Into<String>) -> Self {
        Self::new(FindingSeverity::Note, seen)
    }

    /// A remark of severity `warning`.
    pub(super) fn warning(seen: impl Into<String>) -> Self {
        Self::new(FindingSeverity::Warning, seen)
    }

    /// A remark of severity `error`.
    pub(super) fn error(seen: impl Into<String>) -> Self {
        Self::new(FindingSeverity::Error, seen)
    }

    pub(super) fn new(severity: FindingSeverity, seen: impl Into<String>) -> Self {
        Self { severity, observation: seen.into(), reason: String::new(), remedy: None }
    }

    /// Adds why it matters.
    pub(super) fn because(self, why: impl Into<String>) -> Self {
        Self { reason: why.into(), ..self }
    }

    /// Adds the remedy.
    pub(super) fn remedy(self, change: impl Into<String>) -> Self {
        Self { remedy: Some(change.into()), ..self }
    }
}
