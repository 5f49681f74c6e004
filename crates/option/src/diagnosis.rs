//! The exchange of data between options and the diagnosis.

use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokenweir_diagnose::{Diagnosis, DiagnosisSample, GatewayConditions};
use tokenweir_engine::address::BackendId;
use tokenweir_gateway::backend::Backend;

/// The data that an option adds to the diagnosis, and its reaction to a diagnosis. An option implements only
/// the methods that it needs.
pub trait DiagnosisHooks: Send + Sync {
    /// Adds the data of the option to the samples of the backends. The samples are in the order of `backends`.
    fn complete_samples(
        &self,
        _backends: &[Arc<Backend>],
        _samples: &mut [(BackendId, DiagnosisSample)],
        _now: Instant,
    ) {
    }

    /// Adds the data of the option, and the verdicts of its rules, to the conditions of the gateway.
    fn complete_conditions(&self, _gateway: &mut GatewayConditions, _now: Instant) {}

    /// Reacts to a diagnosis. Must not wait.
    fn on_diagnosis(&self, _diagnosis: &Diagnosis, _now: Instant, _wall_time: SystemTime) {}
}
