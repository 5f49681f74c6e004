//! The types of a rule about the fleet or the gateway, and of a match of such a rule.

use crate::verdict::{Evidence, VerdictScope, VerdictSeverity};

/// A rule about the state of backends, refused requests or the gateway.
pub struct FleetRule {
    /// The name of the rule, used like [`DiagnosisRule::name`](crate::DiagnosisRule::name).
    pub name: &'static str,
    /// The part of the system that the rule is about. A verdict names a backend only if this is `Backend`.
    pub scope: VerdictScope,
    /// Whether the condition is a state of a backend, of the fleet or of the gateway. If not, the condition
    /// follows from counts of requests.
    pub is_about_state: bool,
    /// The severities that the verdict can have, and when it has each of them, in words.
    pub severity: &'static str,
    /// The meaning of the condition, in one sentence.
    pub meaning: &'static str,
    /// The values that show the condition, in words.
    pub evidence: &'static str,
    /// The conditions under which the rule does not apply, as clauses. Empty: the rule always applies.
    pub excluded: &'static str,
    /// What an operator can do against the condition.
    pub remedy: &'static str,
    /// An observation that would disprove the condition.
    pub disproof: &'static str,
    /// Whether an operator must act at once while the verdict is critical.
    pub pages: bool,
}

/// A match of a rule: the condition of the rule holds at `backend`. If `backend` is `None`, the condition
/// holds for all backends or for the gateway.
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
