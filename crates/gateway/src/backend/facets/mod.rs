//! The facets of a backend: the state of each option for this backend. This module names no option, because
//! options register their facets.

mod facet;
pub mod role;
mod targets;

pub use facet::{
    BackendFacet, FollowedPrompt, LoadChange, PoolFacet, PromptCache, PromptMemo, RequestPart,
    Suitability,
};
pub use targets::{BackendTargets, PartialTarget, TargetPart};
pub(crate) use targets::{LeasedTarget, Target};

use crate::status::StatusBlocks;
use role::RoleFacet;
use std::sync::{Arc, OnceLock};
use tokenweir_engine::address::BackendId;
use tokenweir_routing::resilience::{Availability, FailureKind};
use tokenweir_routing::{KnownPrefix, PromptFingerprint};

/// The facets of one backend. Routing reads the first two fields of each candidate and calls an option only if
/// they have a value.
#[derive(Debug, Default)]
#[repr(C)]
pub struct BackendFacets {
    /// The parts of the backend that are targets of routing.
    pub targets: BackendTargets,
    /// The contents of the prefix cache of the backend. Empty: no option knows them.
    pub prompt_cache: OnceLock<Arc<dyn PromptCache>>,
    /// The role, which determines the parts of requests that the backend serves.
    pub role: RoleFacet,
    /// The facets of the options, in the same order for all backends.
    pub options: Vec<Box<dyn BackendFacet>>,
}

/// The knowledge of the facets about the prompt of one request. It is reused for all candidates.
pub struct PromptKnowledge<'a> {
    prompt: &'a PromptFingerprint,
    memo: PromptMemo,
    /// Number of leading text blocks of the prompt that the last candidate has cached.
    pub(crate) cached_blocks: u32,
}

/// The state that options share between all backends of a pool.
#[derive(Debug, Default, Clone)]
pub struct PoolFacets(pub Vec<Arc<dyn PoolFacet>>);

impl PoolFacets {
    /// The seed for hashing a prompt for `model` with the `cache_salt` `salt`, equal at all gateways. `None`:
    /// this gateway shares no prompts.
    pub(crate) fn prompt_seed(&self, model: Option<&str>, salt: Option<&str>) -> Option<u64> {
        self.0
            .iter()
            .find_map(|option| option.prompt_seed(model, salt))
    }

    /// Whether a request can make a backend with this availability available.
    pub(crate) fn can_activate(&self, availability: Availability) -> bool {
        self.0
            .iter()
            .any(|option| option.can_activate(availability))
    }
}

impl BackendFacets {
    /// The facet of type `F`. `None`: its option is not attached.
    pub fn get<F: BackendFacet>(&self) -> Option<&F> {
        self.options.iter().find_map(|facet| facet.downcast())
    }

    /// Iterates over the role and the facets of all options.
    pub fn each(&self) -> impl Iterator<Item = &dyn BackendFacet> {
        let role: &dyn BackendFacet = &self.role;
        self.options.iter().map(|facet| &**facet).chain([role])
    }

    /// Whether the facets can stay if a reload builds them as `other`.
    pub(crate) fn is_same_endpoint(&self, other: &Self) -> bool {
        self.options.len() == other.options.len()
            && self
                .each()
                .zip(other.each())
                .all(|(facet, other)| facet.is_same_endpoint(other))
    }

    /// Takes over the settings that a reload can change.
    pub(crate) fn adopt_settings(&self, other: &Self) {
        self.each()
            .zip(other.each())
            .for_each(|(facet, other)| facet.adopt_settings(other));
    }

    /// Forgets facts that may change with the next start of the server. Called when the backend is down or has
    /// restarted.
    pub(crate) fn forget_server(&self) {
        self.targets.clear();
        self.each().for_each(BackendFacet::forget_server);
    }

    /// Handles a failed request that concerns one facet alone. Returns whether a facet handled the failure. If
    /// so, the backend `id` may get the request again.
    pub(crate) fn on_failure(&self, kind: FailureKind, id: &BackendId) -> bool {
        if kind == FailureKind::TargetRefused {
            self.targets.clear();
        }
        self.each().fold(false, |is_handled, facet| {
            is_handled | facet.on_failure(kind, id)
        })
    }

    pub(crate) fn suitability(&self, part: RequestPart, model: Option<&str>) -> Suitability {
        let judgements = self.each().map(|facet| facet.suitability(part, model));
        judgements.fold(Suitability::Suitable, Suitability::or_worse)
    }

    /// Whether the backend is suitable for every request until the backends of the pool change.
    pub(crate) fn suit_all_requests(&self) -> bool {
        let is_fixed = !self.each().any(BackendFacet::judges_requests);
        is_fixed && self.suitability(RequestPart::Whole, None) == Suitability::Suitable
    }

    /// Returns what each facet adds to `/status`.
    pub fn status(&self) -> StatusBlocks {
        let mut blocks = StatusBlocks::default();
        self.options
            .iter()
            .for_each(|facet| facet.add_status(&self.targets, &mut blocks));
        blocks
    }
}

impl<'a> PromptKnowledge<'a> {
    /// Nothing is known before the first candidate is looked up.
    pub fn new(prompt: &'a PromptFingerprint) -> Self {
        Self {
            prompt,
            memo: None,
            cached_blocks: 0,
        }
    }

    /// Returns which part of the prompt is known to be in the cache of a target of this backend. `None`:
    /// nothing is known.
    pub(crate) fn prefix(
        &mut self,
        facets: &BackendFacets,
        target: &Target<'_>,
    ) -> Option<KnownPrefix> {
        let cache = facets.prompt_cache.get()?;
        cache.known_prefix(self.prompt, target.part, &mut self.memo)
    }
}
