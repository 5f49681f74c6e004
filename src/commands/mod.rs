//! The commands of the binary. Each module has the flags of one command and its implementation. The
//! separate program `tokenweir-lab` also uses the functions of this module.

mod backend_list;
pub mod check;
pub mod keygen;
pub mod serve;
pub mod user_hash;

#[cfg(feature = "tools")]
mod admin_client;
#[cfg(feature = "tools")]
pub mod demo;
#[cfg(feature = "tools")]
pub mod diagnose;
#[cfg(feature = "tools")]
pub mod doctor;
#[cfg(feature = "tools")]
pub mod generate;
#[cfg(feature = "tools")]
pub mod operate;
#[cfg(feature = "tools")]
pub mod sim;
#[cfg(feature = "tools")]
pub mod top;

pub use self::backend_list::BackendList;
use crate::app::process::environment::ErrorChain;
pub use crate::app::process::environment::variable;
pub use crate::app::process::signals::wait_for_shutdown;
use crate::config::ConfigError;
use futures_util::future::LocalBoxFuture;
use std::fmt::Display;
use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;
pub use tokenweir_gateway::server::raise_file_limit;

/// Environment variable from which commands read the admin token.
pub const ADMIN_TOKEN_VARIABLE: &str = "TOKENWEIR_ADMIN_TOKEN";

/// Exit code of a failed command, equal to [`ExitCode::FAILURE`].
pub(crate) const EXIT_FAILURE: u8 = 1;

/// Exit code for an invalid configuration file: `EX_USAGE` of `sysexits.h`.
pub const EXIT_USAGE: u8 = 64;

/// Exit code if a command cannot determine the requested state.
#[cfg(feature = "tools")]
pub(crate) const EXIT_UNKNOWN: u8 = 3;

/// Returns the name of the environment variable of a flag. `id` is the name of the flag, without
/// the leading dashes.
pub(crate) fn flag_variable_name(command: &str, id: &str) -> String {
    let name = if command == "serve" {
        id.to_owned()
    } else {
        format!("{command}_{id}")
    };
    format!("TOKENWEIR_{}", name.replace('-', "_").to_uppercase())
}

/// Prints a problem to standard error and returns an exit code.
pub(crate) fn report_problem(problem: impl Display, code: u8) -> ExitCode {
    eprintln!("error: {problem}");
    ExitCode::from(code)
}

/// Prints a configuration error to standard error and returns [`EXIT_USAGE`].
pub fn report_config_error(error: &ConfigError) -> ExitCode {
    report_problem(error, EXIT_USAGE)
}

/// Prints an error with its causes to standard error and returns `EXIT_FAILURE`.
pub fn report_error(error: &dyn std::error::Error) -> ExitCode {
    report_problem(ErrorChain(error), EXIT_FAILURE)
}

/// Reads a secret and returns it as the value of an `Authorization` header. `None`: the secret's environment
/// variable is not set.
pub fn resolve_optional_secret(
    secret: &crate::config::Secret,
) -> Result<Option<http::HeaderValue>, crate::config::SecretError> {
    match secret.resolve(variable) {
        Err(crate::config::SecretError::Unset(_)) => Ok(None),
        secret => secret.map(|secret| Some(secret.into_bearer())),
    }
}

/// Runs an asynchronous command on a new runtime, which is multi-threaded if there are several cores.
pub fn block_on(command: impl Future<Output = ExitCode>) -> ExitCode {
    // All commands share one type, because each future type would compile the loops of both runtimes again.
    let command: LocalBoxFuture<'_, ExitCode> = Box::pin(command);
    // On one core, several threads would only cost synchronization.
    let mut builder = match std::thread::available_parallelism() {
        Ok(cores) if cores.get() == 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    match builder.enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => report_error(&error),
    }
}

/// Prints a line to standard output. Ignores errors, because a reader such as `head` may close the pipe early.
pub(crate) fn print_line(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}
