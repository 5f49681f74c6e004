//! A range of steps and its statistics.

use super::sample::EVERY;
use super::step::{HistoryStep, StepSignal};
use std::collections::VecDeque;
use std::time::Duration;
use tokenweir_core::histogram::sample_quantile;

/// The window in which a condition must hold.
pub const FAST: Duration = Duration::from_mins(1);
/// The window for lengths of sequences and for correlated pairs.
pub const LONG_WINDOW: Duration = Duration::from_mins(5);

/// A range of steps that ends with the newest one.
#[derive(Clone, Copy)]
pub(crate) struct StepWindow<'a> {
    steps: &'a VecDeque<HistoryStep>,
    start: usize,
}

/// A function that reads a value from a step.
pub(crate) type StepValueFn = fn(&HistoryStep) -> Option<f64>;

impl<'a> StepWindow<'a> {
    /// The last steps, from the step with this index on.
    pub(super) fn starting_at(steps: &'a VecDeque<HistoryStep>, start: usize) -> Self {
        Self { steps, start }
    }

    /// Number of steps.
    pub(crate) fn len(&self) -> usize {
        self.steps.len() - self.start
    }

    /// Length in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.len() as f64 * EVERY.as_secs_f64()
    }

    /// The known values of a signal.
    pub(crate) fn values(&self, signal: StepSignal) -> impl Iterator<Item = f64> {
        self.steps.range(self.start..).filter_map(move |step| step.get(signal))
    }

    /// The value of the newest step.
    pub(crate) fn latest(&self, signal: StepSignal) -> Option<f64> {
        self.steps.back()?.get(signal)
    }

    /// The known values of a signal in steps in which neither the engine nor the gateway has a
    /// request there.
    pub(crate) fn idle_values(&self, signal: StepSignal) -> impl Iterator<Item = f64> {
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
    pub(crate) fn foreign_requests(&self) -> impl Iterator<Item = f64> {
        self.steps.range(self.start..).filter_map(|step| {
            let in_engine = step.get(StepSignal::Running)? + step.get(StepSignal::Waiting)?;
            Some(in_engine - step.get(StepSignal::InFlight)?)
        })
    }

    /// Two values of each step that has both.
    pub(crate) fn pairs(&self, first: StepValueFn, second: StepValueFn) -> Vec<(f64, f64)> {
        let steps = self.steps.range(self.start..);
        steps.filter_map(|step| Some((first(step)?, second(step)?))).collect()
    }

    /// Whether at least half of the steps have a value of the signal.
    pub(crate) fn has_signal(&self, signal: StepSignal) -> bool {
        self.len() > 0 && self.values(signal).count() * 2 >= self.len()
    }

    /// The sum. `None`: no value is known.
    pub(crate) fn sum(&self, signal: StepSignal) -> Option<f64> {
        let mut values = self.values(signal).peekable();
        values.peek().is_some().then(|| values.sum())
    }

    /// The mean. `None`: no value is known.
    pub(crate) fn mean(&self, signal: StepSignal) -> Option<f64> {
        let count = self.values(signal).count();
        Some(self.sum(signal)? / count as f64)
    }

    /// The maximum. `None`: no value is known.
    pub(crate) fn max(&self, signal: StepSignal) -> Option<f64> {
        self.values(signal).max_by(f64::total_cmp)
    }

    /// A quantile, from 0 to 1. `None`: no value is known.
    pub(crate) fn quantile(&self, signal: StepSignal, q: f64) -> Option<f64> {
        sample_quantile(&mut self.values(signal).collect::<Vec<_>>(), q)
    }

    /// The share of known values of a signal that are at least `least`; 0 if none is known.
    pub(crate) fn share(&self, signal: StepSignal, least: f64) -> f64 {
        fraction_at_least(self.values(signal), least)
    }

    /// The share of known values of `point` that are at least `least`; 0 if none is known.
    pub(crate) fn point_fraction_at_least(&self, point: StepValueFn, least: f64) -> f64 {
        fraction_at_least(self.steps.range(self.start..).filter_map(point), least)
    }

    /// Growth per second.
    pub(crate) fn rate(&self, signal: StepSignal) -> Option<f64> {
        let elapsed = self.sum(StepSignal::Elapsed).filter(|elapsed| *elapsed > 0.0)?;
        Some(self.sum(signal)? / elapsed)
    }

    /// The ratio of two sums. `None`: the second sum is less than `least`.
    pub(crate) fn ratio(&self, part: StepSignal, whole: StepSignal, least: f64) -> Option<f64> {
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
