//! Runs the gateway until a signal to end.

use super::args::Serve;
use crate::app::assembly::Assembly;
use crate::app::{banner, logs, signals};
use crate::commands::{block_on, failed, variable, wrong};
use crate::config::Config;
use std::future::Future;
use std::process::ExitCode;

/// Runs the command.
pub(crate) fn run(serve: Serve) -> ExitCode {
    logs::log_panics();
    block_on(self::serve(serve, signals::stop()))
}

/// Serves until `shutdown`, on the runtime that polls it.
pub async fn serve(serve: Serve, shutdown: impl Future<Output = ()> + Send + 'static) -> ExitCode {
    let loaded = Config::load(serve.config.as_deref(), serve.overrides.clone());
    let loaded = match loaded.and_then(|loaded| loaded.require_backend().map(|()| loaded)) {
        Ok(loaded) => loaded,
        Err(error) => return wrong(&error),
    };
    let logs = logs::start(&loaded.config.log);
    let assembly = match Assembly::new(&loaded, serve.overrides, &logs, variable).await {
        Ok(assembly) => assembly,
        Err(error) => return failed(&error),
    };
    banner::show(&assembly, &logs);
    match assembly.run(shutdown).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
