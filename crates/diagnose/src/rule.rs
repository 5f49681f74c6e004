//! A rule: its texts, the signals that it needs, and the function that evaluates it.

use super::verdict::{Confidence, VerdictScope};
use prelude::*;

/// What rules are made of.
pub(crate) mod prelude {
    pub(crate) use super::{DiagnosisRule, LoadDependence};
    pub(crate) use crate::evaluation::{Evaluation, RuleMatch, RuleResult, windows};
    pub(crate) use crate::history::{
        BackendHistory, FAST, LONG_WINDOW, RECENT, Ratio, StepSignal, StepWindow, WindowMeasure,
    };
    pub(crate) use crate::verdict::{Evidence, Origin, Verdict, VerdictSeverity};
}

/// A rule, which detects one condition. An option begins its rule with [`DiagnosisRule::GATEWAY`], and gives verdicts of
/// it to [`GatewayConditions::verdicts`](crate::GatewayConditions::verdicts).
pub struct DiagnosisRule {
    /// The name of the rule and of its verdict, such as `kv_backlog`. It is also the label value in metrics, and
    /// the anchor of the documentation.
    pub name: &'static str,
    /// The part of the system that the rule is about. A verdict names a backend only if this is `Backend`.
    pub scope: VerdictScope,
    /// Whether the condition is a state of a backend, of the fleet or of the gateway. If not, the condition
    /// follows from counts of requests or from the metrics of engines.
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
    /// The lowest severity that a verdict about an engine has. A warning about requests becomes critical if many
    /// are harmed.
    pub lowest: VerdictSeverity,
    /// The load without which the condition cannot hold.
    pub load: LoadDependence,
    /// The share of harmed requests. A warning about requests becomes critical if the harmed requests at the
    /// backend are a critical share of all requests.
    pub harm: Ratio,
    /// Whether the condition can be a lasting change that clients want. Then the values of a long-lasting
    /// verdict become usual, and the verdict ends.
    pub becomes_usual: bool,
    /// The signals without which the rule is undetermined. Empty: the rule is about the metrics themselves. It is
    /// always determined, but that does not count as a diagnosis of the engine.
    pub needs: &'static [StepSignal],
    /// Evaluates a rule about an engine. All signals in `needs` are available. The other rules have a state, so
    /// their modules evaluate them.
    pub judge: fn(&Evaluation<'_>) -> RuleResult,
}

/// The load without which the condition of a rule cannot hold.
#[derive(Clone, Copy)]
pub enum LoadDependence {
    /// The condition can hold without load.
    None,
    /// The condition needs load at the backend itself.
    Backend,
    /// The condition needs requests at the backend. Because of the condition, routing may send the backend
    /// none. While other backends get requests, a lack of requests at this backend therefore does not show
    /// that the condition has ended. The value of the condition, summed over steps of the history, shows it.
    Requests(Ratio),
}

impl DiagnosisRule {
    /// What rules about an engine have in common.
    pub(crate) const ENGINE: Self = Self {
        name: "",
        scope: VerdictScope::Backend,
        is_about_state: false,
        severity: "warning or critical",
        meaning: "",
        evidence: "",
        excluded: "",
        remedy: "",
        disproof: "",
        pages: false,
        lowest: VerdictSeverity::Warning,
        load: LoadDependence::Backend,
        harm: Ratio::of(StepSignal::SlowFirstOutputs, StepSignal::FirstOutputs, 0.0),
        becomes_usual: false,
        needs: &[],
        judge: |_| Ok(None),
    };
    /// What rules about the state of a backend have in common.
    pub(crate) const BACKEND: Self = Self {
        is_about_state: true,
        ..Self::ENGINE
    };
    /// What rules about all backends have in common.
    pub(crate) const FLEET: Self = Self {
        scope: VerdictScope::Fleet,
        ..Self::BACKEND
    };
    /// What rules about the gateway have in common.
    pub const GATEWAY: Self = Self {
        scope: VerdictScope::Gateway,
        ..Self::BACKEND
    };

    /// Evaluates the rule. If signals are missing, the error is the list of the sources of these signals.
    /// `has_expired`: the evidence no longer counts, so the condition does not hold.
    pub(crate) fn judge(&self, evaluation: &Evaluation<'_>, has_expired: bool) -> RuleResult {
        let window = evaluation.minute;
        let missing = self.needs.iter().filter(|it| !window.has_signal(**it));
        let mut missing: Vec<&'static str> = missing.map(|signal| signal.source()).collect();
        missing.dedup();
        match missing.is_empty() {
            false => Err(missing),
            true if has_expired => Ok(None),
            true => (self.judge)(evaluation),
        }
    }

    /// A verdict of the rule that begins now, without a backend and without evidence. The confidence is high,
    /// because the gateway observes the conditions of the fleet and its own directly.
    pub fn verdict(&self, severity: VerdictSeverity) -> Verdict {
        Verdict {
            verdict: self.name.into(),
            scope: self.scope,
            origin: Origin::of_rule(self.name),
            severity,
            confidence: Confidence::High,
            meaning: self.meaning.into(),

            remedy: self.remedy.into(),
            disproof: self.disproof.into(),
            runbook: format!("docs/operate/diagnose.md#{}", self.name),
            ..Verdict::default()
        }
    }
}
