//! `tokenweir tune`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::units;
use tokenweir_tune::request::Tokens;

/// `tokenweir tune`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Tune {
    /// The model's config.json, or the folder that it is in.
    pub model: PathBuf,
    /// The GPU, and what is known of its memory.
    #[command(flatten)]
    pub gpu: Hardware,
    /// What is promised, and what requests are like.
    #[command(flatten)]
    pub promise: Promise,
    /// How fast the engine is.
    #[command(flatten)]
    pub speed: Measured,
    /// One JSON object instead of text.
    #[arg(long, env = "TOKENWEIR_TUNE_JSON")]
    pub json: bool,
}

/// The GPU.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "GPU")]
pub struct Hardware {
    /// Memory of one GPU, such as 80GiB.
    #[arg(long, value_name = "SIZE", env = "TOKENWEIR_TUNE_GPU_MEMORY")]
    #[arg(value_parser = units::bytes::parse)]
    pub gpu_memory: usize,
    /// What share of it vLLM may take.
    #[arg(long, value_name = "SHARE", default_value_t = 0.92)]
    #[arg(env = "TOKENWEIR_TUNE_GPU_MEMORY_UTILIZATION", value_parser = share)]
    pub gpu_memory_utilization: f64,
    /// GPUs of a replica. As few as it takes, if not given.
    #[arg(long, value_name = "N", env = "TOKENWEIR_TUNE_TENSOR_PARALLEL")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    pub tensor_parallel: Option<u64>,
    /// Size of all weights. By default of the files beside config.json, or from the model's shape.
    #[arg(long, value_name = "SIZE", env = "TOKENWEIR_TUNE_WEIGHTS")]
    #[arg(value_parser = units::bytes::parse)]
    pub weights: Option<usize>,
    /// Memory that one GPU has for the KV cache, as vLLM's log tells it, instead of an estimate.
    #[arg(long, value_name = "SIZE", env = "TOKENWEIR_TUNE_KV_MEMORY")]
    #[arg(value_parser = units::bytes::parse)]
    pub kv_memory: Option<usize>,
    /// How a value is kept in the KV cache.
    #[arg(long, value_enum, default_value_t, env = "TOKENWEIR_TUNE_KV_CACHE_DTYPE")]
    pub kv_cache_dtype: KvDtype,
    /// Tokens in a block of the KV cache.
    #[arg(long, value_name = "N", default_value_t = 16, env = "TOKENWEIR_TUNE_BLOCK_SIZE")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub block_size: u64,
    /// What a GPU costs in an hour.
    #[arg(long, value_name = "PRICE", env = "TOKENWEIR_TUNE_PRICE", value_parser = positive)]
    pub price: Option<f64>,
}

/// How a value is kept in the KV cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum KvDtype {
    /// As in the model.
    #[default]
    Auto,
    /// One byte.
    Fp8,
    /// Two bytes.
    Bfloat16,
    /// Four bytes.
    Float32,
}

/// What is promised, and what requests are like.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Targets and traffic")]
pub struct Promise {
    /// Longest time to first token of a prompt at p95.
    #[arg(long, value_name = "DURATION", env = "TOKENWEIR_TUNE_TTFT")]
    #[arg(value_parser = units::duration::parse)]
    pub ttft: Option<Duration>,
    /// Longest time between two tokens.
    #[arg(long, value_name = "DURATION", env = "TOKENWEIR_TUNE_TBT")]
    #[arg(value_parser = units::duration::parse)]
    pub tbt: Option<Duration>,
    /// Output tokens a second, of all replicas together.
    #[arg(long, value_name = "RATE", env = "TOKENWEIR_TUNE_THROUGHPUT", value_parser = positive)]
    pub throughput: Option<f64>,
    /// Tokens of prompts: mean, or mean and 95th percentile. [default: 1000:4000]
    #[arg(long, value_name = "MEAN[:P95]", env = "TOKENWEIR_TUNE_PROMPT_TOKENS")]
    pub prompt_tokens: Option<Tokens>,
    /// Tokens of answers. [default: 200:500]
    #[arg(long, value_name = "MEAN[:P95]", env = "TOKENWEIR_TUNE_OUTPUT_TOKENS")]
    pub output_tokens: Option<Tokens>,
    /// Take both from a trace: a capture of this gateway, or Mooncake's format.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_TUNE_TRACE")]
    pub trace: Option<PathBuf>,
    /// Take the means of both from a gateway that runs, by its admin port.
    #[arg(long, value_name = "URL", env = "TOKENWEIR_TUNE_ADMIN", value_parser = Address::parse)]
    #[arg(conflicts_with = "trace")]
    pub admin: Option<Address>,
}

/// How fast the engine is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speed")]
pub struct Measured {
    /// A report of `tokenweir bench` against one replica.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_TUNE_FROM_BENCH")]
    pub from_bench: Option<PathBuf>,
    /// Prompt tokens that a replica computes in a second.
    #[arg(long, value_name = "RATE", env = "TOKENWEIR_TUNE_PREFILL_RATE", value_parser = positive)]
    pub prefill_rate: Option<f64>,
    /// Time of a step without prompts.
    #[arg(long, value_name = "DURATION", env = "TOKENWEIR_TUNE_STEP")]
    #[arg(value_parser = units::duration::parse)]
    pub step: Option<Duration>,
    /// Output tokens a second of a replica under load.
    #[arg(long, value_name = "RATE", env = "TOKENWEIR_TUNE_OUTPUT_RATE", value_parser = positive)]
    pub output_rate: Option<f64>,
}

const HELP: &str = "\
Examples:
  tokenweir tune ./Llama-3.1-8B --gpu-memory 80GiB --prompt-tokens 1000:4000 --output-tokens 200:500
  tokenweir tune config.json --gpu-memory 24GiB --weights 15GiB --ttft 500ms --tbt 40ms \\
    --prefill-rate 12000 --step 15ms --price 1.20 --output-rate 900

It is arithmetic: vLLM measures what it really has when it starts, and its log has the last word.";

fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| (1e-6..=1e12).contains(number));
    number.ok_or("expected a number above 0")
}

fn share(text: &str) -> Result<f64, &'static str> {
    let share = text.parse().ok().filter(|share: &f64| *share > 0.0 && *share <= 1.0);
    share.ok_or("expected a share above 0 and at most 1, such as 0.9")
}
