//! The types of a rule about the fleet or the gateway, and of a match of it.

use crate::verdict::{Evidence, VerdictScope, VerdictSeverity};

/// A rule about the state of backends, refused requests or the gateway.
pub struct FleetRule {
    /// The name of the rule, as of [`DiagnosisRule::name`](crate::DiagnosisRule::name).
    pub name: &'static str,
    /// The part of the system that the rule is about. Only a verdict about one backend names it.
    pub scope: VerdictScope,
    /// Whether the rule names a state of a backend, of the fleet or of the gateway. Otherwise it counts
    /// requests.
    pub is_about_state: bool,
    /// The severities in words.
    pub severity: &'static str,
    /// The meaning of the condition, in one sentence.
    pub meaning: &'static str,
    /// The values that show the condition, in words.
    pub evidence: &'static str,
    /// When the rule does not apply, as clauses. Empty: always.
    pub excluded: &'static str,
    /// The remedy.
    pub remedy: &'static str,
    /// An observation that would disprove the condition.
    pub disproof: &'static str,
    /// Whether an operator must act at once while the verdict is critical.
    pub pages: bool,
}

/// A match of a rule: its condition holds at `backend`. `None`: it holds for all backends or for the gateway.
pub(super) struct FleetMatch {
    pub(super) rule: &'static FleetRule,
    pub(super) backend: Option<String>,
    pub(super) severity: VerdictSeverity,
    pub(super) cause: Option<String>,
    pub(super) evidence: Vec<Evidence>,
    /// The remedy for this cause, in place of the remedy of the rule. `None`: the remedy of the rule
    /// applies.
    pub(super) remedy: Option<String>,
}
