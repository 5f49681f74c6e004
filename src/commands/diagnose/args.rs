//! `tokenweir diagnose`.

use clap::{ArgGroup, Args, ValueEnum};
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::units;

/// `tokenweir diagnose`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
#[command(group = ArgGroup::new("patient").required(true))]
pub struct Diagnose {
    /// The admin port of a gateway that runs: what it has found.
    #[arg(long, value_name = "URL", group = "patient")]
    #[arg(value_parser = Address::parse, env = "TOKENWEIR_DIAGNOSE_ADMIN")]
    pub admin: Option<Address>,
    /// A replica, to be watched without a gateway; may be given several times, or several with
    /// commas.
    #[arg(long, value_name = "URL", value_delimiter = ',', group = "patient")]
    #[arg(env = "TOKENWEIR_DIAGNOSE_BACKEND", value_parser = Address::parse)]
    pub backend: Vec<Address>,
    /// How long replicas are watched; less than a minute may be too short to tell anything.
    #[arg(long = "for", value_name = "DURATION", default_value = "60s")]
    #[arg(env = "TOKENWEIR_DIAGNOSE_FOR", value_parser = units::duration::parse)]
    pub duration: Duration,
    /// Longest wait for an answer.
    #[arg(long, value_name = "DURATION", default_value = "2s", env = "TOKENWEIR_DIAGNOSE_TIMEOUT")]
    #[arg(value_parser = units::duration::parse)]
    pub timeout: Duration,
    /// The least of what is found that makes the exit code 1 or 2.
    #[arg(long, value_enum, default_value_t, env = "TOKENWEIR_DIAGNOSE_FAIL_ON")]
    pub fail_on: Limit,
    /// Print one JSON object.
    #[arg(long, env = "TOKENWEIR_DIAGNOSE_JSON")]
    pub json: bool,
}

/// What a pipeline ends at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Limit {
    /// Warnings and what is critical.
    #[default]
    Warning,
    /// Only what is critical.
    Critical,
}

const HELP: &str = "\
With --backend only the metrics of replicas are read, every five seconds: what a gateway alone sees,
such as silent streams, cannot be told, and the report says so. The key of replicas is taken from
VLLM_API_KEY, the token of an admin port from TOKENWEIR_ADMIN_TOKEN.

Exit code: 0 nothing is the matter, 1 a warning, 2 something critical, 3 it cannot be told, 64 it
cannot be run as asked; a wrong command line gives 2 without a report.

Examples:
  tokenweir diagnose --admin http://127.0.0.1:9090
  tokenweir diagnose --backend http://10.0.0.7:8000,http://10.0.0.8:8000 --for 5m
  tokenweir diagnose --admin http://127.0.0.1:9090 --json --fail-on critical";
