//! What options tell the diagnosis, and learn from it.

use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokenweir_diagnose::{Diagnosis, DiagnosisSample, GatewayConditions};
use tokenweir_engine::address::BackendId;
use tokenweir_gateway::backend::Backend;

/// What an option tells the diagnosis, and learns from it. It implements the methods that it needs.
pub trait DiagnosisHooks: Send + Sync {
    /// Sets what the option knows in the samples of the backends, which are in the order of `backends`.
    fn complete_samples(
        &self,
        _backends: &[Arc<Backend>],
        _samples: &mut [(BackendId, DiagnosisSample)],
        _now: Instant,
    ) {
    }

    /// Sets what the option knows in the conditions of the gateway, with the verdicts of its own rules.
    fn complete_conditions(&self, _gateway: &mut GatewayConditions, _now: Instant) {}

    /// Acts on a diagnosis. Does not wait.
    fn on_diagnosis(&self, _diagnosis: &Diagnosis, _now: Instant, _wall_time: SystemTime) {}
}
