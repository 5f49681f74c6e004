//! The lease of one attempt on one backend: it counts the attempt in the load of the backend,
//! passes observations of the response to the backend, and releases the load when the lease is
//! dropped.

use super::backend::Backend;
use super::kv_events::{CacheLookup, FollowedRequest};
use super::ranks::{LeasedRank, Rank};
use bytes::Bytes;
use http::HeaderValue;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokenweir_engine::prefill_leg::Role;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::{Api, Usage};
use tokenweir_request::observe::BackendMonitor;
use tokenweir_request::record::{BackendCondition, ObservedResponse, UsageSource, WaitReports};
use tokenweir_routing::{Candidate, LoadEstimator, PromptFingerprint, Reservation};

/// The lease of one attempt on one backend. Dropping the lease releases the load of the attempt.
#[derive(Debug)]
pub struct Lease(Arc<LeaseState>);

/// The state of a lease. As a [`BackendMonitor`], it receives observations of the response.
#[derive(Debug)]
struct LeaseState {
    backend: Arc<Backend>,
    /// The load that the attempt adds to the backend.
    reservation: Mutex<Reservation>,
    /// The load that the lease adds to a data-parallel rank of the backend. `None`: the backend
    /// chooses the rank.
    rank: Option<LeasedRank>,
    /// The followed request, if the gateway looks for the blocks of the request in the KV events of
    /// the backend.
    followed: OnceLock<FollowedRequest>,
}

impl Lease {
    pub(super) fn new(
        backend: Arc<Backend>,
        candidate: &Candidate,
        prompt: &Arc<PromptFingerprint>,
        is_stream: bool,
        now: Instant,
    ) -> Self {
        if backend.load.in_flight() == 0 {
            backend.load.on_first_request();
        }
        let reservation = backend.load.estimator.reserve(candidate, prompt, is_stream, now);
        backend.publish_load_hint(now);
        backend.report_to_peers(Some(prompt));
        let rank = LeasedRank::new(&backend.load.ranks, candidate, prompt, is_stream, now);
        let reservation = Mutex::new(reservation);
        Self(Arc::new(LeaseState { backend, reservation, rank, followed: OnceLock::new() }))
    }

    /// The leased backend.
    pub fn backend(&self) -> &Arc<Backend> {
        &self.0.backend
    }

    /// Begins to follow the blocks of the request in the KV events of the backend. Returns the
    /// session id that the request must have. `None`: the KV events of the backend are not
    /// received, or the prompt has no text.
    pub fn follow_blocks(&self, prompt: &Arc<PromptFingerprint>) -> Option<&HeaderValue> {
        let cache = self.backend().identity.kv_cache()?;
        if self.0.followed.get().is_none() {
            let prompt_tokens = lock(&self.0.reservation).prompt_tokens();
            // If another call has set the value in the meantime, this value is dropped without
            // effect.
            let _ = self.0.followed.set(FollowedRequest::begin(cache, prompt, prompt_tokens)?);
        }
        self.0.followed.get().map(FollowedRequest::header)
    }

    /// The value of the header `X-data-parallel-rank` of the request. `None`: the request has no such
    /// header.
    pub fn rank_header(&self) -> Option<&HeaderValue> {
        self.0.rank.as_ref().map(LeasedRank::header)
    }

    /// Removes the prefill of the request from the load of this backend, because another backend
    /// computes it. Without `is_elsewhere`, adds the prefill again.
    pub(crate) fn move_prefill(&self, is_elsewhere: bool) {
        self.0.observe(|estimator, reservation| estimator.move_prefill(reservation, is_elsewhere));
        self.backend().on_change(clock::now());
    }

    /// Records that the prefill leg of the lease has ended with success. `usage`: the token counts
    /// in its response.
    pub(crate) fn on_prefilled(&self, usage: &Usage, now: Instant) {
        self.0.on_first_output(now);
        self.0.observe(|estimator, reservation| estimator.answered(reservation, usage));
        self.backend().on_response_started(now);
    }

