//! The output of results in JSON.

use serde::Serialize;
use std::process::ExitCode;
use tokenweir::commands::report_error;

/// Prints the result of a command in JSON.
#[expect(
    clippy::print_stdout,
    reason = "standard output is the result of the command"
)]
pub(crate) fn print_json(result: &impl Serialize) -> ExitCode {
    match serde_json::to_string_pretty(result) {
        Ok(json) => println!("{json}"),
        Err(error) => return report_error(&error),
    }
    ExitCode::SUCCESS
}
