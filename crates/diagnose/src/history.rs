//! What is remembered of one replica: the steps of the last five minutes, and each measure of the
//! hour before by the minute. It has a fixed size.

use super::measure::{self, MEASURES, Measure};
use super::sample::Sample;
use super::statistics::{Usual, quantile};
use super::step::{Signal, Step};
use super::{EVERY, MAIN};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokenweir_core::dialect::Load;

/// What is remembered of one replica.
#[derive(Debug)]
pub struct History {
    steps: VecDeque<Step>,
    last: Option<Sample>,
    minutes: VecDeque<Minute>,
    /// What is usual of each measure, by these minutes.
    usual: [Option<Usual>; measure::COUNT],
    /// The minute that is not over began then.
    minute_began: Option<Instant>,
    /// Its process began after that.
    restarted: Option<Instant>,
}

/// Each measure of one minute. NaN: not known.
type Minute = [f32; measure::COUNT];

/// Some steps, the last of which is now.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    steps: &'a VecDeque<Step>,
    begin: usize,
}

/// A number of one step.
pub(super) type Point = fn(&Step) -> Option<f64>;

/// Steps that are kept.
const STEPS: usize = (MAIN.as_secs() / EVERY.as_secs()) as usize;
const MINUTE: Duration = Duration::from_mins(1);
/// Minutes that are kept.
const MINUTES: usize = 60;
/// With fewer, nothing is usual yet.
const LEAST_MINUTES: usize = 5;

// === impl History ===

impl History {
    /// Nothing is known.
    pub fn new() -> Self {
        Self {
            steps: VecDeque::with_capacity(STEPS),
            last: None,
            minutes: VecDeque::with_capacity(MINUTES),
            usual: [None; measure::COUNT],
            minute_began: None,
            restarted: None,
        }
    }

    /// Most memory that it takes, in bytes.
    pub const fn most_bytes() -> usize {
        size_of::<Self>() + STEPS * size_of::<Step>() + MINUTES * size_of::<Minute>()
    }

    /// Takes a moment. `is_well`: no condition was found, so that what is seen is usual.
    pub fn take(&mut self, sample: Sample, is_well: bool) {
        let pages = self.last.and_then(|last| Some((last.page?, sample.page?)));
        if pages.is_some_and(|(before, page)| page.is_restart_of(&before)) {
            self.restarted = Some(sample.at);
            self.minutes.clear();
            self.usual = [None; measure::COUNT];
            self.minute_began = None;
        }
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(Step::new(&sample, self.last.as_ref()));
        // A page is compared with the last one that there was.
        let page = sample.page.or_else(|| self.last.and_then(|last| last.page));
        self.last = Some(Sample { page, ..sample });
        self.learn(sample.at, is_well);
    }

    /// Keeps the measures of a minute that is over, if nothing was wrong in it.
    fn learn(&mut self, now: Instant, is_well: bool) {
        let began = *self.minute_began.get_or_insert(now);
        if !is_well {
            self.minute_began = Some(now);
            return;
        }
        if now.saturating_duration_since(began) < MINUTE {
            return;
        }
        self.minute_began = Some(now);
        let window = self.window(MINUTE);
        let minute = MEASURES.map(|row| row.of(&window).map_or(f32::NAN, |it| it as f32));
        if self.minutes.len() == MINUTES {
            self.minutes.pop_front();
        }
        self.minutes.push_back(minute);
        self.usual = std::array::from_fn(|measure| {
            let minutes = self.minutes.iter().map(|minute| f64::from(minute[measure]));
            Usual::of(minutes.filter(|value| !value.is_nan()), LEAST_MINUTES)
        });
    }

