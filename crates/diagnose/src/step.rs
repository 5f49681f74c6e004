//! What one moment of a replica adds to the moment before: gauges as they stand, and what counters
//! grew by. A step is one row of small numbers, so that minutes of them take a few KiB.

use super::sample::{Sample, Seen};
use std::time::Instant;
use tokenweir_core::dialect::Load;

/// A number of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// Share of the KV cache that requests hold.
    KvUsage,
    /// Requests that wait in the engine.
    Waiting,
    /// Requests that run there.
    Running,
    /// Seconds since the page before, if both were read and are of one process.
    Elapsed,
    /// What the counters of the page grew by in that time.
    Preemptions,
    PrefixQueries,
    PrefixHits,
    PromptTokens,
    GenerationTokens,
    QueueSeconds,
    Queued,
    FirstTokenSeconds,
    FirstTokens,
    GapSeconds,
    Gaps,
    /// Requests of this gateway at the replica.
    InFlight,
    /// Those of its streams that are silent.
    Stalled,
    /// How many fell silent.
    Stalls,
    /// The p99 of the times between outputs, in seconds.
    GapP99,
    /// Requests that wait in the gateway.
    GatewayQueue,
    /// The fields of [`super::Counts`].
    FirstOutputs,
    FirstOutputSeconds,
    SlowFirstOutputs,
    Finished,
    Streams,
    Cancelled,
    CancelSeconds,
    CancelSquares,
    AskedTokens,
    ReusableTokens,
    ReusableHereTokens,
    LongestPrompt,
}

/// How many signals there are.
const COUNT: usize = Signal::LongestPrompt as usize + 1;

/// One row of numbers. NaN: not known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) at: Instant,
    values: [f32; COUNT],
}

/// A counter of a page, and the signal of its growth.
type Counter = (Signal, fn(&Load) -> Option<f64>);

const COUNTERS: [Counter; 11] = [
    (Signal::Preemptions, |load| load.preemptions),
    (Signal::PrefixQueries, |load| load.prefix_queries),
    (Signal::PrefixHits, |load| load.prefix_hits),
    (Signal::PromptTokens, |load| load.prompt_tokens),
    (Signal::GenerationTokens, |load| load.generation_tokens),
    (Signal::QueueSeconds, |load| load.queue_seconds),
    (Signal::Queued, |load| load.queued),
    (Signal::FirstTokenSeconds, |load| load.first_token_seconds),
    (Signal::FirstTokens, |load| load.first_tokens),
    (Signal::GapSeconds, |load| load.gap_seconds),
    (Signal::Gaps, |load| load.gaps),
];

// === impl Signal ===

impl Signal {
    /// What has to tell it: a signal of the page by the name that `/status` has for it, or
    /// `gateway`, if only what passes through one can.
    pub(super) const fn source(self) -> &'static str {
        match self {
            Self::KvUsage => "kv_usage",
            Self::Waiting | Self::Running | Self::Elapsed => "queue",
            Self::Preemptions => "preemptions",
            Self::PrefixQueries | Self::PrefixHits => "prefix_cache",
            Self::PromptTokens | Self::GenerationTokens => "tokens",
            Self::QueueSeconds | Self::Queued => "queue_time",
            Self::FirstTokenSeconds | Self::FirstTokens => "time_to_first_token",
            Self::GapSeconds | Self::Gaps => "inter_token_latency",
            _ => "gateway",
        }
    }
}

// === impl Step ===

impl Step {
    /// The step to `sample` from the one before, of which only the page and the silences matter.
    pub(super) fn new(sample: &Sample, before: Option<&Sample>) -> Self {
        let mut step = Self { at: sample.at, values: [f32::NAN; COUNT] };
        if let Some(page) = &sample.page {
            step.set(Signal::KvUsage, page.kv_usage);
            step.set(Signal::Waiting, page.waiting);
            step.set(Signal::Running, page.running);
            if let Some((then, load)) = before.and_then(|it| Some((it.at, it.page?))) {
                let elapsed = sample.at.saturating_duration_since(then).as_secs_f64();
                step.grow(elapsed, page, &load);
            }
        }
        if let Some(seen) = &sample.seen {
            step.see(seen, before.and_then(|it| it.seen).as_ref());
        }
        step
    }

    /// The value of a signal.
    pub(super) fn get(&self, signal: Signal) -> Option<f64> {
        let value = self.values[signal as usize];
        (!value.is_nan()).then_some(f64::from(value))
    }

    fn set(&mut self, signal: Signal, value: Option<f64>) {
        self.values[signal as usize] = value.map_or(f32::NAN, |value| value as f32);
    }

    fn grow(&mut self, elapsed: f64, page: &Load, before: &Load) {
        if page.is_restart_of(before) {
            return;
        }
        self.set(Signal::Elapsed, Some(elapsed));
        for (signal, read) in COUNTERS {
            let grown = read(page).zip(read(before)).map(|(now, then)| now - then);
            self.set(signal, grown.filter(|grown| *grown >= 0.0));
        }
    }

    fn see(&mut self, seen: &Seen, before: Option<&Seen>) {
        let counts = &seen.counts;
        let stalls = before.map(|before| seen.stalls.saturating_sub(before.stalls) as f64);
        self.set(Signal::Stalls, stalls);
        self.set(Signal::GapP99, seen.gap_p99);
        for (signal, value) in [
            (Signal::InFlight, f64::from(seen.in_flight)),
            (Signal::Stalled, f64::from(seen.stalled)),
            (Signal::GatewayQueue, seen.queued as f64),
            (Signal::FirstOutputs, counts.first_outputs as f64),
            (Signal::FirstOutputSeconds, counts.first_output_seconds),
            (Signal::SlowFirstOutputs, counts.slow_first_outputs as f64),
            (Signal::Finished, counts.finished as f64),
            (Signal::Streams, counts.streams as f64),
            (Signal::Cancelled, counts.cancelled as f64),
            (Signal::CancelSeconds, counts.cancel_seconds),
            (Signal::CancelSquares, counts.cancel_squares),
            (Signal::AskedTokens, counts.prompt_tokens),
            (Signal::ReusableTokens, counts.reusable_tokens),
            (Signal::ReusableHereTokens, counts.reusable_here_tokens),
            (Signal::LongestPrompt, counts.longest_prompt),
        ] {
            self.set(signal, Some(value));
        }
    }
}
