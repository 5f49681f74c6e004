//! The table of the measures of a window of steps, with the name, the unit and the computation of each
//! measure. Rules evaluate the measures, evidence contains them, and each measure has a baseline.

use super::step::StepSignal;
use super::window::StepWindow;

/// A measure of a window of steps. [`MEASURES`] has its name, unit and computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowMeasure {
    KvUsage,
    KvUsageP90,
    Waiting,
    Running,
    PreemptionRate,
    PreemptionsPerRequest,
    PrefixHitRatio,
    QueueTime,
    PrefillTime,
    Prefilling,
    EngineTtft,
    EngineInterToken,
    GenerationRate,
    Ttft,
    SlowShare,
    GapP99,
    InFlight,
    CancelRatio,
    FrontEnd,
    StallsPerStream,
    ReusablePrompt,
    GpuUtilization,
    GpuMemory,
    GpuThrottled,
    GpuTemperature,
}

/// The direction of a change that can harm requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdverseChange {
    Rise,
    Fall,
    None,
}

/// The definition of a measure.
pub(crate) struct MeasureDefinition {
    /// The measure.
    pub(crate) measure: WindowMeasure,
    /// The name of the measure in evidence and anomalies.
    pub(crate) name: &'static str,
    /// The unit of the value.
    pub(crate) unit: &'static str,
    /// Computes the value of the measure in a window. `None`: the window has too little data.
    compute: fn(&StepWindow<'_>) -> Option<f64>,
}

/// Number of measures.
pub(crate) const COUNT: usize = WindowMeasure::GpuTemperature as usize + 1;
/// Minimum number of observations in a window for a mean.
const MIN_OBSERVATIONS: f64 = 5.0;
/// Minimum number of first outputs in a window for a comparison of the gateway with the engine.
pub(crate) const MIN_COMPARED_STREAMS: f64 = 20.0;
/// Minimum number of tokens in a window for a ratio of tokens.
const MIN_TOKENS: f64 = 1_000.0;

/// All measures, in the order of the enumeration.
pub(crate) const MEASURES: [MeasureDefinition; COUNT] = [
    MeasureDefinition::new(WindowMeasure::KvUsage, "kv_usage", "ratio", |window| {
        window.mean(StepSignal::KvUsage)
    }),
    MeasureDefinition::new(WindowMeasure::KvUsageP90, "kv_usage_p90", "ratio", |window| {
        window.quantile(StepSignal::KvUsage, 0.9)
    }),
    MeasureDefinition::new(WindowMeasure::Waiting, "waiting", "requests", |window| {
        window.mean(StepSignal::Waiting)
    }),
    MeasureDefinition::new(WindowMeasure::Running, "running", "requests", |window| {
        window.mean(StepSignal::Running)
    }),
    MeasureDefinition::new(
        WindowMeasure::PreemptionRate,
        "preemptions_per_second",
        "1/s",
        |window| window.rate(StepSignal::Preemptions),
    ),
    MeasureDefinition::new(
        WindowMeasure::PreemptionsPerRequest,
        "preemptions_per_request",
        "ratio",
        |window| window.ratio(StepSignal::Preemptions, StepSignal::FirstTokens, 1.0),
    ),
    MeasureDefinition::new(WindowMeasure::PrefixHitRatio, "prefix_hit_ratio", "ratio", |window| {
        window.ratio(StepSignal::PrefixHits, StepSignal::PrefixQueries, MIN_TOKENS)
    }),
    MeasureDefinition::new(WindowMeasure::QueueTime, "queue_time_mean", "s", |window| {
        window.ratio(StepSignal::QueueSeconds, StepSignal::Queued, MIN_OBSERVATIONS)
    }),
    MeasureDefinition::new(WindowMeasure::PrefillTime, "prefill_time_mean", "s", |window| {
        window.ratio(StepSignal::PrefillSeconds, StepSignal::Prefilled, MIN_OBSERVATIONS)
    }),
    MeasureDefinition::new(WindowMeasure::Prefilling, "in_prefill", "requests", in_prefill),
    MeasureDefinition::new(WindowMeasure::EngineTtft, "engine_ttft_mean", "s", |window| {
        window.ratio(StepSignal::FirstTokenSeconds, StepSignal::FirstTokens, MIN_OBSERVATIONS)
    }),
    MeasureDefinition::new(
        WindowMeasure::EngineInterToken,
        "engine_inter_token_mean",
        "s",
        |window| window.ratio(StepSignal::InterTokenSeconds, StepSignal::Gaps, 100.0),
    ),
    MeasureDefinition::new(
        WindowMeasure::GenerationRate,
        "generation_tokens_per_second",
        "tokens/s",
        |window| window.rate(StepSignal::GenerationTokens),
    ),
    MeasureDefinition::new(WindowMeasure::Ttft, "ttft_mean", "s", |window| {
        window.ratio(StepSignal::FirstOutputSeconds, StepSignal::FirstOutputs, MIN_OBSERVATIONS)
    }),
    MeasureDefinition::new(WindowMeasure::SlowShare, "slow_first_outputs", "ratio", |window| {
        window.ratio(StepSignal::SlowFirstOutputs, StepSignal::FirstOutputs, 20.0)
    }),
    MeasureDefinition::new(WindowMeasure::GapP99, "inter_token_p99", "s", |window| {
        window.mean(StepSignal::GapP99)
    }),
    MeasureDefinition::new(WindowMeasure::InFlight, "in_flight", "requests", |window| {
        window.mean(StepSignal::InFlight)
    }),
    MeasureDefinition::new(WindowMeasure::CancelRatio, "cancelled", "ratio", |window| {
        window.ratio(StepSignal::Cancelled, StepSignal::Finished, 20.0)
    }),
    MeasureDefinition::new(WindowMeasure::FrontEnd, "front_end_lag", "s", |window| {
        window.front_end_lag(MIN_COMPARED_STREAMS)
    }),
    MeasureDefinition::new(
        WindowMeasure::StallsPerStream,
        "stalls_per_stream",
        "ratio",
        |window| window.ratio(StepSignal::Stalls, StepSignal::FirstOutputs, MIN_OBSERVATIONS),
    ),
    MeasureDefinition::new(WindowMeasure::ReusablePrompt, "reusable_prompt", "ratio", |window| {
        window.ratio(StepSignal::ReusableTokens, StepSignal::GatewayPromptTokens, MIN_TOKENS)
    }),
    MeasureDefinition::new(WindowMeasure::GpuUtilization, "gpu_utilization", "ratio", |window| {
        window.mean(StepSignal::GpuUtilization)
    }),
    MeasureDefinition::new(WindowMeasure::GpuMemory, "gpu_memory_usage", "ratio", |window| {
        window.mean(StepSignal::GpuMemory)
    }),
    MeasureDefinition::new(WindowMeasure::GpuThrottled, "gpu_throttled", "ratio", |window| {
        window.mean(StepSignal::GpuThrottled)
    }),
    MeasureDefinition::new(WindowMeasure::GpuTemperature, "gpu_temperature", "°C", |window| {
        window.max(StepSignal::GpuTemperature)
    }),
];

/// The mean number of requests in prefill: running requests without a first token. The sum of the times
/// between tokens per second is the mean number of requests that generate tokens (Little's law). All other
/// running requests are in prefill. So a prompt is counted while it is computed, although the engine reports
/// its prefill time only after the end of the request. If the times between tokens are not known, the result
/// is the mean prefill time of the requests that ended × first tokens per second. `None`: too little data.
fn in_prefill(window: &StepWindow<'_>) -> Option<f64> {
    match window.rate(StepSignal::InterTokenSeconds) {
        Some(generating) => Some((window.mean(StepSignal::Running)? - generating).max(0.0)),
        None => {
            Some(window.get(WindowMeasure::PrefillTime)? * window.rate(StepSignal::FirstTokens)?)
        }
    }
}

// === impl WindowMeasure ===

impl WindowMeasure {
    /// The row of the measure in [`MEASURES`].
    pub(crate) fn definition(self) -> &'static MeasureDefinition {
        &MEASURES[self as usize]
    }
}

