//! `tokenweir check`: validates a configuration file and reports its mistakes.

use super::print_line;
use super::{EXIT_USAGE, variable};
use crate::app::check;
use crate::config::CheckedFile;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `tokenweir check`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct CheckArgs {
    /// The file to check.
    pub file: PathBuf,
    /// Kind of the file.
    #[arg(long, value_enum, default_value_t)]
    pub kind: CheckedFile,
    /// Check the text of the configuration only: the files, certificates, keys and secrets that it
    /// names may be on another machine.
    #[arg(long)]
    pub syntax_only: bool,
    /// Print the configuration with all defaults. A secret is shown as its variable or file.
    #[arg(long)]
    pub print: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
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

const HELP: &str = "\
Exit code: 0 the gateway can start with the file, 1 the file is valid and this machine lacks something \
that it names, 2 invalid arguments, 64 the file has mistakes.";

/// Runs `tokenweir check`.
pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    let checked = match args.kind {
        CheckedFile::Config if args.syntax_only => CheckedFile::ConfigSyntax,
        kind => kind,
    };
    let result = check::check(&args.file, checked, variable);
    let effective = if args.print {
        result.effective_yaml()
    } else {
        None
    };
    match (args.format, effective) {
        (CheckFormat::Json, _) => print_line(result.to_json(args.print)),
        (CheckFormat::Human, Some(yaml)) => {
            print_line(yaml.trim_end());
            eprintln!("{result}");
        }
        (CheckFormat::Human, None) if result.is_ok() => print_line(&result),
        (CheckFormat::Human, None) => eprintln!("{result}"),
    }
    if !result.is_valid() {
        return ExitCode::from(EXIT_USAGE);
    }
    if result.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
