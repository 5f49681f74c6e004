//! The commands of the binary. Each module has the flags of one command and its implementation.

mod backend_list;
pub mod check;
pub mod keygen;
pub mod serve;

#[cfg(feature = "tools")]
mod admin_client;
#[cfg(feature = "tools")]
pub mod bench;
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
mod progress;
#[cfg(feature = "tools")]
pub mod replay;
#[cfg(feature = "tools")]
pub mod sim;
#[cfg(feature = "tools")]
pub mod top;
#[cfg(feature = "tools")]
pub mod tune;

pub use self::backend_list::BackendList;
pub(crate) use crate::app::process::environment::{ErrorChain, variable};
use crate::config::ConfigError;
use std::future::Future;
use std::process::ExitCode;

/// Exit code for an invalid configuration file: `EX_USAGE` of `sysexits.h`.
pub(crate) const EXIT_USAGE: u8 = 64;

/// Exit code if the state that a command asks for cannot be determined.
#[cfg(feature = "tools")]
pub(crate) const EXIT_UNKNOWN: u8 = 3;

/// The name of the environment variable of a flag. `id` is the name of the flag, without the
/// leading dashes.
pub(crate) fn flag_variable_name(command: &str, id: &str) -> String {
    let name = if command == "serve" { id.to_owned() } else { format!("{command}_{id}") };
    format!("TOKENWEIR_{}", name.replace('-', "_").to_uppercase())
}

/// Prints a configuration error to standard error and returns [`EXIT_USAGE`].
pub(crate) fn report_config_error(error: &ConfigError) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(EXIT_USAGE)
}

/// Prints an error with its causes to standard error and returns [`ExitCode::FAILURE`].
pub(crate) fn report_error(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {}", ErrorChain(error));
    ExitCode::FAILURE
}

/// Reads a secret and returns it as the value of an `Authorization` header. `None`: the secret is
/// in an environment variable that is not set.
#[cfg(feature = "tools")]
pub(crate) fn resolve_optional_secret(
    secret: &crate::config::Secret,
) -> Result<Option<http::HeaderValue>, crate::config::SecretError> {
    match secret.resolve(variable) {
        Err(crate::config::SecretError::Unset(_)) => Ok(None),
        secret => secret.map(|secret| Some(secret.into_bearer())),
    }
}

/// Runs an asynchronous command on a new multi-threaded runtime.
pub(crate) fn block_on(command: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => report_error(&error),
    }
}
