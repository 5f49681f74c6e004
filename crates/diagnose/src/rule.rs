//! A rule: its texts, the signals that it needs, and the function that evaluates it.

use super::verdict::{Confidence, VerdictScope};
use prelude::*;

/// The imports that the modules of rules share.
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
    /// The possible severities of the verdict with their conditions, in words.
    pub severity: &'static str,
    /// The meaning of the condition, in one sentence.
    pub meaning: &'static str,
    /// The values that show the condition, as text.
    pub evidence: &'static str,
    /// The exceptions in which the rule does not apply, as clauses. Empty: the rule always applies.
    pub excluded: &'static str,
    /// The advice to an operator against the condition.
    pub remedy: &'static str,
    /// An observation that would disprove the condition.
    pub disproof: &'static str,
    /// Whether an operator must act at once while the verdict is critical.
    pub pages: bool,
    /// The lowest severity of a verdict about an engine. A warning about requests becomes critical if many
    /// requests are harmed.
    pub lowest: VerdictSeverity,
    /// Which load the condition needs.
    pub load: LoadDependence,
    /// The share of harmed requests. A warning becomes critical if the harmed requests at the backend are a
    /// critical share of all requests.
    pub harm: Ratio,
    /// Whether the condition can be a lasting change that clients want. The values of a verdict that lasts long
    /// then become usual, and the verdict ends.
    pub becomes_usual: bool,
    /// The signals without which the rule is undetermined. Empty: the rule is about the metrics themselves. It is
    /// always determined, but that does not count as a diagnosis of the engine.
    pub needs: &'static [StepSignal],
    /// Evaluates a rule about an engine. All signals in `needs` are available. Rules about the fleet and the
    /// gateway keep a state, so their own modules evaluate them.
    pub judge: fn(&Evaluation<'_>) -> RuleResult,
}

/// Which load the condition of a rule needs.
#[derive(Clone, Copy)]
pub enum LoadDependence {
    /// The condition can hold without load.
    None,
    /// The condition needs load at the backend itself.
    Backend,
    /// The condition needs requests at the backend, but may itself cause routing to send no requests there.
    /// While other backends get requests, a lack of requests at this backend therefore does not show that the
    /// condition has ended. The ratio shows it, summed since the last match.
    Requests(Ratio),
}

impl DiagnosisRule {
    /// Default values of the rules about an engine.
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
    /// Default values of the rules about the state of a backend.
    pub(crate) const BACKEND: Self = Self {
        is_about_state: true,
        ..Self::ENGINE
    };
    /// Default values of the rules about all backends.
    pub(crate) const FLEET: Self = Self {
        scope: VerdictScope::Fleet,
        ..Self::BACKEND
    };
    /// Default values of the rules about the gateway.
    pub const GATEWAY: Self = Self {
        scope: VerdictScope::Gateway,
        ..Self::BACKEND
    };

    /// Evaluates the rule. If signals are missing, the error lists their sources. `has_expired`: the evidence
    /// no longer counts, so the condition does not hold.
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
    /// because the gateway directly observes the conditions of the fleet and of itself.
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
