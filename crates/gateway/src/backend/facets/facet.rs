//! The contract between one backend and an option. The pool, the lease and the health checker use only this
//! contract, and no option directly.

use super::targets::{BackendTargets, TargetPart};
use crate::status::StatusBlocks;
use http::HeaderMap;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::openai::Usage;
use tokenweir_request::record::BackendCondition;
use tokenweir_routing::resilience::{Availability, FailureKind};
use tokenweir_routing::{KnownPrefix, LoadEstimator, PromptFingerprint};

/// The part of an option that belongs to one backend. Each method has a default, so a facet implements only
/// what it needs. For speed, routing calls no method per candidate.
pub trait BackendFacet: Any + Debug + Send + Sync {
    /// Whether the facet can stay if a reload builds it as `other`. If not, the backend is replaced by a new
    /// one.
    fn is_same_endpoint(&self, _other: &dyn BackendFacet) -> bool {
        true
    }

    /// Takes over the settings that a reload can change. `other`: the facet as the new configuration builds it.
    fn adopt_settings(&self, _other: &dyn BackendFacet) {}

    /// Discards facts that may be different after a restart. Called when the backend is down and when it has
    /// restarted.
    fn forget_server(&self) {}

    /// Handles a failure that only this facet can explain, such as a refused rank. Returns whether it handled
    /// the failure. If so, the gateway may send the request to the backend again.
    fn on_failure(&self, _kind: FailureKind, _id: &BackendId) -> bool {
        false
    }

    /// Discards facts about the process that ended. Called when the server has restarted.
    fn on_restart(&self) {}

    /// Whether the backend may get this part of a request. `model`: the requested model. `None`: the request names
    /// no model, or the answer is for all requests.
    fn suitability(&self, _part: RequestPart, _model: Option<&str>) -> Suitability {
        Suitability::Suitable
    }

    /// Whether `suitability` for whole requests depends on the model or can change at any time. If so, the pool
    /// calls it for each request. If not, the pool calls it only after a change of its backends.
    fn judges_requests(&self) -> bool {
        false
    }

    /// Adds the facts of the facet to the condition of the backend.
    fn complete_condition(&self, _condition: &mut BackendCondition) {}

    /// The name and the value of a property, such as a hardware error, that can explain why several backends
    /// fail together. `None`: the facet knows none.
    fn fact(&self) -> Option<(&'static str, String)> {
        None
    }

    /// Called when the load that this gateway puts on the backend has changed.
    fn on_load_change(&self, _change: &LoadChange<'_>) {}

    /// Asks the option to make the backend available, for example to wake its engine.
    fn request_activation(&self) {}

    /// Whether the option was asked to make the backend available and has not done so yet.
    fn is_activation_requested(&self) -> bool {
        false
    }

    /// Adds the status of the facet. `targets`: the targets of the same backend.
    fn add_status(&self, _targets: &BackendTargets, _blocks: &mut StatusBlocks) {}
}

impl dyn BackendFacet {
    /// The facet as a value of type `F`. `None`: the facet has another type.
    pub fn downcast<F: BackendFacet>(&self) -> Option<&F> {
        let facet: &dyn Any = self;
        facet.downcast_ref()
    }
}

/// The part of an option that all backends of a pool share.
pub trait PoolFacet: Debug + Send + Sync {
    /// The seed for hashing a prompt for `model` with the `cache_salt` `salt`. All gateways use this seed, so
    /// that their hashes are equal. `None`: the option shares no prompts with other gateways.
    fn prompt_seed(&self, _model: Option<&str>, _salt: Option<&str>) -> Option<u64> {
        None
    }

    /// Whether a request can make a backend with this availability available.
    fn can_activate(&self, _availability: Availability) -> bool {
        false
    }
}

/// The contents of the prefix cache of one backend, as far as an option knows them. Routing asks for them for
/// each candidate.
pub trait PromptCache: Debug + Send + Sync {
    /// Returns which part of the prompt is known to be in the cache. `part`: the rank whose cache is asked.
    /// `memo`: results for this prompt that the option reuses for the next backend. `None`: nothing is known.
    fn known_prefix(
        &self,
        prompt: &PromptFingerprint,
        part: Option<TargetPart>,
        memo: &mut PromptMemo,
    ) -> Option<KnownPrefix>;

    /// Begins to observe a request with this prompt, to learn which blocks its text has. `None`: the cache
    /// cannot learn from this request.
    fn follow(self: Arc<Self>, prompt: &Arc<PromptFingerprint>) -> Option<Box<dyn FollowedPrompt>>;
}

/// A request at a backend whose prefix cache is known. Dropping the value ends the request.
pub trait FollowedPrompt: Debug + Send + Sync {
    /// Sets the headers that the request must have.
    fn set_headers(&self, headers: &mut HeaderMap);

    /// Stores the token counts that the response reported.
    fn set_usage(&self, usage: Usage);
}

/// Intermediate results of an option while it looks up one prompt in the caches of several backends. `None`: no
/// lookup yet.
pub type PromptMemo = Option<Box<dyn Any>>;

/// The part of a request for which a backend is leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPart {
    /// The whole request, or all of it except a prefill at another backend.
    Whole,
    /// The prefill on behalf of another backend.
    Prefill,
}

/// Whether a backend may get a part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suitability {
    /// The backend may get the part.
    Suitable,
    /// The backend gets the part only if no other backend is up. The text is the reason.
    LastChoice(&'static str),
    /// The backend does not get the part.
    Unsuitable,
}

/// A change of the load that this gateway puts on a backend.
#[derive(Debug, Clone, Copy)]
pub struct LoadChange<'a> {
    /// Hash of the name of the backend, equal at all gateways.
    pub backend: u64,
    /// Load, speed and sent prompts of the backend.
    pub estimator: &'a LoadEstimator,
    /// The prompt that was sent to the backend. `None`: a prompt was computed, or a request ended.
    pub prompt: Option<&'a Arc<PromptFingerprint>>,
}

impl Suitability {
    pub(crate) fn or_worse(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unsuitable, _) | (_, Self::Unsuitable) => Self::Unsuitable,
            (Self::LastChoice(_), _) => self,
            (Self::Suitable, _) => other,
        }
    }
}
