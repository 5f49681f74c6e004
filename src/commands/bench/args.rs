//! `tokenweir bench`.

use clap::{ArgGroup, Args};
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_bench::scenario::{Lengths, Preset};
use tokenweir_bench::send::Shape;
use tokenweir_core::address::Address;
use tokenweir_core::units;

/// `tokenweir bench`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
#[command(group = ArgGroup::new("what").required(true))]
pub struct Bench {
    /// The server: a gateway, or one replica.
    #[arg(value_name = "URL", value_parser = Address::parse, group = "what")]
    pub target: Option<Address>,
    /// Compare two saved reports instead, the earlier one first.
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, value_delimiter = ',')]
    #[arg(env = "TOKENWEIR_BENCH_COMPARE", group = "what")]
    pub compare: Vec<PathBuf>,
    /// What is sent.
    #[command(flatten)]
    pub load: Load,
    /// To whom.
    #[command(flatten)]
    pub whom: Whom,
    /// What is shown.
    #[command(flatten)]
    pub shown: Shown,
}

/// What is sent.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Load")]
pub struct Load {
    /// low-load, saturation, long-prompts, long-outputs or burst. [default: low-load]
    #[arg(long, value_name = "NAME", env = "TOKENWEIR_BENCH_SCENARIO", conflicts_with = "trace")]
    pub scenario: Option<Preset>,
    /// A trace instead: Mooncake's format, or a capture of this gateway.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_BENCH_TRACE")]
    pub trace: Option<PathBuf>,
    /// How many times faster than it was recorded the trace is sent.
    #[arg(long, value_name = "X", default_value_t = 1.0, env = "TOKENWEIR_BENCH_SPEED")]
    #[arg(value_parser = positive)]
    pub speed: f64,
    /// Open loop: so many requests a second, whatever became of those before.
    #[arg(long, value_name = "RATE", env = "TOKENWEIR_BENCH_RATE", conflicts_with = "users")]
    #[arg(value_parser = positive)]
    pub rate: Option<f64>,
    /// With --rate: requests are evenly apart, instead of independent of each other.
    #[arg(long, env = "TOKENWEIR_BENCH_EVEN", requires = "rate")]
    pub even: bool,
    /// Closed loop: so many users, each of whom sends the next request after an answer.
    #[arg(long, value_name = "N", env = "TOKENWEIR_BENCH_USERS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub users: Option<u32>,
    /// Tokens of prompts, such as 512 or 200-800.
    #[arg(long, value_name = "N[-N]", env = "TOKENWEIR_BENCH_PROMPT_TOKENS")]
    pub prompt_tokens: Option<Lengths>,
    /// Tokens of answers.
    #[arg(long, value_name = "N[-N]", env = "TOKENWEIR_BENCH_OUTPUT_TOKENS")]
    pub output_tokens: Option<Lengths>,
    /// Send so many requests at most.
    #[arg(long, value_name = "N", env = "TOKENWEIR_BENCH_REQUESTS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Send nothing after this time. [default: 1m, unless --requests or --trace]
    #[arg(long = "for", value_name = "DURATION", env = "TOKENWEIR_BENCH_FOR")]
    #[arg(value_parser = units::duration::parse)]
    pub duration: Option<Duration>,
    /// Equal seeds send the same lengths at the same times.
    #[arg(long, value_name = "N", default_value_t = 1, env = "TOKENWEIR_BENCH_SEED")]
    pub seed: u64,
    /// Equal salts make the same words. By default another one each time, so that no run finds the
    /// prefix cache of another.
    #[arg(long, value_name = "N", env = "TOKENWEIR_BENCH_SALT")]
    pub salt: Option<u64>,
    /// Most requests at the same time in an open loop. Others wait, and the results are not valid.
    #[arg(long, value_name = "N", default_value_t = 4096, env = "TOKENWEIR_BENCH_MAX_IN_FLIGHT")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_in_flight: u32,
    /// Requests before the run that do not count.
    #[arg(long, value_name = "N", default_value_t = 1, env = "TOKENWEIR_BENCH_WARMUP")]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1000))]
    pub warmup: u32,
}

