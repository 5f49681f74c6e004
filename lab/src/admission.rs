//! Admission control of the simulated gateways, as a configuration of the gateway states it.

use std::time::Duration;
use tokenweir::config::AdmissionConfig;
use tokenweir_replay::simulation::SimulatedAdmission;

/// Admission control of the simulated gateways. `objective`: the TTFT objective of the simulation, as `slos`
/// would state it. `None`: the configuration disables admission control.
pub(crate) fn simulated(
    config: &AdmissionConfig,
    objective: Duration,
) -> Option<SimulatedAdmission> {
    if !config.enabled {
        return None;
    }
    Some(SimulatedAdmission {
        thresholds: config.marks(),
        max_wait: config.max_wait,
        objective: Some(objective),
        has_tenants: true,
    })
}
