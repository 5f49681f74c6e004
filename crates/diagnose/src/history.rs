//! The history of one backend, of fixed size: the steps of the last five minutes, and each measure
//! of the last hour by the minute.

use super::measure::{self, MEASURES, WindowMeasure};
use super::sample::DiagnosisSample;
use super::statistics::{RobustBaseline, quantile};
use super::step::{HistoryStep, StepSignal};
use super::{EVERY, LONG_WINDOW};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokenweir_core::dialect::EngineLoad;

/// The history of one backend.
#[derive(Debug)]
pub struct BackendHistory {
    steps: VecDeque<HistoryStep>,
    last_sample: Option<DiagnosisSample>,
    minutes: VecDeque<MinuteMeasures>,
    /// The baseline of each measure, from these minutes.
    baselines: [Option<RobustBaseline>; measure::COUNT],
    /// Start of the current minute.
    minute_start: Option<Instant>,
    /// Time of the first sample after the last restart of the process.
    restarted_at: Option<Instant>,
}

/// The value of each measure in one minute. NaN: unknown.
type MinuteMeasures = [f32; measure::COUNT];

/// A range of steps that ends with the newest one.
#[derive(Clone, Copy)]
pub(super) struct StepWindow<'a> {
    steps: &'a VecDeque<HistoryStep>,
    start: usize,
}

/// A function that reads a value from a step.
pub(super) type StepValueFn = fn(&HistoryStep) -> Option<f64>;

/// Number of steps in the history.
const MAX_STEPS: usize = (LONG_WINDOW.as_secs() / EVERY.as_secs()) as usize;
const MINUTE: Duration = Duration::from_mins(1);
/// Number of minutes in the history.
const MAX_MINUTES: usize = 60;
/// Minimum number of minutes for a baseline.
const MIN_BASELINE_MINUTES: usize = 5;

// === impl History ===

impl BackendHistory {
    /// An empty history.
    pub fn new() -> Self {
        Self {
            steps: VecDeque::with_capacity(MAX_STEPS),
            last_sample: None,
            minutes: VecDeque::with_capacity(MAX_MINUTES),
            baselines: [None; measure::COUNT],
            minute_start: None,
            restarted_at: None,
        }
    }

    /// Maximum memory of a history, in bytes.
    pub const fn max_bytes() -> usize {
        let steps = MAX_STEPS * size_of::<HistoryStep>();
        let minutes = MAX_MINUTES * size_of::<MinuteMeasures>();
        size_of::<Self>() + steps + minutes
    }

    /// Adds a sample. `is_healthy`: no condition holds, so the values may enter the baselines.
    pub fn push(&mut self, sample: DiagnosisSample, is_healthy: bool) {
        let pages = self.last_sample.and_then(|last| Some((last.page?, sample.page?)));
        if pages.is_some_and(|(before, page)| page.is_restart_of(&before)) {
            self.restarted_at = Some(sample.at);
            self.minutes.clear();
            self.baselines = [None; measure::COUNT];
            self.minute_start = None;
        }
        if self.steps.len() == MAX_STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(HistoryStep::new(&sample, self.last_sample.as_ref()));
        // The next page is compared with the last page, even if samples between have no page.
        let page = sample.page.or_else(|| self.last_sample.and_then(|last| last.page));
        self.last_sample = Some(DiagnosisSample { page, ..sample });
        self.update_baselines(sample.at, is_healthy);
    }

    /// Adds the measures of a completed minute to the baselines, if no condition held in it.
    fn update_baselines(&mut self, now: Instant, is_healthy: bool) {
        let start = *self.minute_start.get_or_insert(now);
        if !is_healthy {
            self.minute_start = Some(now);
            return;
        }
        if now.saturating_duration_since(start) < MINUTE {
            return;
        }
        self.minute_start = Some(now);
        let window = self.window(MINUTE);
        let minute =
            MEASURES.map(|row| row.value_in(&window).map_or(f32::NAN, |value| value as f32));
        if self.minutes.len() == MAX_MINUTES {
            self.minutes.pop_front();
        }
        self.minutes.push_back(minute);
        self.baselines = std::array::from_fn(|measure| {
            let minutes = self.minutes.iter().map(|minute| f64::from(minute[measure]));
            RobustBaseline::from_values(
                minutes.filter(|value| !value.is_nan()),
                MIN_BASELINE_MINUTES,
            )
        });
    }

