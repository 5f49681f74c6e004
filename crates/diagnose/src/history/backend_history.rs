//! The history of one backend, of fixed size: the steps of the last five minutes, and one value of
//! each measure for each of the last 60 minutes without a verdict.

use super::measure::{self, WindowMeasure};
use super::sample::{DiagnosisSample, EVERY};
use super::signals::{GatewayObservations, StepSignal};
use super::statistics::RobustBaseline;
use super::step::HistoryStep;
use super::window::{LONG_WINDOW, StepWindow};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_protocol::limits::push_bounded;

/// The history of one backend.
#[derive(Debug)]
pub struct BackendHistory {
    /// The changes between successive samples of the last five minutes, the oldest first.
    steps: VecDeque<HistoryStep>,
    /// The last sample. If it has no metrics page, the last known page is inserted.
    last_sample: Option<DiagnosisSample>,
    /// The measures of the last 60 minutes without a verdict, the oldest first. A restart of the backend
    /// process clears the measures that depend on the process.
    minutes: VecDeque<MinuteMeasures>,
    /// The measures of the last completed minute. They are dropped if a verdict begins in the next minute,
    /// because the fault may have begun earlier. `None`: a verdict holds, or no minute is complete.
    last_minute: Option<MinuteMeasures>,
    /// The baseline of each measure, computed from `minutes`. `None`: the measure has fewer than five
    /// known values.
    baselines: [Option<RobustBaseline>; measure::COUNT],
    /// The measures of the first half minute with requests. A restart of the backend process clears the
    /// measures that depend on the process. `None`: no half minute had requests.
    first: Option<MinuteMeasures>,
    /// Start of the current minute. `None`: no sample yet.
    minute_start: Option<Instant>,
    /// Time of the first sample after the last restart of the backend process. `None`: no restart
    /// was observed.
    restarted_at: Option<Instant>,
}

/// The value of each measure in one minute, in the order of [`WindowMeasure::ALL`]. NaN: unknown.
type MinuteMeasures = [f32; measure::COUNT];

const MAX_STEPS: usize = (LONG_WINDOW.as_secs() / EVERY.as_secs()) as usize;
const MINUTE: Duration = Duration::from_mins(1);
/// Length of the first measurement, which replaces a missing baseline.
const FIRST: Duration = Duration::from_secs(30);
const MAX_MINUTES: usize = 60;
const MIN_BASELINE_MINUTES: usize = 5;

impl BackendHistory {
    /// Adds a sample. `is_healthy`: no verdict holds at the backend. Only minutes in which `is_healthy` is
    /// true for all samples are used for the baselines.
    pub fn push(&mut self, sample: DiagnosisSample, is_healthy: bool) {
        let pages = self
            .last_sample
            .and_then(|last| Some((last.page?, sample.page?)));
        if pages.is_some_and(|(before, page)| page.is_restart_of(&before)) {
            self.restarted_at = Some(sample.at);
            self.forget_process();
        }
        if sample.is_up && self.last_sample.is_some_and(|last| !last.is_up) {
            // The backend was not up in the earlier steps, so they do not show its load.
            self.steps.clear();
        }
        let step = HistoryStep::new(&sample, self.last_sample.as_ref());
        push_bounded(&mut self.steps, step, MAX_STEPS);
        // The next page is compared with the last known page, even if samples between the two had
        // no page.
        let page = sample
            .page
            .or_else(|| self.last_sample.and_then(|last| last.page));
        self.last_sample = Some(DiagnosisSample { page, ..sample });
        self.update_baselines(sample.at, is_healthy && sample.is_up);
    }

    /// Adds the measures of a completed minute to the baselines. If a verdict holds or the backend is not
    /// up, the current minute begins again.
    fn update_baselines(&mut self, now: Instant, is_healthy: bool) {
        if is_healthy && !self.has_first() {
            self.keep_first();
        }
        let start = *self.minute_start.get_or_insert(now);
        if !is_healthy {
            self.minute_start = Some(now);
            self.last_minute = None;
            return;
        }
        if now.saturating_duration_since(start) < MINUTE {
            return;
        }
        self.minute_start = Some(now);
        let minute = self.measures(MINUTE);
        let Some(before) = self.last_minute.replace(minute) else {
            return;
        };
        push_bounded(&mut self.minutes, before, MAX_MINUTES);
        self.baselines =
            WindowMeasure::ALL.map(|measure| self.baseline_of(measure, MIN_BASELINE_MINUTES));
    }

