//! The flags of `doctor`.

use crate::commands::BackendList;
use clap::{ArgGroup, Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::units;

/// Arguments of `tokenweir doctor`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
#[command(group = ArgGroup::new("target").required(true).multiple(true))]
pub struct DoctorArgs {
    /// URL of a backend; can be given several times, or as a comma-separated list.
    #[arg(long, value_name = "URL", group = "target", value_parser = BackendList::parse)]
    pub backend: Vec<BackendList>,
    /// Configuration file: checks the file and its backends, or those of --backend only.
    #[arg(short, long, value_name = "FILE", group = "target")]
    pub config: Option<PathBuf>,
    /// URL of the admin listener of a running gateway: checks its backends and its configuration.
    #[arg(long, value_name = "URL", group = "target", conflicts_with = "config")]
    #[arg(value_parser = BackendAddress::parse)]
    pub admin: Option<BackendAddress>,
    /// Send each backend a chat request of 16 tokens, up to three times, and check its stream.
    #[arg(long)]
    pub probe: bool,
    /// Time limit for each response.
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    #[arg(value_parser = units::duration::parse)]
    pub timeout: Duration,
    /// How long to observe an idle connection, to see when the backend closes it. 0s skips this.
    #[arg(long, value_name = "DURATION", default_value = "6s")]
    #[arg(value_parser = units::duration::parse)]
    pub idle: Duration,
    /// Lowest severity that makes the exit code 1.
    #[arg(long, value_enum, default_value_t)]
    pub fail_on: DoctorFailOn,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Lowest severity that makes the exit code 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DoctorFailOn {
    /// Warnings and errors.
    #[default]
    Warning,
    /// Errors only.
    Error,
}

const HELP: &str = "\
The doctor changes nothing on a backend; only --probe puts load on an engine. The key for backends \
without an api_key in a configuration comes from VLLM_API_KEY, the admin token from \
TOKENWEIR_ADMIN_TOKEN.

Exit code: 0 nothing worse than notes, 1 a finding of the severity of --fail-on or above, 2 invalid \
arguments, 64 a mistake in the configuration.

Examples:
  tokenweir doctor --backend http://127.0.0.1:8000
  tokenweir doctor --config tokenweir.yaml --probe
  tokenweir doctor --admin http://127.0.0.1:9090 --json --fail-on error";
