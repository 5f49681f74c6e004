//! One sample of a backend: the load from its metrics page, and the observations of the gateway
//! since the previous sample.

use super::gpu_condition::GpuCondition;
use super::signals::GatewayObservations;
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::EngineLoad;

/// Interval between two samples of a backend.
pub const EVERY: Duration = Duration::from_secs(5);
/// A TTFT above this value, in seconds, counts as slow even if it is usual for the backend.
pub const SLOW_START: f64 = 2.0;

/// A prompt with at least this many tokens is long: its prefill takes many scheduler steps of any engine.
pub(crate) const LONG_PROMPT_TOKENS: f64 = 8_000.0;

/// The observations of one backend at one time.
#[derive(Debug, Clone, Copy)]
pub struct DiagnosisSample {
    /// The time to which the observations belong.
    pub at: Instant,
    /// Whether the backend can get requests: it serves, is neither drained nor asleep, and its weight is
    /// above 0.
    pub is_up: bool,
    /// The load from the metrics page of the backend. `None`: there is no recent page that the gateway can
    /// read.
    pub page: Option<EngineLoad>,
    /// The observations of the gateway about the backend. `None`: the diagnosis runs without a gateway.
    pub gateway: Option<GatewayObservations>,
    /// The GPUs of the backend. `None`: no GPU exporter reports them.
    pub gpus: Option<GpuCondition>,
}

impl DiagnosisSample {
    /// A sample of this time, without data.
    pub fn at(at: Instant) -> Self {
        Self {
            at,
            is_up: false,
            page: None,
            gateway: None,
            gpus: None,
        }
    }
}
