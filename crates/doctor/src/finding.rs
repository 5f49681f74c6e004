//! What a check says: what was seen, why it matters, and what to change.

use serde::Serialize;

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing, or not to be seen from here.
    Note,
    /// It costs something, or will.
    Warning,
    /// It does not work, or is open to anybody.
    Error,
}

/// What a check says of one replica, or of everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// How bad it is.
    pub severity: Severity,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub why: String,
    /// The flag, variable or command that changes it. `None`: there is none.
    pub change: Option<String>,
}

/// A remark, with the check that made it and the replicas that it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The names of the replicas; empty if it is about none of them.
    pub replicas: Vec<String>,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub why: String,
    /// What changes it.
    pub change: Option<String>,
}

impl Severity {
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
    /// Worth knowing.
    pub(super) fn note(seen: impl Into<String>) -> Self {
        Self::new(Severity::Note, seen)
    }

    /// It costs something, or will.
    pub(super) fn warning(seen: impl Into<String>) -> Self {
        Self::new(Severity::Warning, seen)
    }

    /// It does not work, or is open to anybody.
    pub(super) fn error(seen: impl Into<String>) -> Self {
        Self::new(Severity::Error, seen)
    }

    pub(super) fn new(severity: Severity, seen: impl Into<String>) -> Self {
        Self { severity, seen: seen.into(), why: String::new(), change: None }
    }

    /// Why it matters.
    pub(super) fn because(self, why: impl Into<String>) -> Self {
        Self { why: why.into(), ..self }
    }

    /// What changes it.
    pub(super) fn change(self, change: impl Into<String>) -> Self {
        Self { change: Some(change.into()), ..self }
    }
}