    fn measures(&self, span: Duration) -> MinuteMeasures {
        let window = self.window(span);
        WindowMeasure::ALL.map(|measure| window.get(measure).map_or(f32::NAN, |value| value as f32))
    }

    /// Whether the measures of the first half minute of this process are known.
    fn has_first(&self) -> bool {
        let duration = WindowMeasure::RequestSeconds as usize;
        self.first.is_some_and(|first| !first[duration].is_nan())
    }

    /// Stores the measures of the last half minute as the first ones, if it had enough requests. Measures that
    /// survive a restart are kept.
    fn keep_first(&mut self) {
        let window = self.window(FIRST);
        let is_whole = window.seconds() >= FIRST.as_secs_f64();
        let has_requests = window.get(WindowMeasure::RequestSeconds).is_some();
        if !is_whole || !has_requests {
            return;
        }
        let mut measures = self.measures(FIRST);
        for (value, before) in measures.iter_mut().zip(self.first.iter().flatten()) {
            if !before.is_nan() {
                *value = *before;
            }
        }
        self.first = Some(measures);
    }

    /// The value of a measure in the first half minute with requests, while the history is too short for a
    /// baseline. `None`: unknown, or there is a baseline.
    pub(crate) fn early_value(&self, measure: WindowMeasure) -> Option<f64> {
        let value = f64::from(self.first.as_ref()?[measure as usize]);
        let is_early = self.minutes.len() < MIN_BASELINE_MINUTES;
        (is_early && !value.is_nan()).then_some(value)
    }

    /// Clears the measures that depend on the backend process.
    fn forget_process(&mut self) {
        for measure in WindowMeasure::ALL {
            if measure.survives_restart() {
                continue;
            }
            self.minutes
                .iter_mut()
                .chain(&mut self.first)
                .chain(&mut self.last_minute)
                .for_each(|minute| minute[measure as usize] = f32::NAN);
            self.baselines[measure as usize] = None;
        }
        self.minute_start = None;
    }

    fn baseline_of(&self, measure: WindowMeasure, min_minutes: usize) -> Option<RobustBaseline> {
        let minutes = self
            .minutes
            .iter()
            .map(|minute| f64::from(minute[measure as usize]));
        let known = minutes.filter(|value| !value.is_nan());
        RobustBaseline::from_values(known, min_minutes, measure.min_deviation())
    }

    /// The usual value of a measure, if it is known in one healthy minute or more. Unlike a baseline, this
    /// value needs no deviation, so one minute is enough.
    pub(crate) fn usual(&self, measure: WindowMeasure) -> Option<f64> {
        self.baseline_of(measure, 1).map(|baseline| baseline.median)
    }

    /// The usual value of a measure, or else its value in the first half minute with requests.
    pub(crate) fn past(&self, measure: WindowMeasure) -> Option<f64> {
        self.usual(measure).or(self.early_value(measure))
    }