    /// The steps of the last `span`.
    pub(super) fn window(&self, span: Duration) -> StepWindow<'_> {
        let now = self.steps.back().map(|step| step.at);
        let is_old = |step: &&HistoryStep| {
            now.is_some_and(|now| now.saturating_duration_since(step.at) >= span)
        };
        StepWindow { steps: &self.steps, start: self.steps.iter().take_while(is_old).count() }
    }

    /// The baseline of a measure. `None`: fewer than five minutes of data.
    pub(super) fn baseline(&self, measure: WindowMeasure) -> Option<RobustBaseline> {
        self.baselines[measure as usize]
    }

    /// Whether the backend was up in the last sample.
    pub(super) fn is_up(&self) -> bool {
        self.last_sample.is_some_and(|last| last.is_up)
    }

    /// Whether the process restarted less than `span` ago.
    pub(super) fn has_restarted_within(&self, span: Duration) -> bool {
        let now = self.steps.back().map(|step| step.at);
        let age = |then| Some(now?.saturating_duration_since(then));
        self.restarted_at.and_then(age).is_some_and(|age| age < span)
    }

    /// The load of the last page, for values that do not change.
    pub(super) fn page(&self) -> Option<&EngineLoad> {
        self.last_sample.as_ref()?.page.as_ref()
    }
}

impl Default for BackendHistory {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Window ===

impl StepWindow<'_> {
    /// The value of a measure in the window.
    pub(super) fn get(&self, measure: WindowMeasure) -> Option<f64> {
        measure.row().value_in(self)
    }

    /// Number of steps.
    pub(super) fn len(&self) -> usize {
        self.steps.len() - self.start
    }

    /// Length in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.len() as f64 * EVERY.as_secs_f64()
    }

    /// The known values of a signal.
    pub(super) fn values(&self, signal: StepSignal) -> impl Iterator<Item = f64> {
        self.steps.range(self.start..).filter_map(move |step| step.get(signal))
    }

    /// The value of the newest step.
    pub(super) fn latest(&self, signal: StepSignal) -> Option<f64> {
        self.steps.back()?.get(signal)
    }

    /// The known values of a signal in steps in which neither the engine nor the gateway has a
    /// request there.
    pub(super) fn idle_values(&self, signal: StepSignal) -> impl Iterator<Item = f64> {
        let is_zero =
            |step: &HistoryStep, signal| step.get(signal).is_some_and(|value| value < 0.5);
        let is_idle = move |step: &&HistoryStep| {
            is_zero(step, StepSignal::Running)
                && is_zero(step, StepSignal::Waiting)
                && step.get(StepSignal::InFlight).is_none_or(|value| value < 0.5)
        };
        self.steps.range(self.start..).filter(is_idle).filter_map(move |step| step.get(signal))
    }

    /// Requests in the engine minus the gateway's own requests there, by step.
    pub(super) fn foreign_requests(&self) -> impl Iterator<Item = f64> {
        self.steps.range(self.start..).filter_map(|step| {
            let in_engine = step.get(StepSignal::Running)? + step.get(StepSignal::Waiting)?;
            Some(in_engine - step.get(StepSignal::InFlight)?)
        })
    }

    /// Two values of each step that has both.
    pub(super) fn pairs(&self, first: StepValueFn, second: StepValueFn) -> Vec<(f64, f64)> {
        let steps = self.steps.range(self.start..);
        steps.filter_map(|step| Some((first(step)?, second(step)?))).collect()
    }

    /// Whether at least half of the steps have a value of the signal.
    pub(super) fn has_signal(&self, signal: StepSignal) -> bool {
        self.len() > 0 && self.values(signal).count() * 2 >= self.len()
    }

    /// The sum. `None`: no value is known.
    pub(super) fn sum(&self, signal: StepSignal) -> Option<f64> {
        let mut values = self.values(signal).peekable();
        values.peek().is_some().then(|| values.sum())
    }

    /// The mean. `None`: no value is known.
    pub(super) fn mean(&self, signal: StepSignal) -> Option<f64> {
        let count = self.values(signal).count();
        Some(self.sum(signal)? / count as f64)
    }

    /// The maximum. `None`: no value is known.
    pub(super) fn max(&self, signal: StepSignal) -> Option<f64> {
        self.values(signal).max_by(f64::total_cmp)
    }

    /// A quantile, from 0 to 1. `None`: no value is known.
    pub(super) fn quantile(&self, signal: StepSignal, q: f64) -> Option<f64> {
        quantile(&mut self.values(signal).collect::<Vec<_>>(), q)
    }

    /// The share of known values of a signal that are at least `least`; 0 if none is known.
    pub(super) fn share(&self, signal: StepSignal, least: f64) -> f64 {
        fraction_at_least(self.values(signal), least)
    }

    /// The share of known values of `point` that are at least `least`; 0 if none is known.
    pub(super) fn point_fraction_at_least(&self, point: StepValueFn, least: f64) -> f64 {
        fraction_at_least(self.steps.range(self.start..).filter_map(point), least)
    }

    /// Growth per second.
    pub(super) fn rate(&self, signal: StepSignal) -> Option<f64> {
        let elapsed = self.sum(StepSignal::Elapsed).filter(|elapsed| *elapsed > 0.0)?;
        Some(self.sum(signal)? / elapsed)
    }

    /// The ratio of two sums. `None`: the second sum is less than `least`.
    pub(super) fn ratio(&self, part: StepSignal, whole: StepSignal, least: f64) -> Option<f64> {
        let whole = self.sum(whole).filter(|whole| *whole >= least && *whole > 0.0)?;
        Some(self.sum(part)? / whole)
    }
}

