//! The inputs of a rule: the history of one backend, the histories of the other backends, and the tests
//! for harm to clients.

use super::history::{
    BackendHistory, FAST, LONG_WINDOW, RECENT, RobustBaseline, SLOW_START, StepSignal, StepWindow,
    WindowMeasure,
};
use super::verdict::{Evidence, Origin, VerdictSeverity};
use std::borrow::Cow;
use std::time::Duration;

/// The histories from which the rules for one backend are evaluated.
pub(super) struct Evaluation<'a> {
    /// The history of the backend.
    pub(super) history: &'a BackendHistory,
    /// The histories of the other backends that are up.
    pub(super) others: Vec<&'a BackendHistory>,
}

/// The result of a rule: the match, or `None` if the condition does not hold. The error is the list of the
/// data without which the condition cannot be determined.
pub(super) type RuleResult = Result<Option<RuleMatch>, Vec<&'static str>>;

/// The match of a rule: its condition holds at the backend.
#[derive(Debug, Clone, Default)]
pub(super) struct RuleMatch {
    pub(super) evidence: Vec<Evidence>,
    /// Number of independent signals that show the condition.
    pub(super) signals: usize,
    /// The cause. `None`: unknown.
    pub(super) cause: Option<Cow<'static, str>>,
    /// Where the match places the cause. `None`: where its rule places it.
    pub(super) origin: Option<Origin>,
    /// The severity of the match. `None`: that of its rule.
    pub(super) severity: Option<VerdictSeverity>,
    /// A remedy or a fact about this match, which precedes the remedy of the rule. `None`: only the
    /// remedy of the rule applies.
    pub(super) remedy: Option<String>,
    /// The value that `remedy` recommends. `None`: it recommends none.
    pub(super) recommended: Option<u32>,
}

/// Length of the window in which requests must wait in an engine so that the engine has a queue. It is
/// shorter than the window of other conditions, so that a queue leads to a verdict within a minute of its
/// start.
const QUEUE_WINDOW: Duration = Duration::from_secs(45);
/// First tokens count as late if at least this share of the streams has a TTFT above [`SLOW_START`].
const SLOW_TTFT_RATIO: f64 = 0.05;
/// Tokens count as late if the mean time between tokens is at least this many seconds, even if such a mean
/// is usual for the backend.
const SLOW_INTER_TOKEN_SECONDS: f64 = 0.2;
/// Tokens count as late if the p99 of the times between tokens is at least this many seconds, even if such a
/// p99 is usual for the backend.
const SLOW_INTER_TOKEN_P99_SECONDS: f64 = 0.5;
/// Minimum z-score with which a value counts as far from its baseline.
pub(super) const ANOMALY_Z_SCORE: f64 = 6.0;

