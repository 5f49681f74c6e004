//! `tokenweir sim`: simulated vLLM backends.

use super::report_error;
use crate::app::process::signals;
use std::process::ExitCode;
use tokenweir_sim::Simulator;

pub(crate) async fn run(settings: tokenweir_sim::SimulatorSettings) -> ExitCode {
    let sim = match Simulator::bind(&settings).await {
        Ok(sim) => sim,
        Err(error) => return report_error(&error),
    };
    for (index, addr) in sim.addrs().iter().enumerate() {
        let ports = sim
            .backend(index)
            .and_then(|backend| backend.kv_event_ports());
        let kv_events = ports.map_or_else(String::new, |ports| {
            format!(
                ", KV events at port {}, replays at port {}",
                ports.live, ports.replay
            )
        });
        let models = settings.models.join(", ");
        eprintln!("simulated vLLM backend on http://{addr}, serving {models}{kv_events}");
    }
    sim.run(signals::wait_for_shutdown()).await;
    ExitCode::SUCCESS
}
