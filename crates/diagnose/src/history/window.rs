//! A window of steps, and statistics of its values.

use super::sample::EVERY;
use super::signals::StepSignal;
use super::step::HistoryStep;
use std::collections::VecDeque;
use std::time::Duration;
use tokenweir_protocol::histogram::sample_quantile;

/// Length of the short window. A rule matches if its condition holds in this window.
pub const FAST: Duration = Duration::from_mins(1);
/// Length of the window in which a condition must still hold. Therefore a verdict ends within a minute after
/// its cause.
pub(crate) const RECENT: Duration = Duration::from_secs(20);
/// Length of the long window, which is used for the lengths of sequences and for backends with few requests.
pub const LONG_WINDOW: Duration = Duration::from_mins(5);

/// The steps of the history from a start index to the newest step.
#[derive(Clone, Copy)]
pub(crate) struct StepWindow<'a> {
    steps: &'a VecDeque<HistoryStep>,
    /// Index of the first step of the window.
    start: usize,
}

/// A function that reads a value from a step.
pub(crate) type StepValueFn = fn(&HistoryStep) -> Option<f64>;

impl<'a> StepWindow<'a> {
    /// The steps from the index `start` to the newest step.
    pub(super) fn starting_at(steps: &'a VecDeque<HistoryStep>, start: usize) -> Self {
        Self { steps, start }
    }

    /// The steps, the oldest first.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &'a HistoryStep> + use<'a> {
        self.steps.range(self.start..)
    }

    pub(crate) fn len(&self) -> usize {
        self.steps.len() - self.start
    }

    /// Length of the window in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.len() as f64 * EVERY.as_secs_f64()
    }

    pub(crate) fn values(&self, signal: StepSignal) -> impl Iterator<Item = f64> {
        self.steps().filter_map(move |step| step.get(signal))
    }

    /// The value of a signal in the newest step. `None`: unknown.
    pub(crate) fn latest(&self, signal: StepSignal) -> Option<f64> {
        self.steps.back()?.get(signal)
    }

    /// The known values of a signal in idle steps. A step is idle if the engine runs no request and this
    /// gateway has none at the backend.
    pub(crate) fn idle_values(&self, signal: StepSignal) -> impl Iterator<Item = f64> {
        self.steps().filter_map(move |step| {
            let in_engine = step
                .get(StepSignal::Running)?
                .max(step.get(StepSignal::Waiting)?);
            let in_flight = step.get(StepSignal::InFlight).unwrap_or(0.0);
            if in_engine.max(in_flight) < 0.5 {
                step.get(signal)
            } else {
                None
            }
        })
    }

    /// Whether the backend had no requests in any step: the numbers of requests that the engine and the
    /// gateway report are zero, and no request began or ended. False if a step has neither number.
    pub(crate) fn has_no_load(&self) -> bool {
        let signals = [
            StepSignal::Running,
            StepSignal::InFlight,
            StepSignal::Waiting,
            StepSignal::FirstOutputs,
            StepSignal::Finished,
            StepSignal::GenerationTokens,
        ];
        self.steps().all(|step| {
            let values = signals.map(|signal| step.get(signal));
            let has_gauge = values[0].or(values[1]).is_some();
            has_gauge && values.iter().flatten().all(|value| *value < 0.5)
        })
    }

    /// For each step: the number of requests in the engine minus the number of requests of this
    /// gateway at the backend. A step in which one of the numbers is unknown is omitted.
    pub(crate) fn foreign_requests(&self) -> impl Iterator<Item = f64> {
        self.steps().filter_map(|step| {
            let in_engine = step.get(StepSignal::Running)? + step.get(StepSignal::Waiting)?;
            Some(in_engine - step.get(StepSignal::InFlight)?)
        })
    }

    /// Whether the signal is known in at least half of the steps.
    pub(crate) fn has_signal(&self, signal: StepSignal) -> bool {
        self.len() > 0 && self.values(signal).count() * 2 >= self.len()
    }

    /// The sum of a signal. `None`: no value is known.
    pub(crate) fn sum(&self, signal: StepSignal) -> Option<f64> {
        let mut values = self.values(signal).peekable();
        values.peek().is_some().then(|| values.sum())
    }

    /// The sum of a signal. 0 if no value is known.
    pub(crate) fn total(&self, signal: StepSignal) -> f64 {
        self.values(signal).sum()
    }

    /// The mean of a signal. `None`: no value is known.
    pub(crate) fn mean(&self, signal: StepSignal) -> Option<f64> {
        let count = self.values(signal).count();
        Some(self.sum(signal)? / count as f64)
    }

    /// The maximum of a signal. `None`: no value is known.
    pub(crate) fn max(&self, signal: StepSignal) -> Option<f64> {
        self.values(signal).max_by(f64::total_cmp)
    }

    /// The maximum of the known values of `read`. `None`: no value is known.
    pub(crate) fn max_of(&self, read: StepValueFn) -> Option<f64> {
        self.steps().filter_map(read).max_by(f64::total_cmp)
    }

    /// The quantile `q` of a signal, with `q` from 0 to 1. `None`: no value is known.
    pub(crate) fn quantile(&self, signal: StepSignal, q: f64) -> Option<f64> {
        sample_quantile(&mut self.values(signal).collect::<Vec<_>>(), q)
    }

    /// The share of known values of a signal that are at least `threshold`, from 0 to 1. 0 if no
    /// value is known.
    pub(crate) fn fraction_at_least(&self, signal: StepSignal, threshold: f64) -> f64 {
        fraction_at_least(self.values(signal), threshold)
    }

    /// The share of known values of `read` that are at least `threshold`, from 0 to 1. 0 if no
    /// value is known.
    pub(crate) fn step_fraction_at_least(&self, read: StepValueFn, threshold: f64) -> f64 {
        fraction_at_least(self.steps().filter_map(read), threshold)
    }

    /// The sum of a signal that is the growth of a counter, per second. `None`: the growth or the elapsed
    /// time is unknown.
    pub(crate) fn rate(&self, signal: StepSignal) -> Option<f64> {
        let elapsed = self
            .sum(StepSignal::Elapsed)
            .filter(|elapsed| *elapsed > 0.0)?;
        Some(self.sum(signal)? / elapsed)
    }

    /// The sum of `part` divided by the sum of `total`. `None`: a sum is unknown, or the sum of
    /// `total` is zero or less than `min_total`.
    pub(crate) fn ratio(&self, part: StepSignal, total: StepSignal, min_total: f64) -> Option<f64> {
        let total = self
            .sum(total)
            .filter(|total| *total >= min_total && *total > 0.0)?;
        Some(self.sum(part)? / total)
    }
}

fn fraction_at_least(values: impl Iterator<Item = f64>, threshold: f64) -> f64 {
    let mut count = 0_u32;
    let mut matching = 0_u32;
    for value in values {
        count += 1;
        matching += u32::from(value >= threshold);
    }
    f64::from(matching) / f64::from(count.max(1))
}