    /// The steps of the last `span`.
    pub(super) fn window(&self, span: Duration) -> Window<'_> {
        let now = self.steps.back().map(|step| step.at);
        let is_old =
            |step: &&Step| now.is_some_and(|now| now.saturating_duration_since(step.at) >= span);
        Window { steps: &self.steps, begin: self.steps.iter().take_while(is_old).count() }
    }

    /// What is usual of a measure. `None`: it is not known for long enough.
    pub(super) fn usual(&self, measure: Measure) -> Option<Usual> {
        self.usual[measure as usize]
    }

    /// Whether it can be sent requests.
    pub(super) fn is_up(&self) -> bool {
        self.last.is_some_and(|last| last.is_up)
    }

    /// Whether its process began less than `span` ago.
    pub(super) fn is_young(&self, span: Duration) -> bool {
        let now = self.steps.back().map(|step| step.at);
        let age = |then| Some(now?.saturating_duration_since(then));
        self.restarted.and_then(age).is_some_and(|age| age < span)
    }

    /// The last page that there was: what never changes of it.
    pub(super) fn page(&self) -> Option<&Load> {
        self.last.as_ref()?.page.as_ref()
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Window ===

impl Window<'_> {
    /// A measure of it.
    pub(super) fn get(&self, measure: Measure) -> Option<f64> {
        measure.row().of(self)
    }

    /// How many steps it has.
    pub(super) fn len(&self) -> usize {
        self.steps.len() - self.begin
    }

    /// How long it is, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.len() as f64 * EVERY.as_secs_f64()
    }

    /// What is known of a signal.
    pub(super) fn values(&self, signal: Signal) -> impl Iterator<Item = f64> {
        self.steps.range(self.begin..).filter_map(move |step| step.get(signal))
    }

    /// The value of the newest step.
    pub(super) fn latest(&self, signal: Signal) -> Option<f64> {
        self.steps.back()?.get(signal)
    }

    /// What is known of a signal while the engine has no request, and the gateway none there.
    pub(super) fn idle_values(&self, signal: Signal) -> impl Iterator<Item = f64> {
        let is_zero = |step: &Step, signal| step.get(signal).is_some_and(|value| value < 0.5);
        let is_idle = move |step: &&Step| {
            is_zero(step, Signal::Running)
                && is_zero(step, Signal::Waiting)
                && step.get(Signal::InFlight).is_none_or(|value| value < 0.5)
        };
        self.steps.range(self.begin..).filter(is_idle).filter_map(move |step| step.get(signal))
    }

    /// Requests in the engine that are not this gateway's.
    pub(super) fn beyond_in_flight(&self) -> impl Iterator<Item = f64> {
        self.steps.range(self.begin..).filter_map(|step| {
            let inside = step.get(Signal::Running)? + step.get(Signal::Waiting)?;
            Some(inside - step.get(Signal::InFlight)?)
        })
    }

    /// Two numbers of each step that has both.
    pub(super) fn pairs(&self, first: Point, second: Point) -> Vec<(f64, f64)> {
        let steps = self.steps.range(self.begin..);
        steps.filter_map(|step| Some((first(step)?, second(step)?))).collect()
    }

    /// Whether half of its steps tell a signal.
    pub(super) fn tells(&self, signal: Signal) -> bool {
        self.len() > 0 && self.values(signal).count() * 2 >= self.len()
    }

    /// The sum. `None`: it is not told.
    pub(super) fn sum(&self, signal: Signal) -> Option<f64> {
        let mut values = self.values(signal).peekable();
        values.peek().is_some().then(|| values.sum())
    }

    /// The mean.
    pub(super) fn mean(&self, signal: Signal) -> Option<f64> {
        let count = self.values(signal).count();
        Some(self.sum(signal)? / count as f64)
    }

    /// The greatest.
    pub(super) fn max(&self, signal: Signal) -> Option<f64> {
        self.values(signal).max_by(f64::total_cmp)
    }

    /// A quantile.
    pub(super) fn quantile(&self, signal: Signal, q: f64) -> Option<f64> {
        quantile(&mut self.values(signal).collect::<Vec<_>>(), q)
    }

    /// The share of steps in which a signal is at least `least`; 0 if it is not told.
    pub(super) fn share(&self, signal: Signal, least: f64) -> f64 {
        share(self.values(signal), least)
    }

    /// The same of any number of a step.
    pub(super) fn share_of(&self, point: Point, least: f64) -> f64 {
        share(self.steps.range(self.begin..).filter_map(point), least)
    }

    /// Growth in a second.
    pub(super) fn rate(&self, signal: Signal) -> Option<f64> {
        let elapsed = self.sum(Signal::Elapsed).filter(|elapsed| *elapsed > 0.0)?;
        Some(self.sum(signal)? / elapsed)
    }

    /// One sum over another, which must be at least `least`.
    pub(super) fn ratio(&self, part: Signal, whole: Signal, least: f64) -> Option<f64> {
        let whole = self.sum(whole).filter(|whole| *whole >= least && *whole > 0.0)?;
        Some(self.sum(part)? / whole)
    }
}

fn share(values: impl Iterator<Item = f64>, least: f64) -> f64 {
    let (mut count, mut enough) = (0_u32, 0_u32);
    for value in values {
        count += 1;
        enough += u32::from(value >= least);
    }
    f64::from(enough) / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::super::sample::some_moment;
    use super::*;

    fn at(start: Instant, seconds: u64, tokens: f64) -> Sample {
        let load = Load { generation_tokens: Some(tokens), ..Load::default() };
        let at = start + Duration::from_secs(seconds);
        Sample { at, is_up: true, page: Some(load), seen: None }
    }

    #[test]
    fn an_hour_of_a_replica_takes_less_than_64_kib() {
        assert!(History::most_bytes() < 64 << 10, "{}", History::most_bytes());
        let mut history = History::new();
        let start = some_moment();
        (0..1_000).for_each(|n| history.take(at(start, 5 * n, n as f64), true));
        assert_eq!((history.steps.len(), history.minutes.len()), (STEPS, MINUTES));
        assert_eq!((history.steps.capacity(), history.minutes.capacity()), (STEPS, MINUTES));
    }

    #[test]
    fn a_restart_is_no_growth_and_ends_what_is_usual() {
        let mut history = History::new();
        let start = some_moment();
        (0..100).for_each(|n| history.take(at(start, 5 * n, 50.0 * n as f64), true));
        let rate = history.window(MINUTE).rate(Signal::GenerationTokens);
        assert!(rate.is_some_and(|rate| (rate - 10.0).abs() < 1e-6), "{rate:?}");
        assert!(history.usual(Measure::GenerationRate).is_some());
        history.take(at(start, 500, 0.0), true);
        assert!(history.usual(Measure::GenerationRate).is_none());
        assert!(history.is_young(MINUTE));
        let after = history.window(MINUTE).rate(Signal::GenerationTokens);
        assert!(after.is_some_and(|rate| (rate - 10.0).abs() < 1e-6), "{after:?}");
    }

    #[test]
    fn a_minute_in_which_something_was_wrong_is_not_usual() {
        let mut history = History::new();
        let start = some_moment();
        (0..100).for_each(|n| history.take(at(start, 5 * n, 50.0 * n as f64), false));
        assert!(history.minutes.is_empty());
    }
}
