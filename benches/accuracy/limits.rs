//! The settings and the end of a bench: numbers in environment variables, and the limits that a run missed.

use std::process::ExitCode;

/// The number in an environment variable, or `default` if it is not set.
pub(crate) fn env_number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |number| number.parse().unwrap())
}

/// Adds the text `why` to the missed limits if `holds` is false.
pub(crate) fn bar(limit_violations: &mut Vec<String>, holds: bool, why: impl FnOnce() -> String) {
    if !holds {
        limit_violations.push(why());
    }
}

/// Prints the missed limits. The bench fails if there is one.
pub(crate) fn exit_code(limit_violations: &[String]) -> ExitCode {
    for violation in limit_violations {
        println!("MISSED {violation}");
    }
    if limit_violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