fn fraction_at_least(values: impl Iterator<Item = f64>, least: f64) -> f64 {
    let (mut count, mut matching) = (0_u32, 0_u32);
    for value in values {
        count += 1;
        matching += u32::from(value >= least);
    }
    f64::from(matching) / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::super::sample::test_instant;
    use super::*;

    fn sample_at(start: Instant, seconds: u64, tokens: f64) -> DiagnosisSample {
        let load = EngineLoad { generation_tokens: Some(tokens), ..EngineLoad::default() };
        let at = start + Duration::from_secs(seconds);
        DiagnosisSample { at, is_up: true, page: Some(load), gateway: None }
    }

    #[test]
    fn an_hour_of_a_backend_takes_less_than_64_kib() {
        assert!(BackendHistory::max_bytes() < 64 << 10, "{}", BackendHistory::max_bytes());
        let mut history = BackendHistory::new();
        let start = test_instant();
        (0..1_000).for_each(|n| history.push(sample_at(start, 5 * n, n as f64), true));
        assert_eq!((history.steps.len(), history.minutes.len()), (MAX_STEPS, MAX_MINUTES));
        let capacities = (history.steps.capacity(), history.minutes.capacity());
        assert_eq!(capacities, (MAX_STEPS, MAX_MINUTES));
    }

    #[test]
    fn a_restart_is_no_growth_and_clears_the_baselines() {
        let mut history = BackendHistory::new();
        let start = test_instant();
        (0..100).for_each(|n| history.push(sample_at(start, 5 * n, 50.0 * n as f64), true));
        let rate = history.window(MINUTE).rate(StepSignal::GenerationTokens);
        assert!(rate.is_some_and(|rate| (rate - 10.0).abs() < 1e-6), "{rate:?}");
        assert!(history.baseline(WindowMeasure::GenerationRate).is_some());
        history.push(sample_at(start, 500, 0.0), true);
        assert!(history.baseline(WindowMeasure::GenerationRate).is_none());
        assert!(history.has_restarted_within(MINUTE));
        let after = history.window(MINUTE).rate(StepSignal::GenerationTokens);
        assert!(after.is_some_and(|rate| (rate - 10.0).abs() < 1e-6), "{after:?}");
    }

    #[test]
    fn a_minute_with_a_verdict_is_not_in_the_baseline() {
        let mut history = BackendHistory::new();
        let start = test_instant();
        (0..100).for_each(|n| history.push(sample_at(start, 5 * n, 50.0 * n as f64), false));
        assert!(history.minutes.is_empty());
    }
}
