//! The measures of a window of steps, with the name, the unit and the computation of each measure. Rules
//! evaluate the measures, evidence contains them, and each measure has a baseline.

use super::step::StepSignal;
use super::window::StepWindow;
use tokenweir_protocol::named_enum;

named_enum! {
    /// A measure that is computed from a window of steps. Evidence and anomalies contain its name.
    pub(crate) enum WindowMeasure {
        KvUsage = "kv_usage",
        KvUsageP90 = "kv_usage_p90",
        Waiting = "waiting",
        Running = "running",
        PreemptionRate = "preemptions_per_second",
        PreemptionsPerRequest = "preemptions_per_request",
        PrefixHitRatio = "prefix_hit_ratio",
        QueueTime = "queue_time_mean",
        PrefillTime = "prefill_time_mean",
        Prefilling = "in_prefill",
        EngineTtft = "engine_ttft_mean",
        EngineInterToken = "engine_inter_token_mean",
        GenerationRate = "generation_tokens_per_second",
        Ttft = "ttft_mean",
        SlowShare = "slow_first_outputs",
        GapP99 = "inter_token_p99",
        InFlight = "in_flight",
        CancelRatio = "cancelled",
        EmptyShare = "empty_responses",
        CutShare = "cut_responses",
        FrontEnd = "front_end_lag",
        StallsPerStream = "stalls_per_stream",
        ReusablePrompt = "reusable_prompt",
        KnownPrompt = "known_prompt",
        RequestSeconds = "request_seconds_mean",
        SecondsPerToken = "seconds_per_output_token",
        RequestRate = "requests_per_second",
        PromptTokens = "prompt_tokens_mean",
        AnswerTokens = "output_tokens_mean",
        AnswerLength = "output_length",
        RepetitiveShare = "repetitive_texts",
        DistinctPieces = "distinct_pieces",
        PieceBytes = "piece_bytes",
        NonAsciiShare = "non_ascii_text",
        DamagedShare = "damaged_texts",
        ToolCallShare = "tool_calls",
        MissingJsonShare = "missing_json",
        ReasoningAloneShare = "reasoning_alone",
        WrongUsageShare = "wrong_token_counts",
        DraftAcceptance = "draft_acceptance",
        GpuUtilization = "gpu_utilization",
        GpuThrottled = "gpu_throttled",
        GpuTemperature = "gpu_temperature",
    }
}

/// The direction of a change that can harm requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdverseChange {
    Rise,
    Fall,
    Either,
    None,
}

impl AdverseChange {
    /// Whether a value that has risen or fallen can harm requests.
    pub(crate) const fn includes(self, has_risen: bool, has_fallen: bool) -> bool {
        match self {
            Self::Rise => has_risen,
            Self::Fall => has_fallen,
            Self::Either => has_risen || has_fallen,
            Self::None => false,
        }
    }
}

/// Number of measures of a window.
pub(crate) const COUNT: usize = WindowMeasure::ALL.len();
/// Minimum number of observations in a window for a mean.
const MIN_OBSERVATIONS: f64 = 5.0;
/// Minimum number of first outputs in a window for a comparison of the gateway with the engine.
pub(crate) const MIN_COMPARED_STREAMS: f64 = 20.0;
/// Greatest mean time, in seconds, by which the engine may seem slower than the gateway sees it: the two clocks and
/// windows differ a little.
const MAX_NEGATIVE_LAG: f64 = 0.01;
/// Minimum number of tokens in a window for a ratio of tokens.
const MIN_TOKENS: f64 = 1_000.0;
/// Minimum number of output tokens in a window for the time per output token.
const MIN_SERVED_TOKENS: f64 = 100.0;

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

/// The sum of `part` in a window divided by that of `total`, if that is at least `min_total`.
struct Ratio {
    part: StepSignal,
    total: StepSignal,
    min_total: f64,
}

impl Ratio {
    const fn of(part: StepSignal, total: StepSignal, min_total: f64) -> Self {
        Self {
            part,
            total,
            min_total,
        }
    }
}

