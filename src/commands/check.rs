//! `tokenweir check`: reads a configuration file and reports its mistakes.

use super::{USAGE, variable};
use crate::config;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// `tokenweir check`.
#[derive(Debug, Clone, Args)]
pub struct Check {
    /// The configuration file.
    pub file: PathBuf,
    /// How to answer.
    #[arg(long, value_enum, default_value_t, env = "TOKENWEIR_CHECK_FORMAT")]
    pub format: CheckFormat,
}

/// How `tokenweir check` answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object.
    Json,
}

/// Runs the command.
pub(crate) fn run(check: &Check) -> ExitCode {
    let result = config::check(&check.file, variable);
    match check.format {
        #[expect(clippy::print_stdout, reason = "it is what was asked for")]
        CheckFormat::Json => println!("{}", result.to_json()),
        #[expect(clippy::print_stdout, reason = "it is what was asked for")]
        CheckFormat::Human if result.is_ok() => println!("{result}"),
        CheckFormat::Human => eprintln!("{result}"),
    }
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(USAGE) }
}
