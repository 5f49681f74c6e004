//! The optional parts of a backend. This file alone lists them. Each part has a folder with its state and its
//! settings; `drivers` has what a part does in the background.

pub mod exchange;
mod facet;
pub mod gpu;
pub mod kv_events;
pub mod ranks;
pub mod role;
pub mod sleep;

pub use facet::RequestPart;
pub(crate) use facet::{BackendFacet, LoadChange, Suitability, Target, TargetPart};

use exchange::{ExchangeFacet, PeerExchange};
use gpu::GpuFacet;
use http::HeaderMap;
use kv_events::{CacheKnowledge, CacheLookup, FollowedBlocks, KvEventsFacet, KvEventsSettings};
use ranks::{DataParallelRanks, LeasedRank, RankCheck};
use role::RoleFacet;
use sleep::{SleepControl, SleepFacet, SleepPermits, SleepSettings};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_protocol::openai::Usage;
use tokenweir_request::record::{BackendCondition, RequestRecord};
use tokenweir_routing::resilience::{Availability, FailureKind};
use tokenweir_routing::{Candidate, KnownPrefix, LoadEstimator, PromptFingerprint, Reservation};

/// The state of the optional parts of one backend.
#[derive(Debug, Default)]
#[repr(C)] // the parts that routing reads of each candidate come first
pub struct BackendFacets {
    /// The data-parallel ranks, if they are targets of routing.
    pub ranks: DataParallelRanks,
    /// The KV events of the engine.
    pub kv_events: KvEventsFacet,
    /// The exchange with other gateways.
    exchange: ExchangeFacet,
    /// The GPUs.
    pub gpu: GpuFacet,
    /// The role: the parts of requests that the backend serves.
    pub role: RoleFacet,
    /// Sleep mode of the engine.
    pub sleep: SleepFacet,
}

/// What the optional parts know of the prompt of a request, while its candidates are computed.
pub(crate) struct PromptKnowledge<'a> {
    kv_events: CacheLookup<'a>,
    /// Number of leading text blocks of the prompt that the last candidate has cached.
    pub(crate) cached_blocks: u32,
}

/// What the optional parts keep for one lease of a backend.
#[derive(Debug)]
pub(crate) struct LeaseFacets {
    /// The blocks of the request in the KV events of the backend.
    followed: FollowedBlocks,
    /// The load that the lease adds to a data-parallel rank. `None`: the backend chooses the rank.
    rank: Option<LeasedRank>,
}

/// The settings of the optional parts that hold for all backends of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FacetSettings {
    /// Whether the gateway wakes sleeping engines, and puts idle ones to sleep.
    pub sleep: SleepSettings,
}

/// What the optional parts of all backends of a pool share.
#[derive(Debug)]
pub struct PoolFacets {
    /// The exchange with other gateways. `None`: no exchange is configured.
    pub exchange: Option<Arc<PeerExchange>>,
    /// What the KV events of all backends show.
    pub kv_events: Arc<CacheKnowledge>,
    pub(crate) sleep: SleepPermits,
}

/// The state that the optional parts keep in the health checker of one backend.
#[derive(Debug)]
pub(crate) struct CheckFacets {
    pub(crate) sleep: SleepControl,
    pub(crate) ranks: RankCheck,
}

impl FacetSettings {
    /// Whether a request can make a backend with this availability available.
    pub(crate) fn can_activate(&self, availability: Availability) -> bool {
        self.sleep.can_activate(availability)
    }
}

/// Evaluates an expression for each part of a backend, or for each part and the same part of another backend.
macro_rules! each {
    ($facets:expr, $facet:ident => $call:expr) => {
        each!($facets, $facets, $facet, _other => $call)
    };
    ($facets:expr, $others:expr, $facet:ident, $other:ident => $call:expr) => {
        each!(
            @ $facets, $others, $facet, $other, $call;
            ranks kv_events exchange gpu role sleep
        )
    };
    (@ $facets:expr, $others:expr, $facet:ident, $other:ident, $call:expr; $($part:ident)*) => {{
        $(
            let $facet = &$facets.$part;
            let $other = &$others.$part;
            $call;
        )*
    }};
}

