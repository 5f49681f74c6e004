//! A match of a rule about the fleet or the gateway.

use crate::verdict::{Evidence, VerdictDescription, VerdictSeverity};

/// A match of a rule: the condition of the rule holds at `backend`. If `backend` is `None`, the condition
/// holds for all backends or for the gateway.
pub(super) struct FleetMatch {
    pub(super) rule: &'static VerdictDescription,
    pub(super) backend: Option<String>,
    pub(super) severity: VerdictSeverity,
    pub(super) cause: Option<String>,
    pub(super) evidence: Vec<Evidence>,
    /// The remedy for this cause, in place of the remedy of the rule. `None`: the remedy of the rule
    /// applies.
    pub(super) remedy: Option<String>,
}

impl FleetMatch {
    /// A match for all backends or for the gateway, without evidence.
    pub(super) const fn new(
        rule: &'static VerdictDescription,
        severity: VerdictSeverity,
        cause: Option<String>,
    ) -> Self {
        Self { rule, backend: None, severity, cause, evidence: Vec::new(), remedy: None }
    }
}