impl WindowMeasure {
    /// The unit of the value.
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::KvUsage
            | Self::KvUsageP90
            | Self::PreemptionsPerRequest
            | Self::PrefixHitRatio
            | Self::SlowShare
            | Self::CancelRatio
            | Self::EmptyShare
            | Self::CutShare
            | Self::RepetitiveShare
            | Self::NonAsciiShare
            | Self::DamagedShare
            | Self::ToolCallShare
            | Self::MissingJsonShare
            | Self::ReasoningAloneShare
            | Self::WrongUsageShare
            | Self::StallsPerStream
            | Self::ReusablePrompt
            | Self::KnownPrompt
            | Self::DraftAcceptance
            | Self::GpuUtilization
            | Self::GpuThrottled => "ratio",
            Self::Waiting | Self::Running | Self::Prefilling | Self::InFlight => "requests",
            Self::PreemptionRate | Self::RequestRate => "1/s",
            Self::PromptTokens | Self::AnswerTokens => "tokens",
            Self::AnswerLength => "tokens^0.5",
            Self::DistinctPieces => "pieces",
            Self::PieceBytes => "bytes",
            Self::QueueTime
            | Self::PrefillTime
            | Self::EngineTtft
            | Self::EngineInterToken
            | Self::Ttft
            | Self::GapP99
            | Self::RequestSeconds
            | Self::SecondsPerToken
            | Self::FrontEnd => "s",
            Self::GenerationRate => "tokens/s",
            Self::GpuTemperature => "°C",
        }
    }

    /// The value in a window. `None`: the window has too little data.
    fn compute(self, window: &StepWindow<'_>) -> Option<f64> {
        match self {
            Self::KvUsage => window.mean(StepSignal::KvUsage),
            Self::KvUsageP90 => window.quantile(StepSignal::KvUsage, 0.9),
            Self::Waiting => window.mean(StepSignal::Waiting),
            Self::Running => window.mean(StepSignal::Running),
            Self::PreemptionRate => window.rate(StepSignal::Preemptions),
            Self::Prefilling => in_prefill(window),
            Self::GenerationRate => window.rate(StepSignal::GenerationTokens),
            Self::GapP99 => window.mean(StepSignal::GapP99),
            Self::InFlight => window.mean(StepSignal::InFlight),
            Self::FrontEnd => window.front_end_lag(MIN_COMPARED_STREAMS),
            Self::RequestRate => Some(window.sum(StepSignal::Finished)? / window.seconds()),
            Self::GpuUtilization => window.mean(StepSignal::GpuUtilization),
            Self::GpuThrottled => window.mean(StepSignal::GpuThrottled),
            Self::GpuTemperature => window.max(StepSignal::GpuTemperature),
            _ => {
                let Ratio {
                    part,
                    total,
                    min_total,
                } = self.ratio()?;
                window.ratio(part, total, min_total)
            }
        }
    }

    /// The ratio that the measure is. `None`: it is no ratio of sums.
    const fn ratio(self) -> Option<Ratio> {
        use StepSignal as S;
        Some(match self {
            Self::PreemptionsPerRequest => Ratio::of(S::Preemptions, S::FirstTokens, 1.0),
            Self::PrefixHitRatio => Ratio::of(S::PrefixHits, S::PrefixQueries, MIN_TOKENS),
            Self::QueueTime => Ratio::of(S::QueueSeconds, S::Queued, MIN_OBSERVATIONS),
            Self::PrefillTime => Ratio::of(S::PrefillSeconds, S::Prefilled, MIN_OBSERVATIONS),
            Self::EngineTtft => Ratio::of(S::FirstTokenSeconds, S::FirstTokens, MIN_OBSERVATIONS),
            Self::EngineInterToken => Ratio::of(S::InterTokenSeconds, S::Gaps, 100.0),
            Self::Ttft => Ratio::of(S::FirstOutputSeconds, S::FirstOutputs, MIN_OBSERVATIONS),
            Self::SlowShare => Ratio::of(S::SlowFirstOutputs, S::FirstOutputs, 20.0),
            Self::CancelRatio => Ratio::of(S::Cancelled, S::Finished, 20.0),
            Self::StallsPerStream => Ratio::of(S::Stalls, S::FirstOutputs, MIN_OBSERVATIONS),
            Self::ReusablePrompt => {
                Ratio::of(S::ReusableTokens, S::GatewayPromptTokens, MIN_TOKENS)
            }
            Self::KnownPrompt => Ratio::of(S::KnownTokens, S::GatewayPromptTokens, MIN_TOKENS),
            Self::RequestSeconds => Ratio::of(S::ServedSeconds, S::Served, MIN_COMPARED_STREAMS),
            Self::SecondsPerToken => {
                Ratio::of(S::ServedSeconds, S::ServedTokens, MIN_SERVED_TOKENS)
            }
            Self::PromptTokens => {
                Ratio::of(S::GatewayPromptTokens, S::Finished, MIN_COMPARED_STREAMS)
            }
            Self::DraftAcceptance => Ratio::of(S::AcceptedTokens, S::DraftTokens, MIN_TOKENS),
            _ => return self.ratio_of_answers(),
        })
    }

    /// The ratio of a measure of what engines answer.
    const fn ratio_of_answers(self) -> Option<Ratio> {
        use StepSignal as S;
        Some(match self {
            Self::EmptyShare => Ratio::of(S::EmptyResponses, S::Responses, MIN_OBSERVATIONS),
            Self::CutShare => Ratio::of(S::CutResponses, S::Responses, MIN_OBSERVATIONS),
            Self::AnswerTokens => Ratio::of(S::ServedTokens, S::Served, MIN_COMPARED_STREAMS),
            Self::AnswerLength => Ratio::of(S::ServedRoots, S::Served, MIN_OBSERVATIONS),
            Self::RepetitiveShare => Ratio::of(S::RepetitiveTexts, S::Texts, MIN_OBSERVATIONS),
            Self::DistinctPieces => Ratio::of(S::DistinctPieces, S::Texts, MIN_OBSERVATIONS),
            Self::PieceBytes => Ratio::of(S::PieceBytes, S::Texts, MIN_OBSERVATIONS),
            Self::NonAsciiShare => Ratio::of(S::NonAscii, S::Texts, MIN_OBSERVATIONS),
            Self::DamagedShare => Ratio::of(S::DamagedTexts, S::SampledTexts, MIN_OBSERVATIONS),
            Self::ToolCallShare => Ratio::of(S::ToolCalls, S::ToolAnswers, MIN_OBSERVATIONS),
            Self::MissingJsonShare => Ratio::of(S::MissingJson, S::JsonAnswers, MIN_OBSERVATIONS),
            Self::ReasoningAloneShare => {
                Ratio::of(S::ReasoningAlone, S::Responses, MIN_OBSERVATIONS)
            }
            Self::WrongUsageShare => Ratio::of(S::WrongUsages, S::Responses, MIN_OBSERVATIONS),
            _ => return None,
        })
    }

    /// The smallest relevant deviation of the value, in the unit of the measure. A change of six deviations
    /// is an anomaly: for example 0.06 for a ratio, 3 requests, or 3 ms.
    pub(crate) fn min_deviation(self) -> f64 {
        match self.unit() {
            "ratio" | "1/s" => 0.01,
            "requests" => 0.5,
            "s" => 0.000_5,
            _ => 1.0,
        }
    }

    /// Whether the usual value does not depend on the process of the backend, so that it is kept at a restart.
    pub(crate) const fn survives_restart(self) -> bool {
        matches!(
            self,
            Self::EmptyShare
                | Self::CutShare
                | Self::AnswerLength
                | Self::RepetitiveShare
                | Self::DistinctPieces
                | Self::PieceBytes
                | Self::NonAsciiShare
                | Self::DamagedShare
                | Self::ToolCallShare
                | Self::MissingJsonShare
                | Self::ReasoningAloneShare
                | Self::WrongUsageShare
        )
    }

    /// The direction of a change that can harm requests.
    pub(crate) fn adverse_change(self) -> AdverseChange {
        match self {
            Self::PrefixHitRatio
            | Self::GenerationRate
            | Self::DraftAcceptance
            | Self::ToolCallShare => AdverseChange::Fall,
            Self::AnswerTokens | Self::NonAsciiShare => AdverseChange::Either,
            // A change of these measures is no harm. Clients choose their prompts, and longer prompts
            // are in prefill for longer. The values of GPUs follow the load; faults have rules of
            // their own.
            Self::ReusablePrompt
            | Self::KnownPrompt
            | Self::Prefilling
            | Self::RequestRate
            | Self::AnswerLength
            | Self::DistinctPieces
            | Self::PieceBytes
            | Self::GpuUtilization
            | Self::GpuThrottled
            | Self::GpuTemperature => AdverseChange::None,
            _ => AdverseChange::Rise,
        }
    }
}

