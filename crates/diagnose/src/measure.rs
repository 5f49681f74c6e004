//! What is measured of a window, one row each: a name, a unit, and how it is computed. Rules judge
//! these numbers, evidence shows them, and what is usual of each is kept by the minute.

use super::history::Window;
use super::step::Signal;

/// A number of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    KvUsage,
    KvUsageP90,
    Waiting,
    Running,
    PreemptionRate,
    PreemptedShare,
    HitRatio,
    QueueTime,
    EngineTtft,
    EngineGap,
    GenerationRate,
    Ttft,
    SlowShare,
    GapP99,
    InFlight,
    CancelRatio,
    FrontEnd,
    StallRate,
    Reusable,
}

/// How a measure is told and computed.
pub(super) struct Row {
    /// Which it is.
    pub(super) measure: Measure,
    /// Its name.
    pub(super) name: &'static str,
    /// Its unit; empty for a count.
    pub(super) unit: &'static str,
    of: fn(&Window<'_>) -> Option<f64>,
}

/// How many there are.
pub(super) const COUNT: usize = Measure::Reusable as usize + 1;
/// Fewer times say nothing about their mean.
const ENOUGH: f64 = 5.0;
/// Fewer tokens say nothing about a cache.
const ENOUGH_TOKENS: f64 = 1_000.0;

/// All of them, in the order of the enumeration.
pub(super) const MEASURES: [Row; COUNT] = [
    Row::new(Measure::KvUsage, "kv_usage", "ratio", |it| it.mean(Signal::KvUsage)),
    Row::new(Measure::KvUsageP90, "kv_usage_p90", "ratio", |it| it.quantile(Signal::KvUsage, 0.9)),
    Row::new(Measure::Waiting, "waiting", "requests", |it| it.mean(Signal::Waiting)),
    Row::new(Measure::Running, "running", "requests", |it| it.mean(Signal::Running)),
    Row::new(Measure::PreemptionRate, "preemptions_per_second", "1/s", |it| {
        it.rate(Signal::Preemptions)
    }),
    Row::new(Measure::PreemptedShare, "preemptions_per_request", "ratio", |it| {
        it.ratio(Signal::Preemptions, Signal::FirstTokens, 1.0)
    }),
    Row::new(Measure::HitRatio, "prefix_hit_ratio", "ratio", |it| {
        it.ratio(Signal::PrefixHits, Signal::PrefixQueries, ENOUGH_TOKENS)
    }),
    Row::new(Measure::QueueTime, "queue_time_mean", "s", |it| {
        it.ratio(Signal::QueueSeconds, Signal::Queued, ENOUGH)
    }),
    Row::new(Measure::EngineTtft, "engine_ttft_mean", "s", |it| {
        it.ratio(Signal::FirstTokenSeconds, Signal::FirstTokens, ENOUGH)
    }),
    Row::new(Measure::EngineGap, "engine_inter_token_mean", "s", |it| {
        it.ratio(Signal::GapSeconds, Signal::Gaps, 100.0)
    }),
    Row::new(Measure::GenerationRate, "generation_tokens_per_second", "tokens/s", |it| {
        it.rate(Signal::GenerationTokens)
    }),
    Row::new(Measure::Ttft, "ttft_mean", "s", |it| {
        it.ratio(Signal::FirstOutputSeconds, Signal::FirstOutputs, ENOUGH)
    }),
    Row::new(Measure::SlowShare, "slow_first_outputs", "ratio", |it| {
        it.ratio(Signal::SlowFirstOutputs, Signal::FirstOutputs, 20.0)
    }),
    Row::new(Measure::GapP99, "inter_token_p99", "s", |it| it.mean(Signal::GapP99)),
    Row::new(Measure::InFlight, "in_flight", "requests", |it| it.mean(Signal::InFlight)),
    Row::new(Measure::CancelRatio, "cancelled", "ratio", |it| {
        it.ratio(Signal::Cancelled, Signal::Finished, 20.0)
    }),
    Row::new(Measure::FrontEnd, "front_end_lag", "s", front_end),
    Row::new(Measure::StallRate, "stalls_per_stream", "ratio", |it| {
        it.ratio(Signal::Stalls, Signal::FirstOutputs, ENOUGH)
    }),
    Row::new(Measure::Reusable, "reusable_prompt", "ratio", |it| {
        it.ratio(Signal::ReusableTokens, Signal::AskedTokens, ENOUGH_TOKENS)
    }),
];

/// Mean time to first token as the gateway sees it, less the engine's own. Both must be of the
/// same requests: streams only, as many as the engine counted but for a fifth.
fn front_end(window: &Window<'_>) -> Option<f64> {
    let (outputs, tokens) = (window.sum(Signal::FirstOutputs)?, window.sum(Signal::FirstTokens)?);
    let streams = window.ratio(Signal::Streams, Signal::Finished, 1.0).unwrap_or(1.0);
    let is_same = outputs >= 20.0 && (outputs - tokens).abs() <= 0.2 * outputs && streams >= 0.9;
    let lag = window.get(Measure::Ttft)? - window.get(Measure::EngineTtft)?;
    is_same.then_some(lag)
}

// === impl Measure ===

impl Measure {
    /// Its row.
    pub(super) fn row(self) -> &'static Row {
        &MEASURES[self as usize]
    }
}

// === impl Row ===

impl Row {
    const fn new(
        measure: Measure,
        name: &'static str,
        unit: &'static str,
        of: fn(&Window<'_>) -> Option<f64>,
    ) -> Self {
        Self { measure, name, unit, of }
    }

    /// Its value in a window. `None`: what it is made of is not told, or too little of it.
    pub(super) fn of(&self, window: &Window<'_>) -> Option<f64> {
        (self.of)(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_measure_has_its_row_and_its_name() {
        for (place, row) in MEASURES.iter().enumerate() {
            assert_eq!(row.measure as usize, place, "{}", row.name);
        }
        let names: BTreeSet<&str> = MEASURES.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), COUNT);
    }
}
