//! What an option may do to a backend. The pool, a lease and the health checker know this contract, and none of
//! the options.

use super::targets::{BackendTargets, TargetPart};
use crate::status::StatusBlocks;
use http::HeaderMap;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::openai::Usage;
use tokenweir_request::record::{BackendCondition, RequestRecord};
use tokenweir_routing::resilience::{Availability, FailureKind};
use tokenweir_routing::{KnownPrefix, LoadEstimator, PromptFingerprint};

/// The part of an option that belongs to one backend. A facet implements the methods that it needs. None of
/// them is called for a candidate of routing.
pub trait BackendFacet: Any + Debug + Send + Sync {
    /// Whether the facet can stay if a reload builds it as `other`. Otherwise the backend is a new one.
    fn is_same_endpoint(&self, _other: &dyn BackendFacet) -> bool {
        true
    }

    /// Takes over the settings that a reload can change. `other`: the facet as the new configuration builds it.
    fn adopt_settings(&self, _other: &dyn BackendFacet) {}

    /// Forgets what the next start of the server can change: the backend is down, or has restarted.
    fn forget_server(&self) {}

    /// Handles a failed request that concerns the facet alone. Returns whether it did: then the backend may get
    /// the request again.
    fn on_failure(&self, _kind: FailureKind, _id: &BackendId) -> bool {
        false
    }

    /// Forgets what holds for one start of the server only: the server has restarted.
    fn on_restart(&self) {}

    /// Whether the backend may get this part of a request. `model`: the requested model. `None`: the request names
    /// none, or it is any request.
    fn suitability(&self, _part: RequestPart, _model: Option<&str>) -> Suitability {
        Suitability::Suitable
    }

    /// Whether the suitability for whole requests depends on the model, or can change at any time. Otherwise the
    /// pool asks for it only if it is not suitable when the backends of the pool change.
    fn judges_requests(&self) -> bool {
        false
    }

    /// Sets what the facet knows in the condition of the backend.
    fn complete_condition(&self, _condition: &mut BackendCondition) {}

    /// Learns from the record of a request that the backend has answered.
    fn on_finished(&self, _record: &RequestRecord, _estimator: &LoadEstimator) {}

    /// Called when the load that this gateway puts on the backend has changed.
    fn on_load_change(&self, _change: &LoadChange<'_>) {}

    /// Asks the option to make the backend available, whose availability the option can change.
    fn request_activation(&self) {}

    /// Whether the option was asked to make the backend available, and has not done it yet.
    fn is_activation_requested(&self) -> bool {
        false
    }

    /// Adds the status of the facet to that of the backend with these targets.
    fn add_status(&self, _targets: &BackendTargets, _blocks: &mut StatusBlocks) {}
}

impl dyn BackendFacet {
    /// The facet as a value of its type. `None`: it is of another type.
    pub fn downcast<F: BackendFacet>(&self) -> Option<&F> {
        let facet: &dyn Any = self;
        facet.downcast_ref()
    }
}

/// The part of an option that all backends of a pool share.
pub trait PoolFacet: Debug + Send + Sync {
    /// The seed of the hashes of a prompt for `model` with the `cache_salt` `salt`, by which all gateways hash
    /// prompts equally. `None`: the option shares no prompts with other gateways.
    fn prompt_seed(&self, _model: Option<&str>, _salt: Option<&str>) -> Option<u64> {
        None
    }

    /// Whether a request can make a backend with this availability available.
    fn can_activate(&self, _availability: Availability) -> bool {
        false
    }
}

/// The prefix cache of a backend, as an option knows its contents. Routing asks it for each candidate.
pub trait PromptCache: Debug + Send + Sync {
    /// How much of the prompt is known to be in the cache. `part`: the part of the backend whose cache counts.
    /// `memo`: what the option keeps for one prompt between backends. `None`: nothing is known.
    fn known_prefix(
        &self,
        prompt: &PromptFingerprint,
        part: Option<TargetPart>,
        memo: &mut PromptMemo,
    ) -> Option<KnownPrefix>;

    /// Begins to follow a request with this prompt that the backend gets. `None`: it cannot be followed.
    fn follow(self: Arc<Self>, prompt: &Arc<PromptFingerprint>) -> Option<Box<dyn FollowedPrompt>>;
}

/// A request at a backend whose prefix cache is known. Dropping the value ends the request.
pub trait FollowedPrompt: Debug + Send + Sync {
    /// Sets the headers that the request must have.
    fn set_headers(&self, headers: &mut HeaderMap);

    /// Stores the token counts that the response reported.
    fn set_usage(&self, usage: Usage);
}

/// What an option keeps while it looks one prompt up in the caches of several backends. `None`: nothing yet.
pub type PromptMemo = Option<Box<dyn Any>>;

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
pub enum Suitability {
    /// It may.
    Suitable,
    /// It gets the request only if no other backend is up, for this reason.
    LastChoice(&'static str),
    /// It does not get the request.
    Unsuitable,
}

/// A change of the load that this gateway puts on a backend.
#[derive(Debug, Clone, Copy)]
pub struct LoadChange<'a> {
    /// Hash of the name of the backend.
    pub backend: u64,
    /// The load of the backend.
    pub estimator: &'a LoadEstimator,
    /// The prompt that was sent to the backend. `None`: a prompt was computed, or a request ended.
    pub prompt: Option<&'a Arc<PromptFingerprint>>,
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
