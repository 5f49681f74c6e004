//! The result of a check: what was observed, why it matters, and the remedy.

use serde::Serialize;
use tokenweir_protocol::named_enum;

named_enum! {
    /// The severity of a finding.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum FindingSeverity {
        /// The observation is useful to know, or the check could not observe enough.
        Note = "note",
        /// The observed state has a cost or a risk.
        Warning = "warning",
        /// Requests fail, or any client that reaches the port can control the server.
        Error = "error",
    }
}

/// A remark of a check about one backend, or about the deployment as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// The severity.
    pub severity: FindingSeverity,
    /// What was observed.
    pub observation: String,
    /// Why the observation matters.
    pub reason: String,
    /// The flag, environment variable or command that corrects the problem. `None`: unknown.
    pub remedy: Option<String>,
}

/// A remark with its check and the backends that it applies to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// The names of the backends. Empty: the finding is about the deployment as a whole.
    pub backends: Vec<String>,
    /// The remark.
    #[serde(flatten)]
    pub remark: Remark,
}

impl Remark {
    /// A remark of severity `note`.
    pub(super) fn note(observation: impl Into<String>) -> Self {
        Self::new(FindingSeverity::Note, observation)
    }

    /// A remark of severity `warning`.
    pub(super) fn warning(observation: impl Into<String>) -> Self {
        Self::new(FindingSeverity::Warning, observation)
    }

    /// A remark of severity `error`.
    pub(super) fn error(observation: impl Into<String>) -> Self {
        Self::new(FindingSeverity::Error, observation)
    }

    pub(super) fn new(severity: FindingSeverity, observation: impl Into<String>) -> Self {
        Self {
            severity,
            observation: observation.into(),
            reason: String::new(),
            remedy: None,
        }
    }

    /// Sets the reason why the observation matters.
    pub(super) fn because(self, reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            ..self
        }
    }

    /// Sets the remedy.
    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}