impl<'a> Evaluation<'a> {
    /// The window of the last minute. A rule matches if its condition holds in this window.
    pub(super) fn short_window(&self) -> StepWindow<'a> {
        self.history.window(FAST)
    }

    /// The window of the last 20 seconds. A rule does not match if its condition has ended in this window.
    pub(super) fn recent_window(&self) -> StepWindow<'a> {
        self.history.window(RECENT)
    }

    /// The window of the last five minutes, for values that need more requests.
    pub(super) fn long_window(&self) -> StepWindow<'a> {
        self.history.window(LONG_WINDOW)
    }

    /// The baseline of a measure. `None`: unknown.
    pub(super) fn baseline(&self, measure: WindowMeasure) -> Option<RobustBaseline> {
        self.history.baseline(measure)
    }

    /// The value of a measure in the short window, with its usual value. `None`: the value is
    /// unknown.
    pub(super) fn evidence(&self, measure: WindowMeasure) -> Option<Evidence> {
        let window = self.short_window();
        Some(Evidence {
            measure: measure.as_str().into(),
            value: window.get(measure)?,
            unit: measure.unit().into(),
            usual: self.baseline(measure).map(|usual| usual.median),
            window_seconds: window.seconds(),
        })
    }

    /// The evidence of several measures. Measures with an unknown value are omitted.
    pub(super) fn evidence_for_all(&self, measures: &[WindowMeasure]) -> Vec<Evidence> {
        measures
            .iter()
            .filter_map(|measure| self.evidence(*measure))
            .collect()
    }

    /// Whether a measure in the short window is at least `factor` times its usual value, with a
    /// z-score of at least [`ANOMALY_Z_SCORE`]. False if the value or its baseline is unknown.
    pub(super) fn has_risen(&self, measure: WindowMeasure, factor: f64) -> bool {
        let value = self.short_window().get(measure);
        let (Some(value), Some(baseline)) = (value, self.baseline(measure)) else {
            return false;
        };
        value >= factor * baseline.median && baseline.z_score(value) >= ANOMALY_Z_SCORE
    }

    /// The evidence that first tokens are late. They are late if at least 5 % of the streams have a
    /// TTFT above [`SLOW_START`]. They are also late if the mean TTFT, of the gateway or of the
    /// engine, is at least [`SLOW_START`], or is at least 0.2 s and has risen to twice its usual
    /// value. Empty: first tokens are not late.
    pub(super) fn slow_start_evidence(&self) -> Vec<Evidence> {
        let is_slow = |measure, limit: f64| {
            self.short_window()
                .get(measure)
                .is_some_and(|value| value >= limit)
                || (measure != WindowMeasure::SlowShare
                    && self.has_risen(measure, 2.0)
                    && self
                        .short_window()
                        .get(measure)
                        .is_some_and(|value| value >= 0.2))
        };
        let limits = [
            (WindowMeasure::SlowShare, SLOW_TTFT_RATIO),
            (WindowMeasure::Ttft, SLOW_START),
            (WindowMeasure::EngineTtft, SLOW_START),
        ];
        let slow = limits
            .into_iter()
            .filter(|(measure, limit)| is_slow(*measure, *limit));
        slow.filter_map(|(measure, _)| self.evidence(measure))
            .collect()
    }

    /// The evidence that tokens are late. They are late if the mean time between tokens is at least
    /// 0.2 s or has risen to twice its usual value. They are also late if the p99 of these times is
    /// at least 0.5 s or has risen to three times its usual value. Empty: tokens are not late.
    pub(super) fn slow_inter_token_evidence(&self) -> Vec<Evidence> {
        let limits = [
            (
                WindowMeasure::EngineInterToken,
                SLOW_INTER_TOKEN_SECONDS,
                2.0,
            ),
            (WindowMeasure::GapP99, SLOW_INTER_TOKEN_P99_SECONDS, 3.0),
        ];
        let is_slow = |measure, limit: f64, factor| {
            self.short_window()
                .get(measure)
                .is_some_and(|value| value >= limit)
                || self.has_risen(measure, factor)
        };
        let slow = limits
            .into_iter()
            .filter(|(measure, limit, factor)| is_slow(*measure, *limit, *factor));
        slow.filter_map(|(measure, ..)| self.evidence(measure))
            .collect()
    }

    /// The other backends that are up and serve the same models.
    pub(super) fn peers(&self) -> impl Iterator<Item = &'a BackendHistory> {
        self.others
            .iter()
            .copied()
            .filter(|other| other.has_models_of(self.history))
    }

    /// Whether the engine of the backend has a queue, as [`has_queue`] defines it.
    pub(super) fn has_queue(&self) -> bool {
        has_queue(self.history)
    }
}

/// The window of the last `span` of each of these histories.
pub(super) fn windows<'a>(
    histories: impl IntoIterator<Item = &'a BackendHistory>,
    span: Duration,
) -> Vec<StepWindow<'a>> {
    histories
        .into_iter()
        .map(|history| history.window(span))
        .collect()
}

/// Whether the engine of a backend has a queue: in at least 80 % of the samples of [`QUEUE_WINDOW`], at
/// least two requests waited in the engine. False if fewer than half of these samples are known.
pub(super) fn has_queue(history: &BackendHistory) -> bool {
    let window = history.window(QUEUE_WINDOW);
    window.has_signal(StepSignal::Waiting)
        && window.fraction_at_least(StepSignal::Waiting, 2.0) >= 0.8
}

impl RuleMatch {
    /// Creates a match with this number of independent signals and this evidence.
    pub(super) fn new(signals: usize, evidence: Vec<Evidence>) -> Self {
        Self {
            evidence,
            signals,
            ..Self::default()
        }
    }

    /// Sets the cause of the match.
    pub(super) fn because(self, cause: impl Into<Cow<'static, str>>) -> Self {
        Self {
            cause: Some(cause.into()),
            ..self
        }
    }

    /// Sets where the match places the cause.
    pub(super) fn at(self, origin: Origin) -> Self {
        let origin = Some(origin);
        Self { origin, ..self }
    }

    /// Sets the remedy for this match.
    pub(super) fn remedy(self, remedy: Option<String>) -> Self {
        Self { remedy, ..self }
    }
}
