//! `tokenweir check`: validates a configuration file and reports its mistakes.

use super::{EXIT_USAGE, variable};
use crate::config;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `tokenweir check`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// The configuration file.
    pub file: PathBuf,
    /// Output format.
    #[arg(long, value_enum, default_value_t, env = "TOKENWEIR_CHECK_FORMAT")]
    pub format: CheckFormat,
}

/// Output format of `tokenweir check`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckFormat {
    /// Text for people.
    #[default]
    Human,
    /// One JSON object.
    Json,
}

/// Runs the command.
pub(crate) fn run(check: &CheckArgs) -> ExitCode {
    let result = config::check(&check.file, variable);
    match check.format {
        #[expect(clippy::print_stdout, reason = "standard output is the result of the command")]
        CheckFormat::Json => println!("{}", result.to_json()),
        #[expect(clippy::print_stdout, reason = "standard output is the result of the command")]
        CheckFormat::Human if result.is_ok() => println!("{result}"),
        CheckFormat::Human => eprintln!("{result}"),
    }
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) }
}
