//! The inputs of the calculation: the GPU, the targets, the lengths of requests and the speed of
//! the engine.

use serde::Serialize;
use std::str::FromStr;

/// The inputs of the calculation. Sizes of memory are in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct TuneRequest {
    /// Memory of one GPU, in bytes.
    pub gpu_memory: u64,
    /// Share of the GPU memory that vLLM may use, from 0 to 1 (`--gpu-memory-utilization`).
    pub utilization: f64,
    /// Number of GPUs of one backend. `None`: the smallest number that is enough is computed.
    pub tensor_parallel: Option<u64>,
    /// Size of all weights, in bytes. `None`: the size is computed from the shape of the model.
    pub weights: Option<u64>,
    /// Bytes per value of the KV cache. `None`: the size of the model's data type is used.
    pub kv_bytes: Option<u64>,
    /// Number of tokens per block of the KV cache.
    pub block: u64,
    /// Memory of each GPU for the KV cache, in bytes. `None`: this memory is computed.
    pub kv_memory: Option<u64>,
    /// Prompt lengths of the expected requests.
    pub prompt: TokenLengths,
    /// Output lengths of the expected requests.
    pub output: TokenLengths,
    /// The latency and throughput targets.
    pub targets: TuneTargets,
    /// The measured or stated speed of one backend: its rates of prompt and output tokens, and its step time.
    pub speed: EngineSpeed,
    /// Price of one GPU per hour, in any currency. `None`: no cost is computed.
    pub price: Option<f64>,
}

/// The distribution of prompt lengths or output lengths, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TokenLengths {
    /// Mean length.
    pub mean: f64,
    /// 95th percentile of the lengths.
    pub p95: f64,
}

/// Latency and throughput targets. `None` in a field: there is no such target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TuneTargets {
    /// Maximum time to first token, in seconds.
    pub ttft: Option<f64>,
    /// Maximum time between tokens, in seconds.
    pub tbt: Option<f64>,
    /// Required output tokens per second of all backends together.
    pub throughput: Option<f64>,
}

/// The measured or given speed of the engine of one backend. `None` in a field: the value is unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineSpeed {
    /// Prefill rate: prompt tokens per second that the engine computes.
    pub prefill: Option<f64>,
    /// Duration in seconds of an engine step without prompts, which computes one token for each
    /// running request.
    pub step: Option<f64>,
    /// Output tokens per second of the engine under load.
    pub output: Option<f64>,
    /// Notes about the sources of these values. The report shows them.
    pub sources: Vec<String>,
}

impl TuneRequest {
    /// Mean number of tokens of a running request: its prompt and half of its output.
    pub(super) fn mean_tokens(&self) -> f64 {
        self.prompt.mean + self.output.mean / 2.0
    }
}

impl FromStr for TokenLengths {
    type Err = &'static str;

    /// Parses the mean and the 95th percentile, such as `512:2000`. A single number, such as `512`, is used
    /// for both.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (mean, p95) = text.split_once(':').unwrap_or((text, text));
        let parse_tokens = |text: &str| {
            text.trim()
                .parse()
                .ok()
                .filter(|tokens| (1.0..=1e8).contains(tokens))
        };
        let lengths = parse_tokens(mean).zip(parse_tokens(p95));
        let lengths = lengths.map(|(mean, p95)| Self { mean, p95 });
        let lengths = lengths.filter(|lengths| lengths.mean <= lengths.p95);
        lengths.ok_or("expected tokens: 512, or the mean and the 95th percentile as 512:2000")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_a_number_or_mean_and_percentile() {
        assert_eq!(
            "512".parse(),
            Ok(TokenLengths {
                mean: 512.0,
                p95: 512.0
            })
        );
        assert_eq!(
            "512:2000".parse(),
            Ok(TokenLengths {
                mean: 512.0,
                p95: 2000.0
            })
        );
        for invalid in ["", "0", "9:3", "a:b", "-1", "1:2:3", "NaN"] {
            assert!(invalid.parse::<TokenLengths>().is_err(), "{invalid}");
        }
    }
}
