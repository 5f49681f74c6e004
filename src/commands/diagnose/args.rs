//! The flags of `diagnose`.

use crate::commands::BackendList;
use clap::{ArgGroup, Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::units;

/// Arguments of `tokenweir diagnose`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
#[command(group = ArgGroup::new("target").required(true))]
pub struct DiagnoseArgs {
    /// URL of the admin listener of a running gateway: prints what the gateway has found.
    #[arg(long, value_name = "URL", group = "target", value_parser = BackendAddress::parse)]
    pub admin: Option<BackendAddress>,
    /// URL of a backend to observe without a gateway; can be given several times, or as a list with commas.
    #[arg(long, value_name = "URL", group = "target", value_parser = BackendList::parse)]
    pub backend: Vec<BackendList>,
    /// How long backends are observed. Rules need at least 45s of samples.
    #[arg(long = "duration", value_name = "DURATION", default_value = "60s")]
    #[arg(value_parser = units::duration::parse)]
    pub duration: Duration,
    /// Time limit for each response.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    #[arg(value_parser = units::duration::parse)]
    pub timeout: Duration,
    /// File with the admin token; without it, the environment variable is used, see below.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Lowest severity that makes the exit code 1 or 2.
    #[arg(long, value_enum, default_value_t)]
    pub fail_on: DiagnoseFailOn,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Lowest severity that makes the exit code 1 or 2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DiagnoseFailOn {
    /// Warnings and critical verdicts.
    #[default]
    Warning,
    /// Critical verdicts only.
    Critical,
}

const HELP: &str = "\
With --backend, the metrics of backends are read every five seconds. Rules that need data of a \
gateway, such as stalled streams, are reported as not judged. The key of backends comes from \
VLLM_API_KEY, the admin token from --token-file or TOKENWEIR_ADMIN_TOKEN.

Exit code: 0 no verdict, 1 a warning, 2 a critical verdict, 3 a backend cannot be judged and no \
verdict holds, or the gateway returns no diagnosis. Invalid arguments give 2 without a report.

Examples:
  tokenweir diagnose --admin http://127.0.0.1:9090
  tokenweir diagnose --backend http://10.0.0.7:8000,http://10.0.0.8:8000 --duration 5m
  tokenweir diagnose --admin http://127.0.0.1:9090 --json --fail-on critical";
