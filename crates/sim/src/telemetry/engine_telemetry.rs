//! vLLM's own request metrics: histograms and finish reasons, computed from the steps of the
//! engine. As in vLLM, aborted requests are not counted.

use crate::engine::{EngineStep, FinishedSequence};
use crate::text::SimulatedFinishReason;

const FIRST_TOKEN_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const INTER_TOKEN_BOUNDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const REQUEST_BOUNDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// A Prometheus histogram of seconds.
#[derive(Debug, Clone)]
pub struct PrometheusHistogram {
    bounds: &'static [f64],
    /// Counts per bucket, not cumulative. The last bucket is unbounded.
    bucket_counts: Vec<u64>,
    sum: f64,
}

impl PrometheusHistogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, bucket_counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn observe(&mut self, time: std::time::Duration) {
        let seconds = time.as_secs_f64();
        self.sum += seconds;
        self.bucket_counts[self.bounds.partition_point(|&bound| bound < seconds)] += 1;
    }

    /// The upper bound of each bucket, with the number of observations up to this bound. The last
    /// bound is `+Inf`.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.bucket_counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        }))
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.bucket_counts.iter().sum()
    }

    /// Sum of the observations in seconds.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

/// The histograms and finish reasons of one engine. Times are simulated.
#[derive(Debug, Clone)]
pub struct EngineTelemetry {
    /// Time from the submission of a sequence to its first token.
    pub time_to_first_token: PrometheusHistogram,
    /// Time between two consecutive tokens of a sequence.
    pub inter_token_latency: PrometheusHistogram,
    /// Time from the submission of a sequence to its last token.
    pub e2e_request_latency: PrometheusHistogram,
    /// Time from the submission of a sequence to its first admission.
    pub request_queue_time: PrometheusHistogram,
    /// Time from the first admission of a sequence to its last token.
    pub request_inference_time: PrometheusHistogram,
    /// Time from the first admission of a sequence to its first token.
    pub request_prefill_time: PrometheusHistogram,
    /// Time from the first token of a sequence to its last token.
    pub request_decode_time: PrometheusHistogram,
    /// Number of sequences that ended with the finish reason `stop`.
    pub stopped: u64,
    /// Number of sequences that ended with the finish reason `length`.
    pub length_limited: u64,
}

impl Default for EngineTelemetry {
    fn default() -> Self {
        Self {
            time_to_first_token: PrometheusHistogram::new(FIRST_TOKEN_BOUNDS),
            inter_token_latency: PrometheusHistogram::new(INTER_TOKEN_BOUNDS),
            e2e_request_latency: PrometheusHistogram::new(REQUEST_BOUNDS),
            request_queue_time: PrometheusHistogram::new(REQUEST_BOUNDS),
            request_inference_time: PrometheusHistogram::new(REQUEST_BOUNDS),
            request_prefill_time: PrometheusHistogram::new(REQUEST_BOUNDS),
            request_decode_time: PrometheusHistogram::new(REQUEST_BOUNDS),
            stopped: 0,
            length_limited: 0,
        }
    }
}

impl EngineTelemetry {
    /// Records the tokens of a step.
    pub fn record_step(&mut self, step: &EngineStep) {
        for token in &step.tokens {
            match token.nth {
                1 => self.time_to_first_token.observe(token.gap),
                _ => self.inter_token_latency.observe(token.gap),
            }
        }
    }

    /// Records a finished sequence.
    pub fn record_finished(&mut self, times: &FinishedSequence, finish: SimulatedFinishReason) {
        let &FinishedSequence { arrived, queued, scheduled, first_token, last_token, .. } = times;
        self.e2e_request_latency.observe(last_token.saturating_sub(arrived));
        self.request_queue_time.observe(scheduled.saturating_sub(queued));
        self.request_inference_time.observe(last_token.saturating_sub(scheduled));
        self.request_prefill_time.observe(first_token.saturating_sub(scheduled));
        self.request_decode_time.observe(last_token.saturating_sub(first_token));
        match finish {
            SimulatedFinishReason::Stop => self.stopped += 1,
            SimulatedFinishReason::Length => self.length_limited += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_counts_values_up_to_and_including_its_bound() {
        let mut histogram = PrometheusHistogram::new(INTER_TOKEN_BOUNDS);
        for millis in [10, 11, 90_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(buckets[..2], [(0.01, 1), (0.025, 2)]);
        assert_eq!(buckets[19], (f64::INFINITY, 3));
        assert_eq!(histogram.count(), 3);
    }
}
