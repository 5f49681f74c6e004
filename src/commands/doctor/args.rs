//! `tokenweir doctor`.

use clap::{ArgGroup, Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::units;

/// `tokenweir doctor`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
#[command(group = ArgGroup::new("whom").required(true).multiple(true))]
pub struct Doctor {
    /// A replica; may be given several times, or several with commas.
    #[arg(long, value_name = "URL", value_delimiter = ',', group = "whom")]
    #[arg(env = "TOKENWEIR_DOCTOR_BACKEND")]
    #[arg(value_parser = Address::parse)]
    pub backend: Vec<Address>,
    /// A configuration file: its replicas, unless --backend names others, and what it says itself.
    #[arg(long, value_name = "FILE", group = "whom", env = "TOKENWEIR_DOCTOR_CONFIG")]
    pub config: Option<PathBuf>,
    /// The admin port of a gateway that runs: its replicas and its configuration.
    #[arg(long, value_name = "URL", group = "whom", conflicts_with = "config")]
    #[arg(value_parser = Address::parse, env = "TOKENWEIR_DOCTOR_ADMIN")]
    pub admin: Option<Address>,
    /// Send each replica a chat request of 16 tokens, up to three times, and look at its stream.
    #[arg(long, env = "TOKENWEIR_DOCTOR_PROBE")]
    pub probe: bool,
    /// Longest wait for an answer.
    #[arg(long, value_name = "DURATION", default_value = "5s", env = "TOKENWEIR_DOCTOR_TIMEOUT")]
    #[arg(value_parser = units::duration::parse)]
    pub timeout: Duration,
    /// How long an idle connection is watched, to see when it is closed; 0s: not at all.
    #[arg(long, value_name = "DURATION", default_value = "6s", env = "TOKENWEIR_DOCTOR_IDLE")]
    #[arg(value_parser = units::duration::parse)]
    pub idle: Duration,
    /// The least of what is found that makes the exit code 1.
    #[arg(long, value_enum, default_value_t, env = "TOKENWEIR_DOCTOR_FAIL_ON")]
    pub fail_on: FailOn,
    /// Print one JSON object.
    #[arg(long, env = "TOKENWEIR_DOCTOR_JSON")]
    pub json: bool,
}

/// What a pipeline ends at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Warnings and errors.
    #[default]
    Warning,
    /// Errors only.
    Error,
}

const HELP: &str = "\
Nothing that is asked changes a replica; only --probe makes an engine work. The key of replicas
without one in a configuration is taken from VLLM_API_KEY, the token of an admin port from
TOKENWEIR_ADMIN_TOKEN.

Exit code: 0 nothing worse than notes, 1 something as bad as --fail-on says, 2 or 64 it cannot be
run as asked.

Examples:
  tokenweir doctor --backend http://127.0.0.1:8000
  tokenweir doctor --config tokenweir.yaml --probe
  tokenweir doctor --admin http://127.0.0.1:9090 --json --fail-on error";
