//! What a rule judges: one replica among the others, and the harm that comes to whoever uses it.

use super::history::{History, Window};
use super::measure::Measure;
use super::statistics::Usual;
use super::step::Signal;
use super::verdict::Evidence;
use super::{FAST, MAIN};

/// One replica among the others.
pub(super) struct Case<'a> {
    pub(super) history: &'a History,
    /// The others that can be sent requests.
    pub(super) others: Vec<&'a History>,
}

/// What a rule says of a case.
pub(super) enum Judgement {
    /// It is not so.
    Absent,
    /// It cannot be told for this reason.
    Unknown(&'static str),
    /// It is so.
    Present(Found),
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    pub(super) evidence: Vec<Evidence>,
    /// Signals that say so and do not depend on each other.
    pub(super) signals: usize,
    pub(super) cause: Option<&'static str>,
    /// What to do in this case, before what the rule says in all.
    pub(super) remedy: Option<String>,
}

/// A mean time to first token that is too long for a user, in seconds, where nothing is usual.
pub const SLOW_START: f64 = 2.0;
/// The share of streams that may begin later than that.
const SLOW_SHARE: f64 = 0.05;
/// A mean time between tokens that is too long for a reader, in seconds.
const SLOW_TOKENS: f64 = 0.2;
/// A p99 of it.
const SLOW_TOKENS_P99: f64 = 0.5;
/// How many deviations from what is usual are too many.
pub(super) const FAR: f64 = 6.0;

impl<'a> Case<'a> {
    /// The window in which a condition must show.
    pub(super) fn fast(&self) -> Window<'a> {
        self.history.window(FAST)
    }

    /// The window for what needs more requests.
    pub(super) fn main(&self) -> Window<'a> {
        self.history.window(MAIN)
    }

    /// What is usual of a measure.
    pub(super) fn usual(&self, measure: Measure) -> Option<Usual> {
        self.history.usual(measure)
    }

    /// A measure of the fast window, with what is usual.
    pub(super) fn evidence(&self, measure: Measure) -> Option<Evidence> {
        let window = self.fast();
        let usual = self.usual(measure).map(|usual| usual.median);
        Some(Evidence::new(measure, window.get(measure)?, usual, window.seconds()))
    }

    /// The evidence of several measures, as far as they are known.
    pub(super) fn evidences(&self, measures: &[Measure]) -> Vec<Evidence> {
        measures.iter().filter_map(|measure| self.evidence(*measure)).collect()
    }

    /// Whether a measure is at least `times` what is usual of it, and far from it.
    pub(super) fn has_risen(&self, measure: Measure, times: f64) -> bool {
        let (Some(value), Some(usual)) = (self.fast().get(measure), self.usual(measure)) else {
            return false;
        };
        value >= times * usual.median && usual.z(value) >= FAR
    }

    /// Streams begin too late: more than one of twenty later than [`SLOW_START`]; by the engine's
    /// own count where no gateway sees them, if the mean is later than that; or all of them at
    /// twice what is usual.
    pub(super) fn slow_start(&self) -> Vec<Evidence> {
        let is_slow = |measure, limit: f64| {
            self.fast().get(measure).is_some_and(|value| value >= limit)
                || (measure != Measure::SlowShare
                    && self.has_risen(measure, 2.0)
                    && self.fast().get(measure).is_some_and(|value| value >= 0.2))
        };
        let limits = [
            (Measure::SlowShare, SLOW_SHARE),
            (Measure::Ttft, SLOW_START),
            (Measure::EngineTtft, SLOW_START),
        ];
        let slow = limits.into_iter().filter(|(measure, limit)| is_slow(*measure, *limit));
        slow.filter_map(|(measure, _)| self.evidence(measure)).collect()
    }

    /// Streams go on too slowly: longer than a reader likes, or at twice what is usual.
    pub(super) fn slow_tokens(&self) -> Vec<Evidence> {
        let limits =
            [(Measure::EngineGap, SLOW_TOKENS, 2.0), (Measure::GapP99, SLOW_TOKENS_P99, 3.0)];
        let is_slow = |measure, limit: f64, times| {
            self.fast().get(measure).is_some_and(|value| value >= limit)
                || self.has_risen(measure, times)
        };
        let slow =
            limits.into_iter().filter(|(measure, limit, times)| is_slow(*measure, *limit, *times));
        slow.filter_map(|(measure, ..)| self.evidence(measure)).collect()
    }

    /// Whether requests wait in the engine for most of the window.
    pub(super) fn queues(&self) -> bool {
        queues(self.history)
    }
}

/// Whether requests wait in an engine for most of the window.
pub(super) fn queues(history: &History) -> bool {
    let window = history.window(FAST);
    window.tells(Signal::Waiting) && window.share(Signal::Waiting, 2.0) >= 0.8
}

// === impl Found ===

impl Found {
    /// With these signals and this evidence.
    pub(super) fn new(signals: usize, evidence: Vec<Evidence>) -> Self {
        Self { evidence, signals, ..Self::default() }
    }

    /// For this cause.
    pub(super) fn because(self, cause: &'static str) -> Self {
        Self { cause: Some(cause), ..self }
    }

    /// With this to do first.
    pub(super) fn remedy(self, remedy: Option<String>) -> Self {
        Self { remedy, ..self }
    }
}
