//! The commands of the binary. Each folder has the flags of one command and its implementation.

pub mod check;
pub mod keygen;
pub mod serve;

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
mod progress;
#[cfg(feature = "tools")]
pub mod replay;
#[cfg(feature = "tools")]
pub mod sim;
#[cfg(feature = "tools")]
pub mod top;
#[cfg(feature = "tools")]
pub mod tune;

pub(crate) use crate::app::process::{Chain, variable};
use crate::config::ConfigError;
use std::future::Future;
use std::process::ExitCode;

/// `EX_USAGE` of sysexits.h: the command line or a file is wrong.
pub(crate) const USAGE: u8 = 64;

pub(crate) fn wrong(error: &ConfigError) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(USAGE)
}

pub(crate) fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {}", Chain(error));
    ExitCode::FAILURE
}

pub(crate) fn block_on(command: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => failed(&error),
    }
}
