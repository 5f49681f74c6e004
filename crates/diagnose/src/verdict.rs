//! What is said: a condition with its evidence, what to do, and what would prove it wrong; or that
//! it cannot be told, and what is missing for that.

use super::anomaly::{Anomaly, Pair};
use super::measure::Measure;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A condition of one replica. What another version leaves out is empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// The name of its rule.
    pub verdict: Cow<'static, str>,
    /// The replica.
    pub backend: String,
    /// How bad it is.
    pub severity: Severity,
    /// How sure it is.
    pub confidence: Confidence,
    /// What it is, in one sentence.
    pub meaning: Cow<'static, str>,
    /// Which of its causes it is, if that is known.
    pub cause: Option<Cow<'static, str>>,
    /// For how long it has been found, in seconds.
    pub age_seconds: f64,
    /// The numbers that it rests on.
    pub evidence: Vec<Evidence>,
    /// What to do.
    pub remedy: String,
    /// What would prove it wrong.
    pub disproof: Cow<'static, str>,
    /// Where more is said of it.
    pub runbook: String,
}

/// A number, and what it usually is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// What was measured.
    pub measure: Cow<'static, str>,
    /// Its value in the window.
    pub value: f64,
    /// The unit of both.
    pub unit: Cow<'static, str>,
    /// Its median in the hour before. `None`: that is not known.
    pub usual: Option<f64>,
    /// The length of the window, in seconds.
    pub window_seconds: f64,
}

/// A rule that could not be judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CannotTell {
    /// The name of the rule.
    pub verdict: Cow<'static, str>,
    /// The replica.
    pub backend: String,
    /// What is missing: signals by the names that `/status` has for them, `gateway` for what only a
    /// gateway sees, or a sentence.
    pub missing: Vec<Cow<'static, str>>,
}

/// A replica that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Its name.
    pub backend: String,
    /// Whether any rule could be judged.
    pub is_judged: bool,
}

/// How bad a condition is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It costs something.
    #[default]
    Warning,
    /// Users are being failed.
    Critical,
}

/// How many signals that do not depend on each other say so: one, two, or more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// One.
    #[default]
    Low,
    /// Two.
    Medium,
    /// Three or more.
    High,
}

/// All that is said at one moment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Conditions, the worst first.
    pub verdicts: Vec<Verdict>,
    /// What cannot be told, and why.
    pub cannot_tell: Vec<CannotTell>,
    /// Numbers that are far from what is usual. They are no conditions.
    pub anomalies: Vec<Anomaly>,
    /// Numbers that moved together in the last five minutes.
    pub pairs: Vec<Pair>,
    /// The replicas.
    pub backends: Vec<Watched>,
}

// === impl Evidence ===

impl Evidence {
    /// A measure over a window.
    pub(super) fn new(
        measure: Measure,
        value: f64,
        usual: Option<f64>,
        window_seconds: f64,
    ) -> Self {
        let row = measure.row();
        let (measure, unit) = (row.name.into(), row.unit.into());
        Self { measure, value, unit, usual, window_seconds }
    }
}

// === impl Severity ===

impl Severity {
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
    /// Of so many signals.
    pub(super) const fn of(signals: usize) -> Self {
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
    /// Whether a condition was found at a replica. `None`: it cannot be told.
    pub fn has(&self, verdict: &str, backend: &str) -> Option<bool> {
        let is_it = |it: &Verdict| it.verdict == verdict && it.backend == backend;
        if self.verdicts.iter().any(is_it) {
            return Some(true);
        }
        let is_untold = |it: &CannotTell| it.verdict == verdict && it.backend == backend;
        let is_watched = self.backends.iter().any(|it| it.backend == backend);
        (is_watched && !self.cannot_tell.iter().any(is_untold)).then_some(false)
    }
}
