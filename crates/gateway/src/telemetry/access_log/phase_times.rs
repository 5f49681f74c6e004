//! The phases of a request in its access log line.

use super::fields::millis;
use serde::Serialize;
use tokenweir_request::record::{RequestPhase, RequestPhases};

/// Times of the phases from sending a request to its first output, in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct AccessLogPhaseTimes {
    front_end_ms: Option<f64>,
    queue_ms: Option<f64>,
    prefill_ms: Option<f64>,
    unexplained_ms: Option<f64>,
    /// Whether at least one of these times is an estimate of the gateway instead of a value from the engine.
    estimated: bool,
}

impl AccessLogPhaseTimes {
    /// Returns the times of the phases that the access log line shows. `None`: no time of these
    /// phases is known.
    pub(super) fn from_phases(phases: &RequestPhases) -> Option<Self> {
        let shown = [
            RequestPhase::FrontEnd,
            RequestPhase::EngineQueue,
            RequestPhase::Prefill,
            RequestPhase::Unexplained,
        ]
        .map(|phase| phases.get(phase));
        let [front_end_ms, queue_ms, prefill_ms, unexplained_ms] =
            shown.map(|span| span.map(|span| millis(span.took)));
        shown.iter().any(Option::is_some).then(|| Self {
            front_end_ms,
            queue_ms,
            prefill_ms,
            unexplained_ms,
            estimated: shown.iter().flatten().any(|span| span.is_estimated),
        })
    }
}
