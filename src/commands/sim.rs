//! `tokenweir sim`: simulated vLLM backends.

use super::report_error;
use crate::app::process::signals;
use std::process::ExitCode;
use tokenweir_sim::Simulator;

/// Runs the command.
pub(crate) async fn run(settings: tokenweir_sim::SimulatorSettings) -> ExitCode {
    let sim = match Simulator::bind(&settings).await {
        Ok(sim) => sim,
        Err(error) => return report_error(&error),
    };
    for addr in sim.addrs() {
        eprintln!(
            "simulated vLLM backend on http://{addr}, serving {}",
            settings.models.join(", ")
        );
    }
    sim.run(signals::wait_for_shutdown()).await;
    ExitCode::SUCCESS
}