/// To whom.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct Whom {
    /// The model to ask for. By default the only one that the server lists.
    #[arg(long, value_name = "NAME", env = "TOKENWEIR_BENCH_MODEL")]
    pub model: Option<String>,
    /// completions or chat.
    #[arg(long, value_name = "SHAPE", default_value = "completions", env = "TOKENWEIR_BENCH_API")]
    pub api: Shape,
    #[arg(help = "The variable that holds the API key. [default: OPENAI_API_KEY, if it is set]")]
    #[arg(long, value_name = "NAME", env = "TOKENWEIR_BENCH_API_KEY_ENV")]
    #[arg(conflicts_with = "api_key_file")]
    pub api_key_env: Option<String>,
    /// The file that holds it.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_BENCH_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// The admin port of the gateway, to have its own numbers beside the client's.
    #[arg(long, value_name = "URL", env = "TOKENWEIR_BENCH_ADMIN", value_parser = Address::parse)]
    pub admin: Option<Address>,
    /// Longest time from sending a request to the end of its answer.
    #[arg(long, value_name = "DURATION", default_value = "10m", env = "TOKENWEIR_BENCH_TIMEOUT")]
    #[arg(value_parser = units::duration::parse)]
    pub timeout: Duration,
}

/// What is shown.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Report")]
pub struct Shown {
    /// Objective: longest time to first token.
    #[arg(long, value_name = "DURATION", default_value = "2s", env = "TOKENWEIR_BENCH_TTFT")]
    #[arg(value_parser = units::duration::parse)]
    pub ttft: Duration,
    /// Objective: longest time per output token after the first.
    #[arg(long, value_name = "DURATION", default_value = "100ms", env = "TOKENWEIR_BENCH_TPOT")]
    #[arg(value_parser = units::duration::parse)]
    pub tpot: Duration,
    /// The p99 of how late the generator may be. Later, and the results are not valid.
    #[arg(long, value_name = "DURATION", default_value = "10ms", env = "TOKENWEIR_BENCH_MAX_LAG")]
    #[arg(value_parser = units::duration::parse)]
    pub max_lag: Duration,
    /// One JSON object instead of text.
    #[arg(long, env = "TOKENWEIR_BENCH_JSON")]
    pub json: bool,
    /// Write the JSON here too.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_BENCH_SAVE")]
    pub save: Option<PathBuf>,
    /// Write a page with plots here too.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_BENCH_HTML")]
    pub html: Option<PathBuf>,
    /// Compare with a report that was saved.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_BENCH_AGAINST", conflicts_with = "compare")]
    pub against: Option<PathBuf>,
    /// Fail if something got worse by more than this, and by more than chance does.
    #[arg(long, value_name = "PERCENT", default_value = "10%", env = "TOKENWEIR_BENCH_FAIL_OVER")]
    #[arg(value_parser = percent)]
    pub fail_over: f64,
}

const HELP: &str = "\
Examples:
  tokenweir bench http://127.0.0.1:8080
  tokenweir bench http://127.0.0.1:8080 --scenario burst --admin http://127.0.0.1:9090
  tokenweir bench http://127.0.0.1:8080 --rate 20 --for 2m --save before.json --html before.html
  tokenweir bench http://127.0.0.1:8080 --rate 20 --for 2m --against before.json --fail-over 5%

Exit status: 0 if the results are valid, 1 if they are not, nothing was served or something got
worse than --fail-over, 64 if it was asked for wrongly.";

fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| (0.001..=100_000.0).contains(number));
    number.ok_or("expected a number from 0.001 to 100000")
}

fn percent(text: &str) -> Result<f64, &'static str> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
    let number = number.filter(|number: &f64| (0.0..=1e6).contains(number));
    number.map(|number| number / 1e2).ok_or("expected a share such as 10%")
}
