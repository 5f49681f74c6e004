//! The measures of a window of steps, each with its name, its unit and its computation. Rules evaluate the
//! measures, and each measure has a baseline.

use super::signals::StepSignal;
use super::window::StepWindow;
use tokenweir_protocol::named_enum;

/// Declares the measures. A row contains the name, the unit, the direction of a harmful change, the source of
/// the value, and the words for a change.
macro_rules! measures {
    ($($measure:ident = $name:literal, $unit:literal, $change:ident:
        $source:ident($($signal:ident),* $(; $min:expr)?) $(, $kind:ident $words:literal)?;)+) => {
        named_enum! {
            /// A measure that is computed from a window of steps. Evidence and anomalies contain its name.
            pub(crate) enum WindowMeasure {
                $($measure = $name,)+
            }
        }

        impl WindowMeasure {
            pub(crate) const fn unit(self) -> &'static str {
                match self {
                    $(Self::$measure => $unit,)+
                }
            }

            /// The direction of a change that can harm requests.
            pub(crate) const fn adverse_change(self) -> AdverseChange {
                match self {
                    $(Self::$measure => AdverseChange::$change,)+
                }
            }

            const fn source(self) -> Source {
                match self {
                    $(Self::$measure => Source::$source($(StepSignal::$signal),* $(, $min)?),)+
                }
            }

            /// The words that describe a change of the measure. `None`: the measure is not reported as changed.
            pub(crate) fn words(self) -> Option<ChangeWords> {
                match self {
                    $($(Self::$measure => Some(ChangeWords { kind: ChangeKind::$kind, text: $words }),)?)+
                    _ => None,
                }
            }
        }
    };
}