    /// The steps of the last `span` before the newest step.
    pub(crate) fn window(&self, span: Duration) -> StepWindow<'_> {
        let newest = self.steps.back();
        let is_old = |step: &&HistoryStep| {
            newest.is_some_and(|newest| newest.at.saturating_duration_since(step.at) >= span)
        };
        StepWindow::starting_at(&self.steps, self.steps.iter().take_while(is_old).count())
    }

    /// The baseline of a measure. `None`: the measure is known in fewer than five healthy minutes.
    pub(crate) fn baseline(&self, measure: WindowMeasure) -> Option<RobustBaseline> {
        self.baselines[measure as usize]
    }

    /// Whether the backend was up in the last sample.
    pub(crate) fn is_up(&self) -> bool {
        self.last_sample.is_some_and(|last| last.is_up)
    }

    /// Whether both backends serve the same models. Also true if the models of both are unknown.
    pub(crate) fn has_models_of(&self, other: &Self) -> bool {
        let models = |history: &Self| history.gateway().map(|it| it.models);
        models(self) == models(other)
    }

    /// The weight of the backend. 1 if the weight is not known.
    pub(crate) fn weight(&self) -> u32 {
        self.gateway().map_or(1, |gateway| gateway.weight)
    }

    /// Maximum number of sequences that the engine has run at once since its start, as far as known.
    pub(crate) fn most_running(&self) -> u32 {
        self.gateway().map_or(0, |gateway| gateway.most_running)
    }

    fn gateway(&self) -> Option<GatewayObservations> {
        self.last_sample?.gateway
    }

    /// Whether the backend had no requests in any step of the last `span`. False if the number of requests
    /// is not known.
    pub(crate) fn has_no_load_for(&self, span: Duration) -> bool {
        let window = self.window(span);
        window.seconds() >= span.as_secs_f64() && window.has_no_load()
    }

    /// Whether the last canary request got no answer.
    pub(crate) fn has_silent_canary(&self) -> bool {
        let silence = self.steps.back().and_then(|it| it.get(StepSignal::Canary));
        silence.is_some_and(|seconds| seconds > 0.0)
    }

    /// Whether the backend process restarted less than `span` before the newest step.
    pub(crate) fn has_restarted_within(&self, span: Duration) -> bool {
        let newest = self.steps.back().zip(self.restarted_at);
        newest.is_some_and(|(step, then)| step.at.saturating_duration_since(then) < span)
    }

    /// The load from the last known metrics page. The page may be older than the last sample, so
    /// only constant values, such as the size of the KV cache, are reliable. `None`: no page yet.
    pub(crate) fn last_known_load(&self) -> Option<&EngineLoad> {
        self.last_sample.as_ref()?.page.as_ref()
    }
}

impl Default for BackendHistory {
    fn default() -> Self {
        Self {
            steps: VecDeque::with_capacity(MAX_STEPS),
            last_sample: None,
            minutes: VecDeque::with_capacity(MAX_MINUTES),
            last_minute: None,
            baselines: [None; measure::COUNT],
            first: None,
            minute_start: None,
            restarted_at: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::signals::StepSignal;
    use super::*;
    use tokenweir_protocol::clock;

    fn sample_at(seconds: u64, tokens: f64) -> DiagnosisSample {
        let load = EngineLoad {
            generation_tokens: Some(tokens),
            ..EngineLoad::default()
        };
        let at = clock::epoch() + Duration::from_secs(seconds);
        DiagnosisSample {
            at,
            is_up: true,
            page: Some(load),
            gateway: None,
            gpus: None,
        }
    }

    #[test]
    fn a_history_takes_less_than_64_kib() {
        let steps = MAX_STEPS * size_of::<HistoryStep>();
        let minutes = MAX_MINUTES * size_of::<MinuteMeasures>();
        assert!(size_of::<BackendHistory>() + steps + minutes < 64 << 10);
        let mut history = BackendHistory::default();
        (0..1_000).for_each(|n| history.push(sample_at(5 * n, n as f64), true));
        assert_eq!(
            (history.steps.len(), history.minutes.len()),
            (MAX_STEPS, MAX_MINUTES)
        );
        let capacities = (history.steps.capacity(), history.minutes.capacity());
        assert_eq!(capacities, (MAX_STEPS, MAX_MINUTES));
    }

    #[test]
    fn a_restart_clears_baselines_and_adds_no_growth() {
        let mut history = BackendHistory::default();
        (0..100).for_each(|n| history.push(sample_at(5 * n, 50.0 * n as f64), true));
        let rate = history.window(MINUTE).rate(StepSignal::GenerationTokens);
        assert!(
            rate.is_some_and(|rate| (rate - 10.0).abs() < 1e-6),
            "{rate:?}"
        );
        assert!(history.baseline(WindowMeasure::GenerationRate).is_some());
        history.push(sample_at(500, 0.0), true);
        assert!(history.baseline(WindowMeasure::GenerationRate).is_none());
        assert!(history.has_restarted_within(MINUTE));
        let after = history.window(MINUTE).rate(StepSignal::GenerationTokens);
        assert!(
            after.is_some_and(|rate| (rate - 10.0).abs() < 1e-6),
            "{after:?}"
        );
    }

    #[test]
    fn a_minute_with_a_verdict_changes_no_baseline() {
        let mut history = BackendHistory::default();
        (0..100).for_each(|n| history.push(sample_at(5 * n, 50.0 * n as f64), false));
        assert!(history.minutes.is_empty());
    }
}
