//! Starts the gateway and runs it until SIGTERM, SIGINT or SIGQUIT.

use super::args::ServeArgs;
use crate::app::application::Application;
use crate::app::banner;
use crate::app::process::{logging, signals};
use crate::commands::{block_on, report_config_error, report_error, variable};
use crate::config::Config;
use std::future::Future;
use std::process::ExitCode;

pub(crate) fn run(serve: ServeArgs) -> ExitCode {
    logging::install_panic_hook();
    // The signal handlers are installed before the gateway starts, as soon as the runtime exists.
    block_on(async { Box::pin(self::serve(serve, signals::wait_for_shutdown())).await })
}

/// Runs the gateway until `shutdown` completes, on the runtime that polls this future.
pub async fn serve(
    serve: ServeArgs,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> ExitCode {
    let loaded = Config::load(serve.config.as_deref(), serve.overrides.clone());
    let loaded = match loaded.and_then(|loaded| loaded.require_backend().map(|()| loaded)) {
        Ok(loaded) => loaded,
        Err(error) => return report_config_error(&error),
    };
    let logs = logging::start(&loaded.config.log);
    let application = match Application::new(&loaded, serve.overrides, &logs, variable).await {
        Ok(application) => application,
        Err(error) => return report_error(&*error),
    };
    banner::show(&application.summary, &logs);
    match application.run(shutdown).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
