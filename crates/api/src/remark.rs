//! The remarks of `tokenweir doctor`: an observation, why it matters, and the remedy. An option that adds a
//! part to `/status` also provides the check of this part.

use serde::Serialize;
use serde_json::Value;
use tokenweir_protocol::named_enum;

/// The check of an option, which reads the part of the option in the document of `GET /status`.
pub type StatusCheck = fn(&Value) -> Vec<Remark>;

named_enum! {
    /// How serious a finding is.
    #[derive(PartialOrd, Ord)]
    pub enum FindingSeverity {
        /// The observation is useful to know, or the check could not observe enough.
        Note = "note",
        /// The observed state has a cost or a risk.
        Warning = "warning",
        /// Requests fail, or any client that reaches the port can control the server.
        Error = "error",
    }
}

/// The result of a check about one backend, or about the whole deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// How severe the observation is.
    pub severity: FindingSeverity,
    /// The observation, as a sentence.
    pub observation: String,
    /// Why the observation matters.
    pub reason: String,
    /// The flag, environment variable or command that corrects the problem. `None`: no remedy is known.
    pub remedy: Option<String>,
}

impl Remark {
    /// A remark of severity `note`, without a reason and without a remedy.
    pub fn note(observation: impl Into<String>) -> Self {
        Self::new(FindingSeverity::Note, observation)
    }

    /// A remark of severity `warning`, without a reason and without a remedy.
    pub fn warning(observation: impl Into<String>) -> Self {
        Self::new(FindingSeverity::Warning, observation)
    }

    /// A remark of severity `error`, without a reason and without a remedy.
    pub fn error(observation: impl Into<String>) -> Self {
        Self::new(FindingSeverity::Error, observation)
    }

    /// A remark of this severity, without a reason and without a remedy.
    pub fn new(severity: FindingSeverity, observation: impl Into<String>) -> Self {
        Self {
            severity,
            observation: observation.into(),
            reason: String::new(),
            remedy: None,
        }
    }

    /// Sets the reason why the observation matters.
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            ..self
        }
    }

    /// Sets the flag, environment variable or command that corrects the problem.
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}