// A change of these measures alone is no harm. Clients choose their prompts, and longer prompts stay longer in
// prefill. GPU values follow the load, and GPU faults have their own rules.
measures! {
    KvUsage = "kv_usage", "ratio", Rise: Mean(KvUsage), Load "usage of the KV cache";
    KvUsageP90 = "kv_usage_p90", "ratio", Rise: P90(KvUsage), Load "usage of the KV cache";
    Waiting = "waiting", "requests", Rise: Mean(Waiting), Load "waiting requests";
    Running = "running", "requests", Rise: Mean(Running), Load "running requests";
    PreemptionRate = "preemptions_per_second", "1/s", Rise: Rate(Preemptions), Cause "preemptions";
    PreemptionsPerRequest = "preemptions_per_request", "ratio", Rise: Ratio(Preemptions, FirstTokens; 1.0), Cause "preemptions per request";
    PrefixHitRatio = "prefix_hit_ratio", "ratio", Fall: Ratio(PrefixHits, PrefixQueries; MIN_TOKENS), Cause "prefix hit ratio";
    QueueTime = "queue_time_mean", "s", Rise: Ratio(QueueSeconds, Queued; MIN_OBSERVATIONS), FirstTokens "time in the engine's queue";
    PrefillTime = "prefill_time_mean", "s", Rise: Ratio(PrefillSeconds, Prefilled; MIN_OBSERVATIONS), FirstTokens "time of the prefill";
    Prefilling = "in_prefill", "requests", None: Prefilling();
    EngineTtft = "engine_ttft_mean", "s", Rise: Ratio(FirstTokenSeconds, FirstTokens; MIN_OBSERVATIONS), FirstTokens "time to first token";
    EngineInterToken = "engine_inter_token_mean", "s", Rise: Ratio(InterTokenSeconds, Gaps; 100.0), Tokens "time between tokens";
    GenerationRate = "generation_tokens_per_second", "tokens/s", Fall: Rate(GenerationTokens), Tokens "generated tokens";
    Ttft = "ttft_mean", "s", Rise: Ratio(FirstOutputSeconds, FirstOutputs; MIN_OBSERVATIONS), FirstTokens "time to first token";
    SlowShare = "slow_first_outputs", "ratio", Rise: Ratio(SlowFirstOutputs, FirstOutputs; 20.0), FirstTokens "late first tokens";
    GapP99 = "inter_token_p99", "s", Rise: Mean(GapP99), Tokens "p99 of the time between tokens";
    InFlight = "in_flight", "requests", Rise: Mean(InFlight), Load "requests in flight";
    CancelRatio = "cancelled", "ratio", Rise: Ratio(Cancelled, Finished; 20.0), Cause "clients that disconnect";
    EmptyShare = "empty_responses", "ratio", Rise: Answers(EmptyResponses, Responses; MIN_OBSERVATIONS), Cause "empty responses";
    CutShare = "cut_responses", "ratio", Rise: Answers(CutResponses, Responses; MIN_OBSERVATIONS), Cause "responses that end at a limit";
    FrontEnd = "front_end_lag", "s", Rise: FrontEndLag(), Cause "time before the engine";
    StallsPerStream = "stalls_per_stream", "ratio", Rise: Ratio(Stalls, FirstOutputs; MIN_OBSERVATIONS), Cause "stalls per stream";
    ReusablePrompt = "reusable_prompt", "ratio", None: Ratio(ReusableTokens, GatewayPromptTokens; MIN_TOKENS);
    KnownPrompt = "known_prompt", "ratio", None: Ratio(KnownTokens, GatewayPromptTokens; MIN_TOKENS);
    RequestSeconds = "request_seconds_mean", "s", Rise: Ratio(ServedSeconds, Served; MIN_COMPARED_STREAMS), Requests "duration of requests";
    SecondsPerToken = "seconds_per_output_token", "s", Rise: Ratio(ServedSeconds, ServedTokens; MIN_SERVED_TOKENS), Requests "time per output token";
    RequestRate = "requests_per_second", "1/s", None: PerSecond(Finished);
    PromptTokens = "prompt_tokens_mean", "tokens", Rise: Ratio(GatewayPromptTokens, Finished; MIN_COMPARED_STREAMS), Cause "prompt length";
    AnswerTokens = "output_tokens_mean", "tokens", Either: Ratio(ServedTokens, Served; MIN_COMPARED_STREAMS), Cause "length of answers";
    AnswerLength = "output_length", "tokens^0.5", None: Answers(ServedRoots, Served; MIN_OBSERVATIONS);
    RepetitiveShare = "repetitive_texts", "ratio", Rise: Answers(RepetitiveTexts, Texts; MIN_OBSERVATIONS), Cause "answers that repeat themselves";
    DistinctPieces = "distinct_pieces", "pieces", None: Answers(DistinctPieces, Texts; MIN_OBSERVATIONS);
    PieceBytes = "piece_bytes", "bytes", None: Answers(PieceBytes, Texts; MIN_OBSERVATIONS);
    NonAsciiShare = "non_ascii_text", "ratio", Either: Answers(NonAscii, Texts; MIN_OBSERVATIONS), Cause "text outside ASCII in answers";
    DamagedShare = "damaged_texts", "ratio", Rise: Answers(DamagedTexts, SampledTexts; MIN_OBSERVATIONS), Cause "answers with damaged characters";
    ToolCallShare = "tool_calls", "ratio", Fall: Answers(ToolCalls, ToolAnswers; MIN_OBSERVATIONS), Cause "tool calls among the answers to requests with tools";
    MissingJsonShare = "missing_json", "ratio", Rise: Answers(MissingJson, JsonAnswers; MIN_OBSERVATIONS), Cause "answers that are not the requested JSON";
    ReasoningAloneShare = "reasoning_alone", "ratio", Rise: Answers(ReasoningAlone, Responses; MIN_OBSERVATIONS), Cause "responses with reasoning alone";
    WrongUsageShare = "wrong_token_counts", "ratio", Rise: Answers(WrongUsages, Responses; MIN_OBSERVATIONS), Cause "responses with wrong token counts";
    DraftAcceptance = "draft_acceptance", "ratio", Fall: Ratio(AcceptedTokens, DraftTokens; MIN_TOKENS), Cause "acceptance of draft tokens";
    GpuUtilization = "gpu_utilization", "ratio", None: Mean(GpuUtilization);
    GpuThrottled = "gpu_throttled", "ratio", None: Mean(GpuThrottled);
    GpuTemperature = "gpu_temperature", "°C", None: Max(GpuTemperature);
}

