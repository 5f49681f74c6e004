//! The flags of `tune`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::units;
use tokenweir_tune::request::TokenLengths;

/// Arguments of `tokenweir-lab tune`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct TuneArgs {
    /// The model's config.json, or the folder that contains it.
    pub model: PathBuf,
    /// The GPU and its memory.
    #[command(flatten)]
    pub gpu: GpuArgs,
    /// Latency and throughput targets, and the lengths of requests.
    #[command(flatten)]
    pub targets: TuneTargetArgs,
    /// Speed of the engine.
    #[command(flatten)]
    pub speed: TuneSpeedArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Arguments about the GPU.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "GPU")]
pub struct GpuArgs {
    /// Memory of one GPU, such as 80GiB. A card that is sold with 80 GB has about 80GiB.
    #[arg(long, value_name = "SIZE", value_parser = units::bytes::parse)]
    pub gpu_memory: usize,
    /// Share of the GPU memory that vLLM may use.
    #[arg(long, value_name = "SHARE", default_value_t = 0.92, value_parser = parse_share)]
    pub gpu_memory_utilization: f64,
    /// GPUs of one backend. [default: the fewest that suffice]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub tensor_parallel: Option<u64>,
    /// Size of all weights. [default: from the files beside config.json, or the model's shape]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes::parse)]
    pub weights: Option<usize>,
    /// Memory of one GPU for the KV cache, as vLLM logs it. [default: an estimate]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes::parse)]
    pub kv_memory: Option<usize>,
    /// Data type of the KV cache.
    #[arg(long, value_enum, default_value_t)]
    pub kv_cache_dtype: KvCacheDtype,
    /// Tokens per block of the KV cache.
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub block_size: u64,
    /// Price of one GPU per hour.
    #[arg(long, value_name = "PRICE", value_parser = parse_positive)]
    pub price: Option<f64>,
}

/// Data type of the KV cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum KvCacheDtype {
    /// The data type of the model.
    #[default]
    Auto,
    /// One byte.
    Fp8,
    /// Two bytes.
    Bfloat16,
    /// Four bytes.
    Float32,
}

/// Arguments about targets and the lengths of requests.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Targets and traffic")]
pub struct TuneTargetArgs {
    /// Target: time to first token at p95, without a cached prefix.
    #[arg(long, value_name = "DURATION", value_parser = units::duration::parse)]
    pub ttft: Option<Duration>,
    /// Target: time between two tokens.
    #[arg(long, value_name = "DURATION", value_parser = units::duration::parse)]
    pub tbt: Option<Duration>,
    /// Target: output tokens per second of all backends together.
    #[arg(long, value_name = "RATE", value_parser = parse_positive)]
    pub throughput: Option<f64>,
    /// Prompt tokens: mean, or mean and 95th percentile. [default: 1000:4000]
    #[arg(long, value_name = "MEAN[:P95]")]
    pub prompt_tokens: Option<TokenLengths>,
    /// Output tokens. [default: 200:500]
    #[arg(long, value_name = "MEAN[:P95]")]
    pub output_tokens: Option<TokenLengths>,
    /// Take both lengths from a trace: a trace capture of the gateway, or Mooncake's format.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Take the means of both lengths from a running gateway: the URL of its admin listener.
    #[arg(long, value_name = "URL", value_parser = BackendAddress::parse, conflicts_with = "trace")]
    pub admin: Option<BackendAddress>,
}

/// Arguments about the speed of the engine.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speed")]
pub struct TuneSpeedArgs {
    /// Report of `tokenweir-lab bench` against one vLLM backend. The speed of the engine is computed from it.
    #[arg(long, value_name = "FILE")]
    pub from_bench: Option<PathBuf>,
    /// Prompt tokens per second that one backend computes.
    #[arg(long, value_name = "RATE", value_parser = parse_positive)]
    pub prefill_rate: Option<f64>,
    /// Duration of an engine step without prompts.
    #[arg(long, value_name = "DURATION", value_parser = units::duration::parse)]
    pub step: Option<Duration>,
    /// Output tokens per second of one backend under load.
    #[arg(long, value_name = "RATE", value_parser = parse_positive)]
    pub output_rate: Option<f64>,
}

const HELP: &str = "\
The results are calculated. vLLM measures its real memory at startup; its log is authoritative.

Examples:
  tokenweir-lab tune ./Llama-3.1-8B --gpu-memory 80GiB --prompt-tokens 1000:4000 --output-tokens 200:500
  tokenweir-lab tune config.json --gpu-memory 24GiB --weights 15GiB --ttft 500ms --tbt 40ms \\
    --prefill-rate 12000 --step 15ms --price 1.20 --output-rate 900";

fn parse_positive(text: &str) -> Result<f64, &'static str> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| (1e-6..=1e12).contains(number));
    number.ok_or("expected a number above 0")
}

fn parse_share(text: &str) -> Result<f64, &'static str> {
    let share = text
        .parse()
        .ok()
        .filter(|share: &f64| *share > 0.0 && *share <= 1.0);
    share.ok_or("expected a share above 0 and at most 1, such as 0.9")
}
