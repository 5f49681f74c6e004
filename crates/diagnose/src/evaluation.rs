//! The input of a rule: the history of one backend, the histories of the other backends, and tests for harm to
//! clients.

use super::history::{
    BackendHistory, FAST, LONG_WINDOW, RECENT, RobustBaseline, SLOW_START, StepSignal, StepWindow,
    WindowMeasure,
};
use super::verdict::{Evidence, Origin, VerdictSeverity};
use std::borrow::Cow;
use std::time::Duration;

/// The histories from which the rules for one backend are evaluated.
pub struct Evaluation<'a> {
    pub(super) history: &'a BackendHistory,
    /// The histories of the other backends that are up.
    pub(super) others: Vec<&'a BackendHistory>,
    /// The last minute. A rule matches if its condition holds in this window.
    pub(super) minute: StepWindow<'a>,
    /// The last 20 seconds. A rule does not match if its condition has ended in this window.
    pub(super) recent: StepWindow<'a>,
    /// The last five minutes, for values that need more requests.
    pub(super) long: StepWindow<'a>,
}

/// The result of a rule: the match, or `None` if the condition does not hold. The error lists the missing data.
pub(super) type RuleResult = Result<Option<RuleMatch>, Vec<&'static str>>;

/// The match of a rule: its condition holds at the backend.
#[derive(Debug, Clone, Default)]
pub struct RuleMatch {
    pub(super) evidence: Vec<Evidence>,
    /// Number of independent signals that show the condition.
    pub(super) signals: usize,
    /// The cause as a clause for texts. `None`: the evidence does not show the cause.
    pub(super) cause: Option<Cow<'static, str>>,
    /// The place of the cause. `None`: the default of the rule.
    pub(super) origin: Option<Origin>,
    /// The severity of the match. `None`: the default of the rule.
    pub(super) severity: Option<VerdictSeverity>,
    /// A remedy or a fact for this match, in front of the remedy of the rule. `None`: only the remedy of the
    /// rule applies.
    pub(super) remedy: Option<String>,
    /// The value that `remedy` recommends. `None`: it recommends none.
    pub(super) recommended: Option<u32>,
}

/// Length of the window in which requests must wait in the engine for a queue. It is shorter than other
/// windows, so that a queue leads to a verdict within a minute.
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
    pub(super) fn new(history: &'a BackendHistory, others: Vec<&'a BackendHistory>) -> Self {
        Self {
            history,
            others,
            minute: history.window(FAST),
            recent: history.window(RECENT),
            long: history.window(LONG_WINDOW),
        }
    }

    /// The usual value and deviation of a measure. `None`: fewer than five healthy minutes are known.
    pub(super) fn baseline(&self, measure: WindowMeasure) -> Option<RobustBaseline> {
        self.history.baseline(measure)
    }

    /// The value of a measure in the short window, with its usual value. `None`: the value is
    /// unknown.
    pub(super) fn evidence(&self, measure: WindowMeasure) -> Option<Evidence> {
        let window = self.minute;
        let usual = self.baseline(measure).map(|usual| usual.median);
        let value = window.get(measure)?;
        Some(Evidence::of(measure, value, usual, window.seconds()))
    }

    /// A match with this number of independent signals and the evidence of these measures. Measures with an unknown
    /// value are omitted.
    pub(super) fn found(&self, signals: usize, measures: &[WindowMeasure]) -> RuleMatch {
        let evidence = measures.iter().filter_map(|it| self.evidence(*it));
        RuleMatch::new(signals, evidence.collect())
    }

    /// Whether a measure in the short window is at least `factor` times its usual value, with a
    /// z-score of at least [`ANOMALY_Z_SCORE`]. False if the value or its baseline is unknown.
    pub(super) fn has_risen(&self, measure: WindowMeasure, factor: f64) -> bool {
        let value = self.minute.get(measure);
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
        let share = self.evidence(WindowMeasure::SlowShare);
        let share = share.filter(|it| it.value >= SLOW_TTFT_RATIO);
        let means = [WindowMeasure::Ttft, WindowMeasure::EngineTtft];
        let means = means.map(|mean| self.slow(mean, SLOW_START, 2.0, 0.2));
        share
            .into_iter()
            .chain(means.into_iter().flatten())
            .collect()
    }

    /// The evidence that tokens are late. They are late if the mean time between tokens is at least
    /// 0.2 s or has risen to twice its usual value. They are also late if the p99 of these times is
    /// at least 0.5 s or has risen to three times its usual value. Empty: tokens are not late.
    pub(super) fn slow_inter_token_evidence(&self) -> Vec<Evidence> {
        let mean = WindowMeasure::EngineInterToken;
        let mean = self.slow(mean, SLOW_INTER_TOKEN_SECONDS, 2.0, 0.0);
        let p99 = WindowMeasure::GapP99;
        let p99 = self.slow(p99, SLOW_INTER_TOKEN_P99_SECONDS, 3.0, 0.0);
        mean.into_iter().chain(p99).collect()
    }

    /// The evidence that a time is at least `limit`, or at least `least` and `factor` times its usual value. `None`:
    /// it is not, or it is unknown.
    fn slow(
        &self,
        measure: WindowMeasure,
        limit: f64,
        factor: f64,
        least: f64,
    ) -> Option<Evidence> {
        let found = self.evidence(measure)?;
        let has_risen = found.value >= least && self.has_risen(measure, factor);
        (found.value >= limit || has_risen).then_some(found)
    }

    /// The other backends that are up and serve the same models.
    pub(super) fn peers(&self) -> impl Iterator<Item = &'a BackendHistory> {
        self.others
            .iter()
            .copied()
            .filter(|other| other.has_models_of(self.history))
    }

    /// Whether the engine of the backend has a queue: in at least 80 % of the samples of [`QUEUE_WINDOW`], at
    /// least two requests waited in the engine. False if fewer than half of these samples are known.
    pub(super) fn has_queue(&self) -> bool {
        let window = self.history.window(QUEUE_WINDOW);
        window.has_signal(StepSignal::Waiting)
            && window.fraction_at_least(StepSignal::Waiting, 2.0) >= 0.8
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

impl RuleMatch {
    pub(super) fn new(signals: usize, evidence: Vec<Evidence>) -> Self {
        Self {
            evidence,
            signals,
            ..Self::default()
        }
    }

    pub(super) fn because(self, cause: impl Into<Cow<'static, str>>) -> Self {
        Self {
            cause: Some(cause.into()),
            ..self
        }
    }

    /// Sets the place of the cause.
    pub(super) fn at(self, origin: Origin) -> Self {
        let origin = Some(origin);
        Self { origin, ..self }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, ..self }
    }

    /// Makes the match a warning, whatever the severity of its rule is.
    pub(super) fn warning(self) -> Self {
        let severity = Some(VerdictSeverity::Warning);
        Self { severity, ..self }
    }

    pub(super) fn with(mut self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        self.evidence.extend(evidence);
        self
    }
}

impl Evidence {
    pub(super) fn of(measure: WindowMeasure, value: f64, usual: Option<f64>, seconds: f64) -> Self {
        Self {
            usual,
            ..Self::new(measure.as_str(), value, measure.unit(), seconds)
        }
    }
}
