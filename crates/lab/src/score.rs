//! What came of a run.

use serde::{Deserialize, Serialize};

/// One request that was served.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Served {
    /// Arrival → first token, in seconds.
    pub ttft: f64,
    /// First token → last token, in seconds.
    pub decode: f64,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Of those, from the prefix cache.
    pub cached: u32,
    /// Tokens of its answer.
    pub output: u32,
}

/// The raw results of a run.
#[derive(Debug, Clone, Default)]
pub struct Score {
    /// Requests that were sent.
    pub requests: usize,
    /// Those that were served.
    pub served: Vec<Served>,
    /// When each was sent, in seconds, and to which replica.
    pub placements: Vec<(f64, usize)>,
    /// Virtual time from the first request to the last token, in seconds.
    pub seconds: f64,
    /// Seconds that each replica computed.
    pub busy: Vec<f64>,
    /// Sequences that were thrown out of a batch and computed again.
    pub preemptions: u64,
}

/// When a request was served well.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Objectives {
    /// Longest time to first token, in seconds.
    pub ttft: f64,
    /// Longest time per output token after the first, in seconds.
    pub tpot: f64,
}

/// The figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Share of the requests that met both objectives.
    pub goodput: f64,
    /// Time to first token in seconds: median.
    pub ttft_p50: f64,
    /// Its 99th percentile.
    pub ttft_p99: f64,
    /// Time per output token in seconds: median.
    pub tpot_p50: f64,
    /// Its 99th percentile.
    pub tpot_p99: f64,
    /// Output tokens a second.
    pub tokens_per_second: f64,
    /// Share of prompt tokens that came from a prefix cache.
    pub cached: f64,
    /// Sequences preempted.
    pub preemptions: f64,
    /// Standard deviation of the replicas' busy time over its mean.
    pub imbalance: f64,
}

impl Served {
    /// Time per output token after the first; 0 for a single one.
    pub fn tpot(&self) -> f64 {
        self.decode / f64::from(self.output.saturating_sub(1).max(1))
    }
}

impl Objectives {
    /// Whether a request was served as well as they ask.
    pub fn are_met(&self, served: &Served) -> bool {
        served.ttft <= self.ttft && served.tpot() <= self.tpot
    }
}

impl Score {
    /// The figures, held against objectives.
    pub fn figures(&self, objectives: &Objectives) -> Figures {
        let good = self.served.iter().filter(|served| objectives.are_met(served)).count();
        let sum = |read: fn(&Served) -> u32| -> f64 {
            self.served.iter().map(|served| u64::from(read(served))).sum::<u64>() as f64
        };
        let ttft = sorted(self.served.iter().map(|served| served.ttft));
        let tpot = sorted(self.served.iter().map(Served::tpot));
        Figures {
            goodput: good as f64 / self.requests.max(1) as f64,
            ttft_p50: quantile(&ttft, 0.5),
            ttft_p99: quantile(&ttft, 0.99),
            tpot_p50: quantile(&tpot, 0.5),
            tpot_p99: quantile(&tpot, 0.99),
            tokens_per_second: sum(|served| served.output) / self.seconds.max(1e-9),
            cached: sum(|served| served.cached) / sum(|served| served.prompt).max(1.0),
            preemptions: self.preemptions as f64,
            imbalance: spread(&self.busy).1 / spread(&self.busy).0.max(1e-9),
        }
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The value below which this share of them is; 0 for none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Mean and standard deviation.
pub fn spread(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}
