//! The phases of a request in its access log line.

use super::fields::millis;
use serde::Serialize;
use tokenweir_core::record::{RequestPhase, RequestPhases};

/// Times of phases of a request, in milliseconds: the queue and the prefill of the engine, and the
/// network.
#[derive(Debug, Serialize)]
pub(super) struct AccessLogPhaseTimes {
    queue_ms: f64,
    prefill_ms: f64,
    network_ms: Option<f64>,
    /// Whether the queue time is an estimate and not a report of the engine.
    estimated: bool,
}

impl AccessLogPhaseTimes {
    pub(super) fn from_phases(phases: &RequestPhases) -> Option<Self> {
        let queue = phases.get(RequestPhase::EngineQueue)?;
        Some(Self {
            queue_ms: millis(queue.took),
            prefill_ms: millis(phases.get(RequestPhase::Prefill)?.took),
            network_ms: phases.get(RequestPhase::Network).map(|network| millis(network.took)),
            estimated: queue.is_estimated,
        })
    }
}