    /// The interface through which the observation of the request reads the state of the backend, and
    /// reports what it observed in the response.
    pub fn backend_feedback(&self) -> Arc<dyn BackendMonitor> {
        self.0.clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (reservation, now) = (*lock(&self.0.reservation), clock::now());
        let backend = self.backend();
        let was_pending = reservation.is_pending();
        backend.load.estimator.release(reservation, now);
        if was_pending {
            backend.report_to_peers(None);
        }
        backend.on_change(now);
    }
}

impl LeaseState {
    /// Applies an observation of the response to the load of the backend, and to that of the rank.
    fn observe(&self, observe: impl Fn(&LoadEstimator, &mut Reservation)) {
        observe(&self.backend.load.estimator, &mut lock(&self.reservation));
        self.observe_at_rank(observe);
    }

    fn observe_at_rank(&self, observe: impl FnOnce(&LoadEstimator, &mut Reservation)) {
        if let Some(rank) = &self.rank {
            rank.observe(observe);
        }
    }
}

impl BackendMonitor for LeaseState {
    fn condition(&self, now: Instant) -> BackendCondition {
        self.backend.condition(now)
    }

    fn wait_reports(&self, from: Instant, until: Instant) -> WaitReports {
        let estimator = &self.backend.load.estimator;
        let queues = estimator.reported_queues();
        // The queue of a burst of requests may be empty again before a scrape shows it, so later reports
        // count too.
        let later = || queues.running_in(until, clock::now());
        WaitReports {
            mean_prefill: self.backend.health.load_state().mean_prefill(),
            mean_prompt_tokens: estimator.learned().prompt_tokens(),
            running_while_queued: queues.running_in(from, until).or_else(later),
            max_answering: estimator.max_answering(),
            last_output_at: self.backend.load.last_output_at.get(),
        }
    }

    fn on_gap(&self, gap: Duration, now: Instant) {
        self.backend.load.last_output_at.set(Some(now));
        self.backend.load.recent_gaps.observe(gap);
    }

    fn usual_gap(&self) -> Option<f64> {
        self.backend.load.gap_p99()
    }

    fn is_declared_down(&self) -> bool {
        self.backend.health.is_declared_down()
    }

    fn on_stall(&self, is_silent: bool) {
        let now = clock::now();
        self.backend.load.on_stall(is_silent, now);
        self.observe_at_rank(|estimator, _| estimator.on_stall_change(is_silent, now));
    }

    fn on_first_output(&self, now: Instant) {
        self.backend.load.last_output_at.set(Some(now));
        let was_pending = {
            let mut reservation = lock(&self.reservation);
            let was_pending = reservation.is_pending();
            self.backend.load.estimator.first_output(&mut reservation, now);
            was_pending
        };
        self.observe_at_rank(|estimator, reservation| estimator.first_output(reservation, now));
        if was_pending {
            self.backend.report_to_peers(None);
        }
        self.backend.publish_load_hint(now);
    }

    fn tokens_per_event(&self) -> f64 {
        self.backend.load.stream_profile.tokens_per_event()
    }

    fn fingerprint(&self) -> Option<Bytes> {
        self.backend.load.stream_profile.fingerprint()
    }

    fn on_answer(&self, api: Option<Api>, observed: &ObservedResponse) {
        self.backend.load.stream_profile.on_response_ended(api, observed);
        let is_exact = observed.usage_source == UsageSource::Exact;
        let usage = if is_exact { observed.usage } else { Usage::default() };
        if let Some(followed) = self.followed.get() {
            followed.set_usage(usage);
        }
        self.observe(|estimator, reservation| estimator.answered(reservation, &usage));
    }
}

impl Backend {
    /// Whether the backend serves prefill legs: its role allows them, and since its start it has kept
    /// the KV blocks of all prefill legs.
    pub(super) fn serves_prefill_legs(&self) -> bool {
        self.identity.role().is_some_and(Role::serves_prefill_legs) && !self.load.lacks_blocks.get()
    }

