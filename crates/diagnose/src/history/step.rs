//! A step of the history: the gauges of one sample, and the growth of counters since the previous sample. The
//! values are 32-bit numbers, so that five minutes take only a few KiB.

use super::sample::DiagnosisSample;
use super::signals::{GatewayObservations, StepSignal};
use std::time::Instant;
use tokenweir_engine::dialect::EngineLoad;

/// One step of the history: the value of each signal. NaN: unknown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HistoryStep {
    pub(crate) at: Instant,
    /// The values, in the order of [`StepSignal`].
    values: [f32; StepSignal::COUNT],
}

impl StepSignal {
    /// The name of the source of the signal's values: the name of an engine metric as in `/status`, `gpus`
    /// for values of GPU exporters, or `gateway` for values that only a gateway has.
    pub(crate) const fn source(self) -> &'static str {
        match self {
            Self::KvUsage => "kv_usage",
            Self::Waiting | Self::Running | Self::Deferred | Self::Elapsed => "queue",
            Self::Preemptions => "preemptions",
            Self::PrefixQueries | Self::PrefixHits => "prefix_cache",
            Self::PromptTokens | Self::GenerationTokens => "tokens",
            Self::QueueSeconds | Self::Queued => "queue_time",
            Self::PrefillSeconds | Self::Prefilled => "prefill_time",
            Self::FirstTokenSeconds | Self::FirstTokens => "time_to_first_token",
            Self::InterTokenSeconds | Self::Gaps => "inter_token_latency",
            Self::DraftTokens | Self::AcceptedTokens => "speculative_decoding",
            Self::GpuUtilization | Self::GpuThrottled | Self::GpuTemperature => "gpus",
            _ => "gateway",
        }
    }
}

impl HistoryStep {
    /// The step from the previous sample to `sample`. `before`: the previous sample, or `None` if `sample` is
    /// the first sample.
    pub(crate) fn new(sample: &DiagnosisSample, before: Option<&DiagnosisSample>) -> Self {
        let mut step = Self {
            at: sample.at,
            values: [f32::NAN; StepSignal::COUNT],
        };
        if let Some(page) = &sample.page {
            step.set(StepSignal::KvUsage, page.kv_usage);
            step.set(StepSignal::Waiting, page.waiting);
            step.set(StepSignal::Running, page.running);
            step.set(StepSignal::Deferred, page.waiting_deferred);
            if let Some((then, load)) = before.and_then(|before| Some((before.at, before.page?))) {
                let elapsed = sample.at.saturating_duration_since(then).as_secs_f64();
                step.add_counter_growth(elapsed, page, &load);
            }
        }
        if let Some(gpus) = &sample.gpus {
            step.set(StepSignal::GpuUtilization, gpus.utilization);
            step.set(StepSignal::GpuThrottled, gpus.is_throttled.map(f64::from));
            step.set(StepSignal::GpuTemperature, gpus.max_temperature_celsius);
        }
        if let Some(observations) = &sample.gateway {
            let before = before.and_then(|before| before.gateway);
            step.add_gateway_observations(observations, before.as_ref());
        }
        step
    }

    /// The value of a signal. `None`: unknown.
    pub(crate) fn get(&self, signal: StepSignal) -> Option<f64> {
        let value = self.values[signal as usize];
        (!value.is_nan()).then_some(f64::from(value))
    }

    fn set(&mut self, signal: StepSignal, value: Option<f64>) {
        self.values[signal as usize] = value.map_or(f32::NAN, |value| value as f32);
    }

    /// Sets the growth of each counter of the metrics page in `elapsed` seconds. Sets no value if the backend
    /// process restarted.
    fn add_counter_growth(&mut self, elapsed: f64, page: &EngineLoad, before: &EngineLoad) {
        if page.is_restart_of(before) {
            return;
        }
        self.set(StepSignal::Elapsed, Some(elapsed));
        for (signal, read) in StepSignal::COUNTERS {
            let growth = read(page).zip(read(before)).map(|(now, then)| now - then);
            self.set(*signal, growth.filter(|growth| *growth >= 0.0));
        }
    }

    fn add_gateway_observations(
        &mut self,
        observations: &GatewayObservations,
        before: Option<&GatewayObservations>,
    ) {
        let in_flight = f64::from(observations.in_flight);
        self.set(StepSignal::InFlight, Some(in_flight));
        if observations.is_disturbed {
            return;
        }
        let stalls = before.map(|before| observations.stalls.saturating_sub(before.stalls) as f64);
        let switches = before.map(|before| {
            observations
                .engine_switches
                .saturating_sub(before.engine_switches) as f64
        });
        self.set(StepSignal::Stalls, stalls);
        self.set(StepSignal::EngineSwitches, switches);
        self.set(StepSignal::GapP99, observations.gap_p99);
        self.set(StepSignal::PageSeconds, observations.page_seconds);
        observations.each(|signal, value| self.set(signal, Some(value)));
        let counts = &observations.counts;
        counts.each(|signal, value| self.set(signal, Some(value)));
    }
}
