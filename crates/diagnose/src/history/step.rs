//! A step of the history: the gauges of one sample, and the growth of counters since the previous sample. The
//! values of a step are 32-bit numbers, so that five minutes of steps take a few KiB.

use super::sample::{BackendRequestCounts, DiagnosisSample, GatewayObservations};
use std::time::Instant;
use tokenweir_engine::dialect::EngineLoad;

/// A value of a step of the history. [`HistoryStep`] has one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepSignal {
    /// Share of the KV cache that requests occupy.
    KvUsage,
    /// Number of requests that wait in the engine.
    Waiting,
    /// Number of requests that run in the engine.
    Running,
    /// Number of the waiting requests that wait for a LoRA adapter, a KV transfer or another passing constraint.
    Deferred,
    /// Seconds from the previous metrics page to the page of this sample. Unknown if one of the two pages is
    /// missing or the backend process restarted.
    Elapsed,
    // The signals from `Preemptions` to `AcceptedTokens` are the growth of counters of the metrics page in the time
    // `Elapsed`.
    /// Number of preemptions.
    Preemptions,
    PrefixQueries,
    PrefixHits,
    PromptTokens,
    GenerationTokens,
    QueueSeconds,
    Queued,
    PrefillSeconds,
    Prefilled,
    FirstTokenSeconds,
    FirstTokens,
    InterTokenSeconds,
    Gaps,
    DraftTokens,
    AcceptedTokens,
    /// Number of requests of this gateway at the backend.
    InFlight,
    /// Number of streams of this gateway at the backend that are stalled.
    Stalled,
    /// Number of stalls that began since the previous sample.
    Stalls,
    /// The p99 of the times between outputs, in seconds.
    GapP99,
    /// Number of streams of this gateway at the backend without a first output.
    Pending,
    /// Prompt tokens that the engine has to compute for the streams without a first output.
    PendingTokens,
    /// Tokens that the requests of this gateway in flight may have in the KV cache.
    HeldTokens,
    /// Seconds for which the oldest request without output has been overdue while nothing else had output.
    Overdue,
    /// Seconds since the first canary request without an answer.
    Canary,
    /// Number of times that the metrics page was that of another engine since the previous sample.
    EngineSwitches,
    Connects,
    ConnectSeconds,
    FirstHeads,
    FirstHeadSeconds,
    /// The longest time of a metrics page, in seconds.
    PageSeconds,
    /// Number of streams without output for long.
    Hanging,
    /// Age of the oldest of them, in seconds.
    HangingSeconds,
    // The signals from here on are the fields of `BackendRequestCounts`.
    /// Number of streams that had their first output.
    FirstOutputs,
    FirstOutputSeconds,
    SlowFirstOutputs,
    Heads,
    HeadSeconds,
    MediaOutputs,
    MediaSeconds,
    StructuredOutputs,
    StructuredSeconds,
    LongOutputs,
    LongSeconds,
    PlainOutputs,
    PlainSeconds,
    StreamTokens,
    StreamEvents,
    StreamArrivals,
    Finished,
    Streams,
    Cancelled,
    CancelSeconds,
    CancelSecondsSquared,
    GatewayPromptTokens,
    ReusableTokens,
    ReusableHereTokens,
    KnownTokens,
    LongestPrompt,
    RefusedAttempts,
    Generated,
    Buffered,
    Served,
    ServedSeconds,
    ServedTokens,
    ServedRoots,
    Texts,
    RepetitiveTexts,
    DistinctPieces,
    DistinctSquares,
    PieceBytes,
    PieceBytesSquares,
    NonAscii,
    NonAsciiSquares,
    SampledTexts,
    DamagedTexts,
    ToolAnswers,
    ToolCalls,
    TextsLikeCalls,
    JsonAnswers,
    MissingJson,
    WrongUsages,
    Responses,
    EmptyResponses,
    ReasoningAlone,
    UselessResponses,
    CutResponses,
    // The signals from here on are those of the GPUs.
    /// Mean utilisation of the GPUs, 0 to 1.
    GpuUtilization,
    /// 1 if a GPU lowers its clock because of a fault, else 0.
    GpuThrottled,
    /// Temperature of the hottest GPU, in degrees Celsius.
    GpuTemperature,
}

/// Number of signals of a step.
const SIGNAL_COUNT: usize = StepSignal::GpuTemperature as usize + 1;

/// One step of the history: the value of each signal. NaN: unknown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HistoryStep {
    /// Time of the sample.
    pub(crate) at: Instant,
    /// The values, in the order of [`StepSignal`].
    values: [f32; SIGNAL_COUNT],
}

/// A signal whose value is the growth of a counter of the metrics page, and the function that reads the
/// counter.
type LoadCounter = (StepSignal, fn(&EngineLoad) -> Option<f64>);