impl PoolFacets {
    /// The parts before the first request. `exchange`: the exchange with other gateways.
    pub fn new(kv_events: KvEventsSettings, exchange: Option<Arc<PeerExchange>>) -> Self {
        Self { exchange, kv_events: CacheKnowledge::new(kv_events), sleep: SleepPermits::default() }
    }

    /// The seed of the hashes of a prompt for `model` with the `cache_salt` `salt`, by which all gateways hash
    /// prompts equally. `None`: this gateway shares no prompts.
    pub(crate) fn prompt_seed(&self, model: Option<&str>, salt: Option<&str>) -> Option<u64> {
        self.exchange.as_ref().map(|exchange| exchange.prompt_seed(model, salt))
    }
}

impl Default for PoolFacets {
    fn default() -> Self {
        Self::new(KvEventsSettings::default(), None)
    }
}

impl BackendFacets {
    /// Connects the parts of a backend to those of its pool.
    pub(crate) fn join_pool(&mut self, pool: &PoolFacets) {
        self.exchange.exchange.clone_from(&pool.exchange);
    }

    /// Whether the parts can stay if a reload builds them as `other`.
    pub(crate) fn is_same_endpoint(&self, other: &Self) -> bool {
        let mut is_same = true;
        each!(self, other, facet, updated => is_same &= facet.is_same_endpoint(updated));
        is_same
    }

    /// Takes over the settings that a reload can change.
    pub(crate) fn adopt_settings(&self, other: &Self) {
        each!(self, other, facet, updated => facet.adopt_settings(updated));
    }

    /// Sets the age of a load report at which it has half of its weight in predictions.
    pub(crate) fn set_horizon(&self, horizon: Duration) {
        each!(self, facet => facet.set_horizon(horizon));
    }

    /// Forgets what the next start of the server can change: the backend is down, or has restarted.
    pub(crate) fn forget_server(&self) {
        each!(self, facet => facet.forget_server());
    }

    /// Handles a failed request that concerns an optional part alone. Returns whether it does: then the backend
    /// `id` may get the request again.
    pub(crate) fn on_failure(&self, kind: FailureKind, id: &BackendId) -> bool {
        let mut is_handled = false;
        each!(self, facet => is_handled |= facet.on_failure(kind, id));
        is_handled
    }

    /// Forgets what holds for one start of the server only: the server has restarted.
    pub(crate) fn on_restart(&self) {
        each!(self, facet => facet.on_restart());
    }

    /// Whether the backend may get this part of a request.
    pub(crate) fn suitability(&self, part: RequestPart) -> Suitability {
        let mut worst = Suitability::Suitable;
        each!(self, facet => worst = worst.or_worse(facet.suitability(part)));
        worst
    }

    /// Sets what the parts know in the condition of the backend.
    pub(crate) fn complete_condition(&self, condition: &mut BackendCondition) {
        each!(self, facet => facet.complete_condition(condition));
    }

    /// Whether a part of the backend learns from the record of a request.
    pub(crate) fn learn_from(record: &RequestRecord) -> bool {
        record.has_remote_prompt
    }

    /// Learns from the record of a request that the backend has answered.
    pub(crate) fn on_finished(&self, record: &RequestRecord, estimator: &LoadEstimator) {
        each!(self, facet => facet.on_finished(record, estimator));
    }

    /// Called when the load that this gateway puts on the backend has changed.
    pub(crate) fn on_load_change(&self, change: &LoadChange<'_>) {
        each!(self, facet => facet.on_load_change(change));
    }

