//! The inputs of the calculation: the GPU, the targets, request lengths and engine speeds.

use serde::Serialize;
use std::str::FromStr;

/// The inputs. Times are in seconds, sizes in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct TuneRequest {
    /// Memory of one GPU.
    pub gpu_memory: u64,
    /// Share of the GPU memory that vLLM may use.
    pub utilization: f64,
    /// GPUs of one backend. `None`: the fewest that suffice.
    pub tensor_parallel: Option<u64>,
    /// Size of all weights. `None`: computed from the model's shape.
    pub weights: Option<u64>,
    /// Bytes per value of the KV cache. `None`: those of the model's data type.
    pub kv_bytes: Option<u64>,
    /// Tokens per block of the KV cache.
    pub block: u64,
    /// Memory of each GPU for the KV cache. `None`: computed.
    pub kv_memory: Option<u64>,
    /// Prompt lengths.
    pub prompt: TokenLengths,
    /// Output lengths.
    pub output: TokenLengths,
    /// The targets.
    pub targets: TuneTargets,
    /// The speed of the engine.
    pub speed: EngineSpeed,
    /// Price of one GPU per hour.
    pub price: Option<f64>,
}

/// Lengths of requests, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TokenLengths {
    /// The mean.
    pub mean: f64,
    /// The 95th percentile.
    pub p95: f64,
}

/// Latency and throughput targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TuneTargets {
    /// Time to first token, in seconds.
    pub ttft: Option<f64>,
    /// Time between tokens, in seconds.
    pub tbt: Option<f64>,
    /// Output tokens per second of all backends together.
    pub throughput: Option<f64>,
}

/// The speed of the engine, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineSpeed {
    /// Prompt tokens per second that one backend computes.
    pub prefill: Option<f64>,
    /// Seconds of a step that computes one token for each running request, without prompts.
    pub step: Option<f64>,
    /// Output tokens per second of one backend under load.
    pub output: Option<f64>,
    /// Notes about the sources of these values.
    pub sources: Vec<String>,
}

impl FromStr for TokenLengths {
    type Err = &'static str;

    /// Parses `512`, or mean and 95th percentile as `512:2000`.
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
        assert_eq!("512".parse(), Ok(TokenLengths { mean: 512.0, p95: 512.0 }));
        assert_eq!("512:2000".parse(), Ok(TokenLengths { mean: 512.0, p95: 2000.0 }));
        for wrong in ["", "0", "9:3", "a:b", "-1", "1:2:3", "NaN"] {
            assert!(wrong.parse::<TokenLengths>().is_err(), "{wrong}");
        }
    }
}