const LOAD_COUNTERS: [LoadCounter; 15] = [
    (StepSignal::Preemptions, |load| load.preemptions),
    (StepSignal::PrefixQueries, |load| load.prefix_queries),
    (StepSignal::PrefixHits, |load| load.prefix_hits),
    (StepSignal::PromptTokens, |load| load.prompt_tokens),
    (StepSignal::GenerationTokens, |load| load.generation_tokens),
    (StepSignal::QueueSeconds, |load| load.queue_seconds),
    (StepSignal::Queued, |load| load.queued),
    (StepSignal::PrefillSeconds, |load| load.prefill_seconds),
    (StepSignal::Prefilled, |load| load.prefilled),
    (StepSignal::FirstTokenSeconds, |load| {
        load.first_token_seconds
    }),
    (StepSignal::FirstTokens, |load| load.first_tokens),
    (StepSignal::InterTokenSeconds, |load| load.gap_seconds),
    (StepSignal::Gaps, |load| load.gaps),
    (StepSignal::DraftTokens, |load| load.draft_tokens),
    (StepSignal::AcceptedTokens, |load| load.accepted_tokens),
];

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
            values: [f32::NAN; SIGNAL_COUNT],
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
        for (signal, read) in LOAD_COUNTERS {
            let growth = read(page).zip(read(before)).map(|(now, then)| now - then);
            self.set(signal, growth.filter(|growth| *growth >= 0.0));
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
        for (signal, value) in [
            (StepSignal::Connects, observations.connects as f64),
            (StepSignal::ConnectSeconds, observations.connect_seconds),
            (StepSignal::FirstHeads, observations.first_heads as f64),
            (
                StepSignal::FirstHeadSeconds,
                observations.first_head_seconds,
            ),
            (StepSignal::Hanging, f64::from(observations.hanging)),
            (StepSignal::HangingSeconds, observations.hanging_seconds),
            (StepSignal::Stalled, f64::from(observations.stalled)),
            (StepSignal::Pending, f64::from(observations.pending)),
            (
                StepSignal::PendingTokens,
                observations.pending_tokens as f64,
            ),
            (StepSignal::HeldTokens, observations.held_tokens as f64),
            (StepSignal::Overdue, observations.overdue_seconds),
            (StepSignal::Canary, observations.canary_seconds),
        ] {
            self.set(signal, Some(value));
        }
        self.add_requests(&observations.counts);
        self.add_texts(&observations.counts);
        self.add_responses(&observations.counts);
    }

    fn add_requests(&mut self, counts: &BackendRequestCounts) {
        for (signal, value) in [
            (StepSignal::FirstOutputs, counts.first_outputs as f64),
            (StepSignal::FirstOutputSeconds, counts.first_output_seconds),
            (
                StepSignal::SlowFirstOutputs,
                counts.slow_first_outputs as f64,
            ),
            (StepSignal::Heads, counts.heads as f64),
            (StepSignal::HeadSeconds, counts.head_seconds),
            (StepSignal::MediaOutputs, counts.media_outputs as f64),
            (StepSignal::MediaSeconds, counts.media_seconds),
            (
                StepSignal::StructuredOutputs,
                counts.structured_outputs as f64,
            ),
            (StepSignal::StructuredSeconds, counts.structured_seconds),
            (StepSignal::LongOutputs, counts.long_outputs as f64),
            (StepSignal::LongSeconds, counts.long_seconds),
            (StepSignal::PlainOutputs, counts.plain_outputs as f64),
            (StepSignal::PlainSeconds, counts.plain_seconds),
            (StepSignal::StreamTokens, counts.stream_tokens as f64),
            (StepSignal::StreamEvents, counts.stream_events as f64),
            (StepSignal::StreamArrivals, counts.stream_arrivals as f64),
            (StepSignal::Finished, counts.finished as f64),
            (StepSignal::Streams, counts.streams as f64),
            (StepSignal::Cancelled, counts.cancelled as f64),
            (StepSignal::CancelSeconds, counts.cancel_seconds),
            (StepSignal::CancelSecondsSquared, counts.cancel_squares),
            (StepSignal::GatewayPromptTokens, counts.prompt_tokens),
            (StepSignal::ReusableTokens, counts.reusable_tokens),
            (StepSignal::ReusableHereTokens, counts.reusable_here_tokens),
            (StepSignal::KnownTokens, counts.known_tokens),
            (StepSignal::LongestPrompt, counts.longest_prompt),
            (StepSignal::RefusedAttempts, counts.refused_attempts as f64),
            (StepSignal::Generated, counts.generated as f64),
        ] {
            self.set(signal, Some(value));
        }
    }

    fn add_texts(&mut self, counts: &BackendRequestCounts) {
        for (signal, value) in [
            (StepSignal::Buffered, counts.buffered as f64),
            (StepSignal::Served, counts.served as f64),
            (StepSignal::ServedSeconds, counts.served_seconds),
            (StepSignal::ServedTokens, counts.served_tokens as f64),
            (StepSignal::ServedRoots, counts.served_roots),
            (StepSignal::Texts, counts.texts as f64),
            (StepSignal::RepetitiveTexts, counts.repetitive_texts as f64),
            (StepSignal::DistinctPieces, counts.distinct_pieces),
            (StepSignal::DistinctSquares, counts.distinct_squares),
            (StepSignal::PieceBytes, counts.piece_bytes),
            (StepSignal::PieceBytesSquares, counts.piece_bytes_squares),
            (StepSignal::NonAscii, counts.non_ascii),
            (StepSignal::NonAsciiSquares, counts.non_ascii_squares),
        ] {
            self.set(signal, Some(value));
        }
    }

    fn add_responses(&mut self, counts: &BackendRequestCounts) {
        for (signal, value) in [
            (StepSignal::SampledTexts, counts.sampled_texts),
            (StepSignal::DamagedTexts, counts.damaged_texts),
            (StepSignal::ToolAnswers, counts.tool_answers),
            (StepSignal::ToolCalls, counts.tool_calls),
            (StepSignal::TextsLikeCalls, counts.texts_like_calls),
            (StepSignal::JsonAnswers, counts.json_answers),
            (StepSignal::MissingJson, counts.missing_json),
            (StepSignal::WrongUsages, counts.wrong_usages),
            (StepSignal::Responses, counts.responses),
            (StepSignal::EmptyResponses, counts.empty_responses),
            (StepSignal::ReasoningAlone, counts.reasoning_alone),
            (StepSignal::UselessResponses, counts.useless_responses),
            (StepSignal::CutResponses, counts.cut_responses),
        ] {
            self.set(signal, Some(value as f64));
        }
    }
}