impl StepWindow<'_> {
    /// The value of a measure in the window. `None`: too little data.
    pub(crate) fn get(&self, measure: WindowMeasure) -> Option<f64> {
        measure.compute(self)
    }

    /// The lag of the front end: the mean TTFT of the gateway minus the mean TTFT of the engine, in seconds.
    /// `None`: the gateway and the engine do not count the same requests. They count the same requests if
    /// the gateway had at least `min_streams` first outputs, at least 90 % of its ended requests were
    /// streams, and the number of first outputs and the engine's number of first tokens differ by at most
    /// one fifth.
    pub(crate) fn front_end_lag(&self, min_streams: f64) -> Option<f64> {
        let outputs = self.sum(StepSignal::FirstOutputs)?;
        let tokens = self.sum(StepSignal::FirstTokens)?;
        let streams = self
            .ratio(StepSignal::Streams, StepSignal::Finished, 1.0)
            .unwrap_or(1.0);
        let counts_same_requests =
            outputs >= min_streams && (outputs - tokens).abs() <= 0.2 * outputs && streams >= 0.9;
        let lag = self.get(WindowMeasure::Ttft)? - self.get(WindowMeasure::EngineTtft)?;
        // No request has output before its engine has it: the engine counts other requests, or at other times.
        let is_possible = lag >= -MAX_NEGATIVE_LAG;
        (counts_same_requests && is_possible).then_some(lag.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_name_is_unique() {
        let names: BTreeSet<&&str> = WindowMeasure::NAMES.iter().collect();
        assert_eq!(names.len(), COUNT);
    }
}
