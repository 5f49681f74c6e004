//! Results of a simulation run, and the metrics computed from them.

use serde::{Deserialize, Serialize};
use tokenweir_protocol::histogram::sample_quantile;

/// Measurements of one served request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ServedRequest {
    /// Number of the request in the trace.
    pub request: usize,
    /// Time from arrival to the first token in seconds.
    pub ttft: f64,
    /// Time from the first to the last token in seconds.
    pub decode: f64,
    /// Number of prompt tokens.
    pub prompt: u32,
    /// Number of prompt tokens from the prefix cache.
    pub cached: u32,
    /// Number of output tokens.
    pub output: u32,
    /// Predicted time to the first token in seconds. NaN: the router does not predict.
    pub predicted_ttft: f64,
}

/// Raw results of a simulation run.
#[derive(Debug, Clone, Default)]
pub struct RunResults {
    /// Requests that were served.
    pub served: Vec<ServedRequest>,
    /// Time in seconds at which each request arrived, by the number of the request.
    pub arrivals: Vec<f64>,
    /// For each time that a request was sent to a backend: the time in seconds, and the position of the
    /// backend.
    pub placements: Vec<(f64, usize)>,
    /// Virtual time in seconds from the first request to the last token.
    pub seconds: f64,
    /// For how many seconds the engine of each backend computed.
    pub busy: Vec<f64>,
    /// Number of preemptions of sequences.
    pub preemptions: u64,
}

/// Latency limits that a request must meet to count as goodput.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyObjectives {
    /// Limit of the time to first token in seconds.
    pub ttft: f64,
    /// Limit of the time per output token after the first in seconds.
    pub tpot: f64,
}

/// Metrics of a simulation run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunMetrics {
    /// Share of the requests that met both latency objectives, from 0 to 1.
    pub goodput: f64,
    /// Median time to first token in seconds.
    pub ttft_p50: f64,
    /// 99th percentile of the time to first token in seconds.
    pub ttft_p99: f64,
    /// Median time per output token in seconds.
    pub tpot_p50: f64,
    /// 99th percentile of the time per output token in seconds.
    pub tpot_p99: f64,
    /// Output tokens per second of all requests together.
    pub tokens_per_second: f64,
    /// Share of prompt tokens from a prefix cache, from 0 to 1.
    pub cached: f64,
    /// Number of preemptions of sequences.
    pub preemptions: f64,
    /// How unevenly the backends are busy: standard deviation ÷ mean of their busy times.
    pub imbalance: f64,
}

impl ServedRequest {
    /// Time per output token after the first in seconds.
    pub fn tpot(&self) -> f64 {
        time_per_token(self.decode, self.output)
    }
}

/// Time per output token after the first in seconds. `decode`: the time from the first to the last token.
pub fn time_per_token(decode: f64, output: u32) -> f64 {
    decode / f64::from(output.saturating_sub(1).max(1))
}

impl LatencyObjectives {
    /// Limits for the time to first token and for the time per output token, in seconds.
    pub const fn new(ttft: f64, tpot: f64) -> Self {
        Self { ttft, tpot }
    }

    /// Whether a request met both limits.
    pub fn is_met_by(&self, served: &ServedRequest) -> bool {
        self.are_met(served.ttft, served.tpot())
    }

    /// Whether a time to first token and a time per output token in seconds are within the limits.
    pub fn are_met(&self, ttft: f64, tpot: f64) -> bool {
        ttft <= self.ttft && tpot <= self.tpot
    }
}

impl RunResults {
    /// Computes the metrics of the run. `objectives`: the limits that count for the goodput.
    pub fn figures(&self, objectives: &LatencyObjectives) -> RunMetrics {
        let good = self
            .served
            .iter()
            .filter(|served| objectives.is_met_by(served))
            .count();
        let sum = |read: fn(&ServedRequest) -> u32| -> f64 {
            self.served
                .iter()
                .map(|served| u64::from(read(served)))
                .sum::<u64>() as f64
        };
        let mut ttft: Vec<f64> = self.served.iter().map(|served| served.ttft).collect();
        let mut tpot: Vec<f64> = self.served.iter().map(ServedRequest::tpot).collect();
        RunMetrics {
            goodput: good as f64 / self.arrivals.len().max(1) as f64,
            ttft_p50: quantile(&mut ttft, 0.5),
            ttft_p99: quantile(&mut ttft, 0.99),
            tpot_p50: quantile(&mut tpot, 0.5),
            tpot_p99: quantile(&mut tpot, 0.99),
            tokens_per_second: sum(|served| served.output) / self.seconds.max(1e-9),
            cached: sum(|served| served.cached) / sum(|served| served.prompt).max(1.0),
            preemptions: self.preemptions as f64,
            imbalance: spread(&self.busy).1 / spread(&self.busy).0.max(1e-9),
        }
    }
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    sample_quantile(values, q).unwrap_or(0.0)
}

/// Mean and standard deviation of the values, as of a whole population. Both are 0 if there are no values.
pub fn spread(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / count;
    (mean, variance.sqrt())
}

/// Jain's index of fairness (Σ x)² ÷ (n · Σ x²). 1: all values are equal.
pub(super) fn jain_index(values: impl Iterator<Item = f64>) -> f64 {
    let [count, sum, squares] = values.fold([0.0; 3], |[count, sum, squares], x| {
        [count + 1.0, sum + x, squares + x * x]
    });
    if squares > 0.0 {
        sum * sum / (count * squares)
    } else {
        1.0
    }
}

/// The mean of a value over several runs.
pub(super) fn mean_of<Run>(runs: &[Run], read: impl Fn(&Run) -> f64) -> f64 {
    spread(&runs.iter().map(read).collect::<Vec<_>>()).0
}
