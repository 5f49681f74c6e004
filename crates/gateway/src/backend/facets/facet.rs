//! What an optional part of a backend may do. The pool, a lease and the health checker know this contract, and
//! none of the parts.

use std::sync::Arc;
use std::time::Duration;
use tokenweir_engine::address::BackendId;
use tokenweir_request::record::{BackendCondition, RequestRecord};
use tokenweir_routing::resilience::FailureKind;
use tokenweir_routing::{LoadEstimator, PromptFingerprint};

/// The state of one optional part of a backend. A part implements the methods that it needs. The calls are
/// static, so a method that a part leaves out costs nothing.
pub(crate) trait BackendFacet {
    /// Whether the part can stay if a reload builds it as `other`. Otherwise the backend is a new one.
    fn is_same_endpoint(&self, _other: &Self) -> bool {
        true
    }

    /// Takes over the settings that a reload can change. `other`: the part as the new configuration builds it.
    fn adopt_settings(&self, _other: &Self) {}

    /// Sets the age of a load report at which it has half of its weight in predictions.
    fn set_horizon(&self, _horizon: Duration) {}

    /// Forgets what the next start of the server can change: the backend is down, or has restarted.
    fn forget_server(&self) {}

    /// Handles a failed request that concerns the part alone. Returns whether it did: then the backend may get
    /// the request again.
    fn on_failure(&self, _kind: FailureKind, _id: &BackendId) -> bool {
        false
    }

    /// Forgets what holds for one start of the server only: the server has restarted.
    fn on_restart(&self) {}

    /// Whether the backend may get this part of a request.
    fn suitability(&self, _part: RequestPart) -> Suitability {
        Suitability::Suitable
    }

    /// Sets what the part knows in the condition of the backend.
    fn complete_condition(&self, _condition: &mut BackendCondition) {}

    /// Learns from the record of a request that the backend has answered.
    fn on_finished(&self, _record: &RequestRecord, _estimator: &LoadEstimator) {}

    /// Called when the load that this gateway puts on the backend has changed.
    fn on_load_change(&self, _change: &LoadChange<'_>) {}

    /// Passes the targets of routing inside the backend to `visit`. Returns `false` if the part has none.
    fn visit_targets(&self, _visit: impl FnMut(&Target<'_>)) -> bool {
        false
    }

    /// Asks the part to make the backend available, whose availability the part can change.
    fn request_activation(&self) {}

    /// Whether the part was asked to make the backend available, and has not done it yet.
    fn is_activation_requested(&self) -> bool {
        false
    }
}

/// The part of a request that a lease is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPart {
    /// The whole request, or all of it but a prefill at another backend.
    Whole,
    /// The prefill for another backend.
    Prefill,
}

/// Whether a backend may get a part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suitability {
    /// It may.
    Suitable,
    /// It gets the request only if no other backend is up, for this reason.
    LastChoice(&'static str),
    /// It does not get the request.
    Unsuitable,
}

/// A change of the load that this gateway puts on a backend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadChange<'a> {
    /// Hash of the name of the backend.
    pub(crate) backend: u64,
    /// The load of the backend.
    pub(crate) estimator: &'a LoadEstimator,
    /// The prompt that was sent to the backend. `None`: a prompt was computed, or a request ended.
    pub(crate) prompt: Option<&'a Arc<PromptFingerprint>>,
}

/// A target of routing: a backend, or a part of a backend with a load of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    /// Estimates the load of the target.
    pub(crate) estimator: &'a LoadEstimator,
    /// Hash of the name of the target.
    pub(crate) key: u64,
    /// The part of the backend. `None`: the whole backend.
    pub(crate) part: Option<TargetPart>,
}

/// One of several parts of a backend that are targets of routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TargetPart {
    /// The number of the part on the metrics page.
    pub(crate) number: u32,
    /// Index of the part, in the order of the numbers.
    pub(crate) index: usize,
    /// Number of parts.
    pub(crate) count: usize,
}

impl Suitability {
    /// The worse of two judgements.
    pub(crate) fn or_worse(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unsuitable, _) | (_, Self::Unsuitable) => Self::Unsuitable,
            (Self::LastChoice(_), _) => self,
            (Self::Suitable, _) => other,
        }
    }
}
