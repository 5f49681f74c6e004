//! vLLM's own request metrics: histograms and finish reasons, computed from the steps of the engine. As in
//! vLLM, aborted requests do not count.

use crate::engine::{EngineStep, FinishedSequence};
use crate::text::SimulatedFinishReason;
use std::time::Duration;
use tokenweir_protocol::histogram::{BucketBounds, BucketLayout, FixedBucketHistogram};

const FIRST_TOKEN_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const INTER_TOKEN_BOUNDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// The bucket bounds of vLLM's histograms for the phases of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnginePhase;

impl BucketLayout for EnginePhase {
    const BOUNDS: &'static [f64] = &[
        0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
        240.0, 480.0, 960.0, 1920.0, 7680.0,
    ];
}

/// A histogram of times in seconds. Its default bucket bounds are those of vLLM for the phases of a request.
pub type EngineHistogram = FixedBucketHistogram<EnginePhase>;

/// The histograms and finish reasons of one engine. Times are simulated.
#[derive(Debug, Clone)]
pub struct EngineTelemetry {
    /// Time from the submission of a sequence to its first token.
    pub time_to_first_token: EngineHistogram,
    /// Time between two consecutive steps that produced tokens of a sequence.
    pub inter_token_latency: EngineHistogram,
    /// Time from the submission of a sequence to its last token.
    pub e2e_request_latency: EngineHistogram,
    /// Time from the submission of a sequence to its first admission.
    pub request_queue_time: EngineHistogram,
    /// Time from the first admission of a sequence to its last token.
    pub request_inference_time: EngineHistogram,
    /// Time from the first admission of a sequence to its first token.
    pub request_prefill_time: EngineHistogram,
    /// Time from the first token of a sequence to its last token.
    pub request_decode_time: EngineHistogram,
    /// Number of sequences that ended with the finish reason `stop`.
    pub stopped: u64,
    /// Number of sequences that ended with the finish reason `length`.
    pub length_limited: u64,
}

impl Default for EngineTelemetry {
    fn default() -> Self {
        let with_bounds = |bounds| EngineHistogram::with_bounds(&BucketBounds::from_static(bounds));
        Self {
            time_to_first_token: with_bounds(FIRST_TOKEN_BOUNDS),
            inter_token_latency: with_bounds(INTER_TOKEN_BOUNDS),
            e2e_request_latency: EngineHistogram::default(),
            request_queue_time: EngineHistogram::default(),
            request_inference_time: EngineHistogram::default(),
            request_prefill_time: EngineHistogram::default(),
            request_decode_time: EngineHistogram::default(),
            stopped: 0,
            length_limited: 0,
        }
    }
}

impl EngineTelemetry {
    /// Adds the latencies of the tokens of a step to the histograms.
    pub fn record_step(&mut self, step: &EngineStep) {
        for token in &step.tokens {
            match token.nth {
                1 => observe(&mut self.time_to_first_token, token.gap),
                // vLLM observes one time per sequence and step, even if the step accepted several draft tokens.
                _ if token.gap.is_zero() => {}
                _ => observe(&mut self.inter_token_latency, token.gap),
            }
        }
    }

    /// Adds the times and the finish reason of a finished sequence.
    pub fn record_finished(&mut self, times: &FinishedSequence, finish: SimulatedFinishReason) {
        let &FinishedSequence {
            arrived,
            queued,
            scheduled,
            first_token,
            last_token,
            ..
        } = times;
        observe(
            &mut self.e2e_request_latency,
            last_token.saturating_sub(arrived),
        );
        observe(
            &mut self.request_queue_time,
            scheduled.saturating_sub(queued),
        );
        observe(
            &mut self.request_inference_time,
            last_token.saturating_sub(scheduled),
        );
        observe(
            &mut self.request_prefill_time,
            first_token.saturating_sub(scheduled),
        );
        observe(
            &mut self.request_decode_time,
            last_token.saturating_sub(first_token),
        );
        match finish {
            SimulatedFinishReason::Stop => self.stopped += 1,
            SimulatedFinishReason::Length => self.length_limited += 1,
        }
    }
}

fn observe(histogram: &mut EngineHistogram, time: Duration) {
    histogram.record_n(time.as_secs_f64(), 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::{GeneratedToken, SequenceId};

    #[test]
    fn accepted_drafts_are_one_inter_token_latency() {
        let token = |nth, gap| GeneratedToken {
            id: SequenceId(1),
            nth,
            gap: Duration::from_millis(gap),
            prompt_tokens: 3,
            cached_tokens: 0,
        };
        let tokens = vec![token(2, 20), token(3, 0), token(4, 0)];
        let mut telemetry = EngineTelemetry::default();
        telemetry.record_step(&EngineStep {
            duration: Duration::ZERO,
            tokens,
            finished: vec![],
        });
        let latency = &telemetry.inter_token_latency;
        assert_eq!((latency.count(), latency.sum()), (1, 0.02));
    }
}
