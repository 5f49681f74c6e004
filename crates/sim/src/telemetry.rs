//! What vLLM measures of its own requests: histograms and finish reasons, fed by the steps of the
//! engine. Like vLLM's, they miss every request that its client gave up.

use super::engine::{Finished, Step};
use super::text::Finish;

const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const INTER_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// A Prometheus histogram of seconds.
#[derive(Debug, Clone)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Per bound, not cumulative; the last one is for what is above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn observe(&mut self, time: std::time::Duration) {
        let seconds = time.as_secs_f64();
        self.sum += seconds;
        self.counts[self.bounds.partition_point(|&bound| bound < seconds)] += 1;
    }

    /// The upper bounds with the cumulative counts, `+Inf` last.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        }))
    }

    /// The number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the observations in seconds.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

/// The histograms of one engine.
#[derive(Debug, Clone)]
pub struct Telemetry {
    /// Submission to first token.
    pub time_to_first_token: Histogram,
    /// Token to token.
    pub inter_token_latency: Histogram,
    /// Submission to last token.
    pub e2e_request_latency: Histogram,
    /// Submission to admission.
    pub request_queue_time: Histogram,
    /// Admission to last token.
    pub request_inference_time: Histogram,
    /// Admission to first token.
    pub request_prefill_time: Histogram,
    /// First to last token.
    pub request_decode_time: Histogram,
    /// Sequences that ended with `stop`.
    pub stopped: u64,
    /// Sequences that ended with `length`.
    pub cut: u64,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            time_to_first_token: Histogram::new(FIRST_TOKEN),
            inter_token_latency: Histogram::new(INTER_TOKEN),
            e2e_request_latency: Histogram::new(REQUEST),
            request_queue_time: Histogram::new(REQUEST),
            request_inference_time: Histogram::new(REQUEST),
            request_prefill_time: Histogram::new(REQUEST),
            request_decode_time: Histogram::new(REQUEST),
            stopped: 0,
            cut: 0,
        }
    }
}

impl Telemetry {
    /// Takes in the tokens of a step.
    pub fn step(&mut self, step: &Step) {
        for token in &step.tokens {
            match token.nth {
                1 => self.time_to_first_token.observe(token.gap),
                _ => self.inter_token_latency.observe(token.gap),
            }
        }
    }

    /// Takes in a finished sequence.
    pub fn finished(&mut self, times: &Finished, finish: Finish) {
        let &Finished { arrived, scheduled, first_token, last_token, .. } = times;
        self.e2e_request_latency.observe(last_token.saturating_sub(arrived));
        self.request_queue_time.observe(scheduled.saturating_sub(arrived));
        self.request_inference_time.observe(last_token.saturating_sub(scheduled));
        self.request_prefill_time.observe(first_token.saturating_sub(scheduled));
        self.request_decode_time.observe(last_token.saturating_sub(first_token));
        match finish {
            Finish::Stop => self.stopped += 1,
            Finish::Length => self.cut += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_holds_what_is_at_most_its_bound() {
        let mut histogram = Histogram::new(INTER_TOKEN);
        for millis in [10, 11, 90_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(buckets[..2], [(0.01, 1), (0.025, 2)]);
        assert_eq!(buckets[19], (f64::INFINITY, 3));
        assert_eq!(histogram.count(), 3);
    }
}