    /// Passes the targets of routing to `visit`: those inside the backend, or else the `whole` backend.
    pub(crate) fn visit_targets(&self, whole: &Target<'_>, mut visit: impl FnMut(&Target<'_>)) {
        each!(self, facet => if facet.visit_targets(&mut visit) { return });
        visit(whole);
    }

    /// Asks the parts to make the backend available.
    pub(crate) fn request_activation(&self) {
        each!(self, facet => facet.request_activation());
    }

    /// Whether a part was asked to make the backend available, and has not done it yet.
    pub(crate) fn is_activation_requested(&self) -> bool {
        let mut is_requested = false;
        each!(self, facet => is_requested |= facet.is_activation_requested());
        is_requested
    }
}

impl<'a> PromptKnowledge<'a> {
    pub(crate) fn new(prompt: &'a PromptFingerprint) -> Self {
        Self { kv_events: CacheLookup::new(prompt), cached_blocks: 0 }
    }

    /// How much of the prompt is known to be in the cache of a target of the backend with these parts. `None`:
    /// it is not known.
    pub(crate) fn prefix(
        &mut self,
        facets: &BackendFacets,
        target: &Target<'_>,
    ) -> Option<KnownPrefix> {
        self.kv_events.known_prefix(&facets.kv_events, target.part)
    }
}

impl LeaseFacets {
    /// The lease of the backend with these parts, which the policy picked as `candidate`.
    pub(crate) fn new(
        facets: &BackendFacets,
        candidate: &Candidate,
        prompt: &PromptFingerprint,
        is_stream: bool,
        now: Instant,
    ) -> Self {
        let rank = LeasedRank::new(&facets.ranks, candidate, prompt, is_stream, now);
        Self { followed: FollowedBlocks::default(), rank }
    }

    /// Applies an observation of the response to the load of the target inside the backend, if there is one.
    pub(crate) fn observe(&self, observe: impl FnOnce(&LoadEstimator, &mut Reservation)) {
        if let Some(rank) = &self.rank {
            rank.observe(observe);
        }
    }

    /// Records the token counts that the response reported.
    pub(crate) fn set_usage(&self, usage: Usage) {
        self.followed.set_usage(usage);
    }

    /// Adds the headers that the parts of the backend need to the headers of the request with this prompt.
    pub(crate) fn set_headers(
        &self,
        facets: &BackendFacets,
        prompt: &Arc<PromptFingerprint>,
        headers: &mut HeaderMap,
    ) {
        self.followed.set_header(&facets.kv_events, prompt, headers);
        if let Some(rank) = &self.rank {
            rank.set_header(headers);
        }
    }

    /// The kind of a refusal that concerns an optional part. `says`: whether the response contains a text.
    /// `None`: it concerns none.
    pub(crate) fn refusal(&self, says: impl Fn(&[u8]) -> bool) -> Option<FailureKind> {
        let is_about_rank = self.rank.is_some() && says(ranks::REFUSED_FIELD);
        is_about_rank.then_some(FailureKind::RankRefused)
    }
}

impl CheckFacets {
    /// The state before the first check, at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self { sleep: SleepControl::new(now), ranks: RankCheck::default() }
    }

    /// Forgets what another start of the server can change.
    pub(crate) fn reset(&mut self) {
        self.sleep.reset();
        self.ranks.reset();
    }

    /// Prepares a scrape of the backend with these parts.
    pub(crate) fn before_scrape(&mut self, facets: &BackendFacets) {
        self.ranks.before_scrape(&facets.ranks);
    }

    /// Reads a metrics page. `None`: the backend answered with an error.
    pub(crate) fn read_page(&mut self, page: Option<(&[u8], &EngineLoad)>) {
        self.ranks.read_page(page);
    }

    /// Records a successful scrape of the backend, which began at `scraped_at`.
    pub(crate) fn after_scrape(&self, facets: &BackendFacets, scraped_at: Instant) {
        self.ranks.after_scrape(&facets.ranks, scraped_at);
    }
}
