//! What tuning is asked: the GPU, what is promised, and how long requests are.

use serde::Serialize;
use std::str::FromStr;

/// What is given. Times in seconds, sizes in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Memory of one GPU.
    pub gpu_memory: u64,
    /// What share of it vLLM may take.
    pub utilization: f64,
    /// GPUs for one replica. `None`: as few as it takes.
    pub tensor_parallel: Option<u64>,
    /// Size of all weights. `None`: from the model's shape.
    pub weights: Option<u64>,
    /// Bytes of a value in the KV cache. `None`: as in the model.
    pub kv_bytes: Option<u64>,
    /// Tokens in a block of the KV cache.
    pub block: u64,
    /// Memory for the KV cache of each GPU, if it is known instead of what is left.
    pub kv_memory: Option<u64>,
    /// Lengths of prompts.
    pub prompt: Tokens,
    /// Lengths of answers.
    pub output: Tokens,
    /// What is promised.
    pub targets: Targets,
    /// How fast the engine is.
    pub speed: Speed,
    /// What a GPU costs in an hour.
    pub price: Option<f64>,
}

/// How long, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tokens {
    /// On the mean.
    pub mean: f64,
    /// The 95th percentile.
    pub p95: f64,
}

/// What is promised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Targets {
    /// Longest time to first token, in seconds.
    pub ttft: Option<f64>,
    /// Longest time between tokens, in seconds.
    pub tbt: Option<f64>,
    /// Output tokens a second, of all replicas together.
    pub throughput: Option<f64>,
}

/// How fast the engine is, as far as it was measured or given.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Speed {
    /// Prompt tokens that a replica computes in a second.
    pub prefill: Option<f64>,
    /// Seconds of a step that computes one token for each running request.
    pub step: Option<f64>,
    /// Output tokens a second of one replica under load.
    pub output: Option<f64>,
    /// Where they are from.
    pub sources: Vec<String>,
}

impl FromStr for Tokens {
    type Err = &'static str;

    /// `512`, or mean and 95th percentile as `512:2000`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (mean, p95) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse().ok().filter(|it| (1.0..=1e8).contains(it));
        let tokens = number(mean).zip(number(p95)).map(|(mean, p95)| Self { mean, p95 });
        let tokens = tokens.filter(|tokens| tokens.mean <= tokens.p95);
        tokens.ok_or("expected tokens: 512, or the mean and the 95th percentile as 512:2000")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_one_number_or_mean_and_percentile() {
        assert_eq!("512".parse(), Ok(Tokens { mean: 512.0, p95: 512.0 }));
        assert_eq!("512:2000".parse(), Ok(Tokens { mean: 512.0, p95: 2000.0 }));
        for wrong in ["", "0", "9:3", "a:b", "-1", "1:2:3", "NaN"] {
            assert!(wrong.parse::<Tokens>().is_err(), "{wrong}");
        }
    }
}