impl StepWindow<'_> {
    /// The value of a measure in the window. `None`: too little data.
    pub(crate) fn get(&self, measure: WindowMeasure) -> Option<f64> {
        (measure.definition().compute)(self)
    }

    /// The lag of the front end: the mean TTFT of the gateway minus the mean TTFT of the engine, in seconds.
    /// `None`: the gateway and the engine do not count the same requests. They count the same requests if
    /// the gateway had at least `min_streams` first outputs, at least 90 % of its ended requests were
    /// streams, and the number of first outputs and the engine's number of first tokens differ by at most
    /// one fifth.
    pub(crate) fn front_end_lag(&self, min_streams: f64) -> Option<f64> {
        let (outputs, tokens) =
            (self.sum(StepSignal::FirstOutputs)?, self.sum(StepSignal::FirstTokens)?);
        let streams = self.ratio(StepSignal::Streams, StepSignal::Finished, 1.0).unwrap_or(1.0);
        let counts_same_requests =
            outputs >= min_streams && (outputs - tokens).abs() <= 0.2 * outputs && streams >= 0.9;
        let lag = self.get(WindowMeasure::Ttft)? - self.get(WindowMeasure::EngineTtft)?;
        counts_same_requests.then_some(lag)
    }
}

// === impl MeasureDefinition ===

impl MeasureDefinition {
    const fn new(
        measure: WindowMeasure,
        name: &'static str,
        unit: &'static str,
        compute: fn(&StepWindow<'_>) -> Option<f64>,
    ) -> Self {
        Self { measure, name, unit, compute }
    }

    /// The smallest relevant deviation of the value, in the unit of the measure. A change of six deviations
    /// is an anomaly: for example 0.06 for a ratio, 3 requests, or 3 ms.
    pub(crate) fn min_deviation(&self) -> f64 {
        match self.unit {
            "ratio" | "1/s" => 0.01,
            "requests" => 0.5,
            "s" => 0.000_5,
            _ => 1.0,
        }
    }

    /// The direction of a change that can harm requests.
    pub(crate) fn adverse_change(&self) -> AdverseChange {
        match self.measure {
            WindowMeasure::PrefixHitRatio | WindowMeasure::GenerationRate => AdverseChange::Fall,
            // A change of these measures is no harm. Clients choose their prompts, and longer prompts
            // are in prefill for longer. The values of GPUs follow the load; faults have rules of
            // their own.
            WindowMeasure::ReusablePrompt
            | WindowMeasure::Prefilling
            | WindowMeasure::GpuUtilization
            | WindowMeasure::GpuMemory
            | WindowMeasure::GpuThrottled
            | WindowMeasure::GpuTemperature => AdverseChange::None,
            _ => AdverseChange::Rise,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_measure_has_a_definition_and_a_unique_name() {
        for (index, definition) in MEASURES.iter().enumerate() {
            assert_eq!(definition.measure as usize, index, "{}", definition.name);
        }
        let names: BTreeSet<&str> = MEASURES.iter().map(|definition| definition.name).collect();
        assert_eq!(names.len(), COUNT);
    }
}
