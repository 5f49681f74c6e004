//! The result of a diagnosis: verdicts with their evidence, remedies and disproofs, and the rules
//! that could not be determined. These types are the JSON document of `/diagnose`.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A condition that holds at a backend. Fields that another version omits are empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// The name of the rule.
    pub verdict: Cow<'static, str>,
    /// The name of the backend.
    pub backend: String,
    /// The severity.
    pub severity: VerdictSeverity,
    /// The confidence, from the number of independent signals.
    pub confidence: Confidence,
    /// The meaning of the condition, in one sentence.
    pub meaning: Cow<'static, str>,
    /// The cause, if it is known.
    pub cause: Option<Cow<'static, str>>,
    /// Time since the verdict began, in seconds.
    pub age_seconds: f64,
    /// The values that show the condition.
    pub evidence: Vec<Evidence>,
    /// The remedy.
    pub remedy: String,
    /// An observation that would disprove the verdict.
    pub disproof: Cow<'static, str>,
    /// Link to the documentation of the rule.
    pub runbook: String,
}

/// A value with its usual value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// The name of the measure.
    pub measure: Cow<'static, str>,
    /// The value in the window.
    pub value: f64,
    /// The unit of both values.
    pub unit: Cow<'static, str>,
    /// The median of the last hour. `None`: unknown.
    pub usual: Option<f64>,
    /// The length of the window, in seconds.
    pub window_seconds: f64,
}

/// A rule that could not be determined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndeterminedRule {
    /// The name of the rule.
    pub verdict: Cow<'static, str>,
    /// The name of the backend.
    pub backend: String,
    /// The missing data: signals by their names in `/status`, `gateway` for data that only a
    /// gateway has, or a description.
    pub missing: Vec<Cow<'static, str>>,
}

/// A backend that is diagnosed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiagnosedBackend {
    /// The name of the backend.
    pub backend: String,
    /// Whether at least one rule could be determined.
    pub is_determined: bool,
}

/// The severity of a condition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictSeverity {
    /// It has a cost.
    #[default]
    Warning,
    /// Clients are harmed.
    Critical,
}

/// Confidence of a verdict: the number of independent signals that show the condition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// One signal.
    #[default]
    Low,
    /// Two signals.
    Medium,
    /// Three or more signals.
    High,
}

/// A value that is far from its usual value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Anomaly {
    /// The name of the backend.
    pub backend: String,
    /// The name of the measure.
    pub measure: Cow<'static, str>,
    /// The value in the last minute.
    pub value: f64,
    /// The unit.
    pub unit: Cow<'static, str>,
    /// The median of the last hour.
    pub usual: f64,
    /// (value − median) ÷ (1.4826 × median absolute deviation).
    pub z: f64,
}

/// Two values that moved together in the last five minutes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CorrelatedPair {
    /// The name of the backend.
    pub backend: String,
    /// The first value.
    pub first: Cow<'static, str>,
    /// The second value.
    pub second: Cow<'static, str>,
    /// Spearman's rank correlation.
    pub correlation: f64,
    /// Number of steps with both values.
    pub moments: usize,
}

/// The diagnosis of all backends at one time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Verdicts, sorted by severity, the highest first.
    pub verdicts: Vec<Verdict>,
    /// Rules that could not be determined, and the missing data.
    pub undetermined: Vec<UndeterminedRule>,
    /// Values that are far from their usual values. They are no verdicts.
    pub anomalies: Vec<Anomaly>,
    /// Pairs of values that moved together in the last five minutes.
    pub pairs: Vec<CorrelatedPair>,
    /// The diagnosed backends.
    pub backends: Vec<DiagnosedBackend>,
}

// === impl Severity ===

impl VerdictSeverity {
    /// The name in a report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

// === impl Confidence ===

impl Confidence {
    /// The confidence for a number of independent signals.
    pub(super) const fn from_signals(signals: usize) -> Self {
        match signals {
            0 | 1 => Self::Low,
            2 => Self::Medium,
            _ => Self::High,
        }
    }

    /// The name in a report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

// === impl Diagnosis ===

impl Diagnosis {
    /// Whether a verdict holds at a backend. `None`: undetermined.
    pub fn has(&self, verdict: &str, backend: &str) -> Option<bool> {
        let is_match = |found: &Verdict| found.verdict == verdict && found.backend == backend;
        if self.verdicts.iter().any(is_match) {
            return Some(true);
        }
        let is_undetermined =
            |rule: &UndeterminedRule| rule.verdict == verdict && rule.backend == backend;
        let is_watched = self.backends.iter().any(|watched| watched.backend == backend);
        (is_watched && !self.undetermined.iter().any(is_undetermined)).then_some(false)
    }
}
