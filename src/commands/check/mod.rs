//! `tokenweir check`: validates a configuration file and reports its mistakes, or upgrades files of an earlier
//! version.

mod upgrade;

use super::print_line;
use super::{EXIT_FAILURE, EXIT_USAGE, variable};
use crate::app::check;
use crate::config::CheckedFile;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `tokenweir check`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct CheckArgs {
    /// The files to check.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Show how configurations, rules and dashboards of version 0.1 change for this version, as a unified
    /// diff.
    #[arg(long, conflicts_with_all = ["kind", "print", "format"])]
    pub upgrade: bool,
    /// Write the changes of --upgrade into the files.
    #[arg(long, requires = "upgrade")]
    pub write: bool,
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
that it names, 2 invalid arguments, 64 the file has mistakes. Of several files, the highest code counts. \
--upgrade: 0 the changed file is valid, 1 it is, and a person has to change what the messages name, 64 it has mistakes.";

pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    let code = |file: &PathBuf| {
        if args.upgrade {
            upgrade::run(file, args.write)
        } else {
            check_file(file, args)
        }
    };
    let codes: Vec<u8> = args.files.iter().map(code).collect();
    ExitCode::from(codes.into_iter().max().unwrap_or(0))
}

/// Checks one file and prints the result. Returns the exit code.
fn check_file(file: &Path, args: &CheckArgs) -> u8 {
    let checked = match args.kind {
        CheckedFile::Config if args.syntax_only => CheckedFile::ConfigSyntax,
        kind => kind,
    };
    let result = check::check(file, checked, variable);
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
        return EXIT_USAGE;
    }
    if result.is_ok() { 0 } else { EXIT_FAILURE }
}