    /// Records that the response to a prefill leg names no KV blocks that another backend could fetch.
    /// Until the backend restarts, it gets no prefill leg.
    pub fn on_leg_without_blocks(&self) {
        if !self.load.lacks_blocks.replace(true) {
            tracing::warn!(backend = %self.identity.id, "the backend keeps no KV cache blocks for decode backends: it gets no prefill legs until it restarts");
        }
    }

    /// Prompt tokens that the engine has to compute before those of a new request.
    pub fn backlog_tokens(&self, now: Instant) -> f64 {
        let candidate = self.candidate(&PromptFingerprint::default(), None, clock::nanos(now));
        candidate.map_or(0.0, |candidate| candidate.backlog)
    }

    /// The load and cost estimates of the backend for a prompt. `lookup` finds how much of the prompt is
    /// cached according to the KV events of the backend. `None` in `lookup`: KV events are not used.
    ///
    /// If the estimates cannot be computed, the gateway forgets all that it observed of the backend:
    /// unusable numbers of one backend must not end requests that other backends can serve. `None`: the
    /// estimates cannot be computed without observations either. `now`: nanoseconds as [`clock::nanos`]
    /// returns.
    pub(super) fn candidate(
        &self,
        prompt: &PromptFingerprint,
        lookup: Option<&mut CacheLookup<'_>>,
        now: i64,
    ) -> Option<Candidate> {
        self.target_candidate(None, prompt, lookup, now)
    }

    /// Passes the load and cost estimates for a prompt to `visit`: those of each data-parallel rank that
    /// is a target of routing, or else of the backend.
    pub(super) fn visit_candidates(
        &self,
        prompt: &PromptFingerprint,
        lookup: &mut CacheLookup<'_>,
        now: i64,
        mut visit: impl FnMut(&mut Candidate),
    ) {
        let Some(ranks) = self.load.ranks.targets() else {
            return self.candidate(prompt, Some(lookup), now).iter_mut().for_each(visit);
        };
        for rank in ranks.iter() {
            let mut candidate = self.target_candidate(Some(rank), prompt, Some(&mut *lookup), now);
            candidate.iter_mut().for_each(&mut visit);
        }
    }

    fn target_candidate(
        &self,
        rank: Option<&Rank>,
        prompt: &PromptFingerprint,
        lookup: Option<&mut CacheLookup<'_>>,
        now: i64,
    ) -> Option<Candidate> {
        let estimate = |lookup| {
            let estimate = || self.estimate(rank, prompt, lookup, now);
            supervise::catch_panic(BackgroundTask::Routing, estimate).filter(Candidate::is_finite)
        };
        estimate(lookup).or_else(|| {
            let backend = &self.identity.id;
            tracing::error!(%backend, "the load estimates of the backend are no usable numbers: they begin anew");
            self.estimator(rank).forget_observations();
            estimate(None)
        })
    }

    fn estimator<'a>(&'a self, rank: Option<&'a Rank>) -> &'a LoadEstimator {
        rank.map_or(&self.load.estimator, |rank| &rank.estimator)
    }

    fn estimate(
        &self,
        rank: Option<&Rank>,
        prompt: &PromptFingerprint,
        mut lookup: Option<&mut CacheLookup<'_>>,
        now: i64,
    ) -> Candidate {
        let resident = lookup.as_mut().zip(self.identity.kv_cache());
        let resident =
            resident.and_then(|(lookup, cache)| lookup.resident(cache, rank.map(|it| it.place)));
        let expected = lookup.as_ref().map_or(0, |lookup| lookup.cached_blocks);
        let estimator = self.estimator(rank);
        let mut candidate = estimator.candidate_with(prompt, resident.as_ref(), expected, now);
        if let Some(lookup) = lookup {
            lookup.cached_blocks = candidate.cached_blocks;
        }
        candidate.weight = self.weight();
        candidate.key = rank.map_or(self.identity.id_hash, |rank| rank.key);
        candidate.rank = rank.map(|rank| rank.number);
        candidate
    }
}
