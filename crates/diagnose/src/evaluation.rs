//! The inputs of rules: the history of one backend and of the others, and the tests for harm to
//! clients.

use super::history::{
    BackendHistory, FAST, LONG_WINDOW, RobustBaseline, SLOW_START, StepSignal, StepWindow,
    WindowMeasure,
};
use super::verdict::Evidence;

/// One backend and the backends to compare it with.
pub(super) struct Evaluation<'a> {
    pub(super) history: &'a BackendHistory,
    /// The other backends that are up.
    pub(super) others: Vec<&'a BackendHistory>,
}

/// The result of a rule.
pub(super) enum RuleOutcome {
    /// The condition does not hold.
    Absent,
    /// The condition cannot be determined, for this reason.
    Unknown(&'static str),
    /// The condition holds.
    Present(RuleMatch),
}

/// A condition that holds.
#[derive(Debug, Clone, Default)]
pub(super) struct RuleMatch {
    pub(super) evidence: Vec<Evidence>,
    /// Number of independent signals that show the condition.
    pub(super) signals: usize,
    pub(super) cause: Option<&'static str>,
    /// The remedy for this case, which precedes the remedy of the rule.
    pub(super) remedy: Option<String>,
}

/// Limit of the share of streams with a TTFT above [`SLOW_START`].
const SLOW_TTFT_RATIO: f64 = 0.05;
/// A mean time between tokens from this on, in seconds, is too long without a baseline.
const SLOW_INTER_TOKEN_SECONDS: f64 = 0.2;
/// A p99 of the times between tokens from this on, in seconds, is too long without a baseline.
const SLOW_INTER_TOKEN_P99_SECONDS: f64 = 0.5;
/// A value with this z-score is far from its baseline.
pub(super) const ANOMALY_Z_SCORE: f64 = 6.0;

impl<'a> Evaluation<'a> {
    /// The window in which a condition must hold.
    pub(super) fn fast(&self) -> StepWindow<'a> {
        self.history.window(FAST)
    }

    /// The window for values that need more requests.
    pub(super) fn main(&self) -> StepWindow<'a> {
        self.history.window(LONG_WINDOW)
    }

    /// The baseline of a measure.
    pub(super) fn baseline(&self, measure: WindowMeasure) -> Option<RobustBaseline> {
        self.history.baseline(measure)
    }

    /// The value of a measure in the short window, with its usual value.
    pub(super) fn evidence(&self, measure: WindowMeasure) -> Option<Evidence> {
        let (window, row) = (self.fast(), measure.row());
        Some(Evidence {
            measure: row.name.into(),
            value: window.get(measure)?,
            unit: row.unit.into(),
            usual: self.baseline(measure).map(|usual| usual.median),
            window_seconds: window.seconds(),
        })
    }

    /// The evidence of several measures, without the unknown ones.
    pub(super) fn evidence_for_all(&self, measures: &[WindowMeasure]) -> Vec<Evidence> {
        measures.iter().filter_map(|measure| self.evidence(*measure)).collect()
    }

    /// Whether a measure is at least `times` its usual value, and far from it.
    pub(super) fn has_risen(&self, measure: WindowMeasure, times: f64) -> bool {
        let (Some(value), Some(usual)) = (self.fast().get(measure), self.baseline(measure)) else {
            return false;
        };
        value >= times * usual.median && usual.z(value) >= ANOMALY_Z_SCORE
    }

    /// The evidence that first tokens are late: more than 5 % of the streams have a TTFT above
    /// [`SLOW_START`]; or a mean TTFT, of the gateway or of the engine, is at least [`SLOW_START`],
    /// or at least 0.2 s and twice its usual value. Empty: first tokens are not late.
    pub(super) fn slow_start(&self) -> Vec<Evidence> {
        let is_slow = |measure, limit: f64| {
            self.fast().get(measure).is_some_and(|value| value >= limit)
                || (measure != WindowMeasure::SlowShare
                    && self.has_risen(measure, 2.0)
                    && self.fast().get(measure).is_some_and(|value| value >= 0.2))
        };
        let limits = [
            (WindowMeasure::SlowShare, SLOW_TTFT_RATIO),
            (WindowMeasure::Ttft, SLOW_START),
            (WindowMeasure::EngineTtft, SLOW_START),
        ];
        let slow = limits.into_iter().filter(|(measure, limit)| is_slow(*measure, *limit));
        slow.filter_map(|(measure, _)| self.evidence(measure)).collect()
    }

    /// The evidence that tokens are late: the mean time between tokens is at least 0.2 s or twice
    /// its usual value, or its p99 is at least 0.5 s or three times its usual value. Empty: tokens
    /// are not late.
    pub(super) fn slow_inter_token_evidence(&self) -> Vec<Evidence> {
        let limits = [
            (WindowMeasure::EngineInterToken, SLOW_INTER_TOKEN_SECONDS, 2.0),
            (WindowMeasure::GapP99, SLOW_INTER_TOKEN_P99_SECONDS, 3.0),
        ];
        let is_slow = |measure, limit: f64, times| {
            self.fast().get(measure).is_some_and(|value| value >= limit)
                || self.has_risen(measure, times)
        };
        let slow =
            limits.into_iter().filter(|(measure, limit, times)| is_slow(*measure, *limit, *times));
        slow.filter_map(|(measure, ..)| self.evidence(measure)).collect()
    }

    /// Whether at least two requests wait in the engine in four of five samples.
    pub(super) fn queues(&self) -> bool {
        queues(self.history)
    }
}

/// Whether at least two requests wait in an engine in four of five samples.
pub(super) fn queues(history: &BackendHistory) -> bool {
    let window = history.window(FAST);
    window.has_signal(StepSignal::Waiting) && window.share(StepSignal::Waiting, 2.0) >= 0.8
}

// === impl Found ===

impl RuleMatch {
    /// A condition with this number of signals and this evidence.
    pub(super) fn new(signals: usize, evidence: Vec<Evidence>) -> Self {
        Self { evidence, signals, ..Self::default() }
    }

    /// Adds the cause.
    pub(super) fn because(self, cause: &'static str) -> Self {
        Self { cause: Some(cause), ..self }
    }

    /// Adds a remedy for this case.
    pub(super) fn remedy(self, remedy: Option<String>) -> Self {
        Self { remedy, ..self }
    }
}
