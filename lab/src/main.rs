//! The `tokenweir-lab` binary: parses the arguments and runs the command.

use std::process::ExitCode;
use tokenweir::cli::{parse_as, report};
use tokenweir_lab::cli;

fn main() -> ExitCode {
    match parse_as(std::env::args_os()) {
        Ok(arguments) => cli::run(arguments),
        Err(error) => report(&error),
    }
}
