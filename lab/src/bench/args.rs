//! The flags of `bench`.

use clap::{ArgGroup, Args};
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_bench::scenario::{ScenarioPreset, TokenRange};
use tokenweir_bench::sender::RequestShape;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::units;

/// Arguments of `tokenweir-lab bench`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
#[command(group = ArgGroup::new("mode").required(true))]
pub struct BenchArgs {
    /// URL of the server: a gateway or one backend.
    #[arg(value_name = "URL", value_parser = BackendAddress::parse, group = "mode")]
    pub target: Option<BackendAddress>,
    /// Compare two saved reports, the earlier one first, without a run.
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, value_delimiter = ',')]
    #[arg(group = "mode")]
    pub compare: Vec<PathBuf>,
    /// The load.
    #[command(flatten)]
    pub load: BenchLoadArgs,
    /// The server.
    #[command(flatten)]
    pub endpoint: BenchEndpointArgs,
    /// The report.
    #[command(flatten)]
    pub shown: BenchReportArgs,
}

/// Arguments about the load.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Load")]
pub struct BenchLoadArgs {
    /// Load preset: low-load, saturation, long-prompts, long-outputs or burst. [default: low-load]
    #[arg(long, value_name = "NAME", conflicts_with = "trace")]
    pub scenario: Option<ScenarioPreset>,
    /// Trace to send instead of a preset: a trace capture of the gateway, or Mooncake's format.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Speed of the trace relative to its recording.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = parse_positive)]
    pub speed: f64,
    /// Random delay of up to this time, added to each arrival of the trace. [default: none, or 3s if
    /// the time stamps of the trace are rounded]
    #[arg(long, value_name = "DURATION", value_parser = units::duration::parse)]
    pub jitter: Option<Duration>,
    /// Open loop: requests per second, independent of earlier responses.
    #[arg(long, value_name = "RATE", conflicts_with = "concurrency", value_parser = parse_positive)]
    pub rate: Option<f64>,
    /// With --rate: constant intervals instead of Poisson arrivals.
    #[arg(long, requires = "rate")]
    pub constant_rate: bool,
    /// Closed loop: number of concurrent requests; a new one starts when an earlier one ends.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub concurrency: Option<u32>,
    /// Prompt tokens, such as 512 or 200-800.
    #[arg(long, value_name = "N[-N]")]
    pub prompt_tokens: Option<TokenRange>,
    /// Bytes of prompt text per token, in words of four bytes.
    #[arg(long, value_name = "X", default_value_t = 4.0, value_parser = parse_positive)]
    pub bytes_per_token: f64,
    /// Output tokens.
    #[arg(long, value_name = "N[-N]")]
    pub output_tokens: Option<TokenRange>,
    /// Maximum number of requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Time limit for sending requests. [default: 1m, unless --requests or --trace is set]
    #[arg(long = "duration", value_name = "DURATION", value_parser = units::duration::parse)]
    pub duration: Option<Duration>,
    /// Seed of lengths and arrival times; runs with equal seeds send the same load.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Salt of the prompt text; equal salts produce equal text. [default: a new one for each run,
    /// so that no prefix is cached from an earlier run]
    #[arg(long, value_name = "N")]
    pub salt: Option<u64>,
    /// Maximum number of concurrent requests of an open loop. If it delays a request, the results
    /// are not valid.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_in_flight: u32,
    /// Number of requests before the run that are not measured.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1000))]
    pub warmup: u32,
}

/// Arguments about the server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct BenchEndpointArgs {
    /// Model of the requests. [default: the only one that the server lists]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// API of the requests: completions or chat.
    #[arg(long, value_name = "SHAPE", default_value = "completions")]
    pub api: RequestShape,
    #[arg(help = "Environment variable with the API key. [default: OPENAI_API_KEY, if it is set]")]
    #[arg(long, value_name = "NAME", conflicts_with = "api_key_file")]
    pub api_key_env: Option<String>,
    /// File with the API key.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// URL of the admin listener of the gateway, to add its own measurements to the report.
    #[arg(long, value_name = "URL", value_parser = BackendAddress::parse)]
    pub admin: Option<BackendAddress>,
    /// Time limit from sending a request to the end of its response.
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    #[arg(value_parser = units::duration::parse)]
    pub timeout: Duration,
}

/// Arguments about the report.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Report")]
pub struct BenchReportArgs {
    /// Objective: time to first token.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    #[arg(value_parser = units::duration::parse)]
    pub ttft: Duration,
    /// Objective: time per output token after the first.
    #[arg(long, value_name = "DURATION", default_value = "100ms")]
    #[arg(value_parser = units::duration::parse)]
    pub tpot: Duration,
    /// Limit of the generator's lag at p99. Above it, the results are not valid.
    #[arg(long, value_name = "DURATION", default_value = "10ms")]
    #[arg(value_parser = units::duration::parse)]
    pub max_lag: Duration,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// File to which the JSON report is written too.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// File to which an HTML page with plots is written too.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Saved report to compare the run with.
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub baseline: Option<PathBuf>,
    /// Fail if a figure got significantly worse, by more than this.
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = parse_percent)]
    pub regression_threshold: f64,
}

const HELP: &str = "\
Exit code: 0 the results are valid, 1 the results are not valid, no request was served, or a figure \
got worse by more than --regression-threshold, 2 invalid arguments, or reports of different loads.

Examples:
  tokenweir-lab bench http://127.0.0.1:8080
  tokenweir-lab bench http://127.0.0.1:8080 --scenario burst --admin http://127.0.0.1:9090
  tokenweir-lab bench http://127.0.0.1:8080 --rate 20 --duration 2m \\
    --save before.json --html before.html
  tokenweir-lab bench http://127.0.0.1:8080 --rate 20 --duration 2m \\
    --baseline before.json --regression-threshold 5%";

fn parse_positive(text: &str) -> Result<f64, &'static str> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| (0.001..=100_000.0).contains(number));
    number.ok_or("expected a number from 0.001 to 100000")
}

fn parse_percent(text: &str) -> Result<f64, &'static str> {
    let number = text
        .strip_suffix('%')
        .and_then(|number| number.trim().parse().ok());
    let number = number.filter(|number: &f64| (0.0..=1e6).contains(number));
    number
        .map(|number| number / 1e2)
        .ok_or("expected a share such as 10%")
}
