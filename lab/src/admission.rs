//! Admission control of the simulated gateways, as a configuration of the gateway states it.

use std::time::Duration;
use tokenweir::config::Config;
use tokenweir_replay::results::LatencyObjectives;
use tokenweir_replay::simulation::SimulatedAdmission;
use tokenweir_routing::saturation::{LatencyLimits, SaturationThresholds};

/// Admission control of the simulated gateways. `objectives`: those of the simulation, as `slos` would state
/// them. `None`: the configuration disables admission control.
pub(crate) fn simulated(
    config: &Config,
    objectives: LatencyObjectives,
) -> Option<SimulatedAdmission> {
    if !config.admission.enabled {
        return None;
    }
    let limits = LatencyLimits {
        ttft: Some(objectives.ttft),
        tpot: Some(objectives.tpot),
    };
    Some(SimulatedAdmission {
        thresholds: SaturationThresholds {
            limits,
            ..config.admission.marks()
        },
        max_wait: config.admission.max_wait,
        objective: Some(Duration::from_secs_f64(objectives.ttft)),
        has_tenants: true,
        has_sessions: config.sessions.enabled,
    })
}