/// How the value of a measure is computed.
enum Source {
    Mean(StepSignal),
    P90(StepSignal),
    Max(StepSignal),
    /// The growth of a counter per second of the time between two metrics pages.
    Rate(StepSignal),
    /// The sum of a signal, per second of the window.
    PerSecond(StepSignal),
    /// The sum of the first signal divided by the sum of the second one. Unknown if the second sum is below the
    /// minimum.
    Ratio(StepSignal, StepSignal, f64),
    /// The same ratio, for a property of answers. Its usual value is kept when the backend process restarts.
    Answers(StepSignal, StepSignal, f64),
    /// The lag of the front end: [`StepWindow::front_end_lag`].
    FrontEndLag(),
    /// The number of requests in prefill: [`in_prefill`].
    Prefilling(),
}

/// A kind of change. Of several measures of one kind, only the strongest change is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// A change of what clients send or of how engines work: a cause.
    Cause,
    Tokens,
    FirstTokens,
    Requests,
    /// A change of the number of requests, which results from a change of the times.
    Load,
}

pub(crate) struct ChangeWords {
    pub(crate) kind: ChangeKind,
    pub(crate) text: &'static str,
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

pub(crate) const COUNT: usize = WindowMeasure::ALL.len();
/// Minimum number of observations in a window for a usable mean.
const MIN_OBSERVATIONS: f64 = 5.0;
/// Minimum number of first outputs in a window for a comparison of the gateway with the engine.
pub(crate) const MIN_COMPARED_STREAMS: f64 = 20.0;
/// Maximum mean time in seconds by which the TTFT of the engine may exceed that of the gateway. It is above
/// zero because the two clocks and windows differ a little.
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

/// The sum of `part` in a window divided by the sum of `total`. Unknown if the sum of `total` is below
/// `min_total`.
#[derive(Clone, Copy)]
pub struct Ratio {
    pub(crate) part: StepSignal,
    pub(crate) total: StepSignal,
    pub(crate) min_total: f64,
}

impl Ratio {
    pub(crate) const fn of(part: StepSignal, total: StepSignal, min_total: f64) -> Self {
        Self {
            part,
            total,
            min_total,
        }
    }

    /// The ratio over all these windows. `None`: the total is below the minimum.
    pub(crate) fn of_all(&self, windows: &[StepWindow<'_>]) -> Option<f64> {
        let sum = |signal| windows.iter().map(|it| it.total(signal)).sum::<f64>();
        let total = sum(self.total);
        (total >= self.min_total).then(|| sum(self.part) / total)
    }
}

impl WindowMeasure {
    /// The value in a window. `None`: the window has too little data.
    fn compute(self, window: &StepWindow<'_>) -> Option<f64> {
        match self.source() {
            Source::Mean(signal) => window.mean(signal),
            Source::P90(signal) => window.quantile(signal, 0.9),
            Source::Max(signal) => window.max(signal),
            Source::Rate(signal) => window.rate(signal),
            Source::PerSecond(signal) => Some(window.sum(signal)? / window.seconds()),
            Source::Ratio(part, total, min) | Source::Answers(part, total, min) => {
                window.ratio(part, total, min)
            }
            Source::FrontEndLag() => window.front_end_lag(MIN_COMPARED_STREAMS),
            Source::Prefilling() => in_prefill(window),
        }
    }

    /// The ratio of sums from which the measure is computed. `None`: the measure is no ratio of sums.
    pub(crate) const fn ratio(self) -> Option<Ratio> {
        match self.source() {
            Source::Ratio(part, total, min) | Source::Answers(part, total, min) => {
                Some(Ratio::of(part, total, min))
            }
            _ => None,
        }
    }

    /// Whether the usual value is kept when the backend process restarts, because it does not depend on the
    /// process.
    pub(crate) const fn survives_restart(self) -> bool {
        matches!(self.source(), Source::Answers(..))
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
        // If the TTFT of the engine is longer than that of the gateway, the engine counts other requests, or at
        // other times.
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
