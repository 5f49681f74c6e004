//! The lease of one attempt on one backend. It counts the attempt as load of the backend, and passes
//! observations of the response to the backend. Dropping the lease releases the load.

use super::backend::Backend;
use super::facets::{FollowedPrompt, LeasedTarget, PromptKnowledge, Target};
use bytes::Bytes;
use http::HeaderMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::{Api, Usage};
use tokenweir_request::observe::{Admission, BackendMonitor};
use tokenweir_request::record::{BackendCondition, ObservedResponse, UsageSource, WaitReports};
use tokenweir_routing::resilience::FailureKind;
use tokenweir_routing::{Candidate, LoadEstimator, PromptFingerprint, Reservation};

/// The lease of one attempt on one backend. Dropping the lease releases the load of the attempt.
#[derive(Debug)]
pub struct Lease {
    state: Arc<LeaseState>,
    /// How the request was admitted, until the exchange takes this value. `None`: no admission gate is set.
    pub(crate) admission: Option<Admission>,
}

/// The state of a lease. As a [`BackendMonitor`], it receives observations of the response.
#[derive(Debug)]
struct LeaseState {
    backend: Arc<Backend>,
    /// The load that the attempt adds to the backend.
    reservation: Mutex<Reservation>,
    /// The load that the attempt adds to a part of the backend. `None`: the target is the whole backend.
    target: Option<LeasedTarget>,
    /// The request that an option follows in the prefix cache. Empty: no option follows the request.
    followed: OnceLock<Box<dyn FollowedPrompt>>,
}

/// Seconds beyond the prediction that an engine may need for its first request, for example to compile.
const FIRST_REQUEST_SECONDS: f64 = 20.0;

impl Lease {
    /// Leases the backend, which the policy picked as `candidate`, to one attempt.
    pub fn new(
        backend: Arc<Backend>,
        candidate: &Candidate,
        prompt: &Arc<PromptFingerprint>,
        is_stream: bool,
        now: Instant,
    ) -> Self {
        if backend.load.in_flight() == 0 {
            backend.load.on_first_request();
        }
        let reservation = backend
            .load
            .estimator
            .reserve(candidate, prompt, is_stream, now);
        backend.publish_load_hint(now);
        backend.on_load_change(Some(prompt));
        let state = Arc::new(LeaseState {
            reservation: Mutex::new(reservation),
            target: LeasedTarget::new(&backend.facets.targets, candidate, prompt, is_stream, now),
            followed: OnceLock::new(),
            backend,
        });
        Self {
            state,
            admission: None,
        }
    }

    /// The backend that the policy picked.
    pub fn backend(&self) -> &Arc<Backend> {
        &self.state.backend
    }

    /// Adds the headers that options need to the headers of the request with this prompt.
    pub fn set_headers(&self, prompt: &Arc<PromptFingerprint>, headers: &mut HeaderMap) {
        let state = &self.state;
        if let Some(cache) = state.backend.facets.prompt_cache.get()
            && state.followed.get().is_none()
            && let Some(followed) = cache.clone().follow(prompt)
        {
            // If a concurrent call has already set the value, this value is dropped without effect.
            let _ = state.followed.set(followed);
        }
        if let Some(followed) = state.followed.get() {
            followed.set_headers(headers);
        }
        if let Some(target) = &state.target {
            target.set_header(headers);
        }
    }

    /// The failure kind of a response that refuses a request because of an option. `says` returns whether the
    /// response contains a text. `None`: the response concerns no option.
    pub(crate) fn refusal(&self, says: impl Fn(&[u8]) -> bool) -> Option<FailureKind> {
        let target = self.state.target.as_ref()?;
        target
            .is_refused(says)
            .then_some(FailureKind::TargetRefused)
    }

    /// Moves the prefill of the request off the load of this backend, because another backend computes it.
    /// `is_removed: false` adds it back.
    pub fn move_prefill(&self, is_removed: bool) {
        self.state
            .observe(|estimator, reservation| estimator.move_prefill(reservation, is_removed));
        self.backend().on_change(clock::now());
    }

    /// Records that this backend has computed the prompt for another backend. `usage`: the token counts of its
    /// response.
    pub fn on_prefilled(&self, usage: &Usage, now: Instant) {
        self.state.on_first_output(now);
        self.state
            .observe(|estimator, reservation| estimator.answered(reservation, usage));
        self.backend().on_response_started(now);
    }

    /// The interface by which the observer of the response reads the state of the backend and reports its
    /// observations.
    pub fn backend_feedback(&self) -> Arc<dyn BackendMonitor> {
        self.state.clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let reservation = *lock(&self.state.reservation);
        let now = clock::now();
        let backend = self.backend();
        let was_pending = reservation.is_pending();
        backend.load.estimator.release(reservation, now);
        if was_pending {
            backend.on_load_change(None);
        }
        backend.on_change(now);
    }
}

impl LeaseState {
    /// Applies an observation of the response to the load of the backend, and of the target inside the backend.
    fn observe(&self, observe: impl Fn(&LoadEstimator, &mut Reservation)) {
        observe(&self.backend.load.estimator, &mut lock(&self.reservation));
        if let Some(target) = &self.target {
            target.observe(observe);
        }
    }
}

impl BackendMonitor for LeaseState {
    fn condition(&self, now: Instant) -> BackendCondition {
        self.backend.condition(now)
    }

    fn wait_reports(&self, from: Instant, until: Instant) -> WaitReports {
        let load = &self.backend.load;
        let queues = &load.engine_queues;
        let mut running_while_queued = queues.running_in(from, until);
        // The engine's queue may be empty again before the next scrape shows a burst, so later load reports
        // count too.
        if running_while_queued.is_none() {
            running_while_queued = queues.running_in(until, clock::now());
        }
        WaitReports {
            mean_prefill: self.backend.health.load_state().mean_prefill(),
            mean_prompt_tokens: load.estimator.learned().prompt_tokens(),
            running_while_queued,
            max_answering: queues.max_answering(),
            last_output_at: load.last_output_at.get(),
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
        if let Some(target) = &self.target {
            target.observe(|estimator, _| estimator.on_stall_change(is_silent, now));
        }
    }

    fn on_first_output(&self, now: Instant) {
        self.backend.load.last_output_at.set(Some(now));
        let was_pending = lock(&self.reservation).is_pending();
        self.observe(|estimator, reservation| estimator.first_output(reservation, now));
        if was_pending {
            let load = &self.backend.load;
            let answering = load.estimator.local_load().answering();
            load.engine_queues.on_first_output(answering);
            self.backend.on_load_change(None);
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
        self.backend
            .load
            .stream_profile
            .on_response_ended(api, observed);
        let is_exact = observed.usage_source == UsageSource::Exact;
        let usage = if is_exact {
            observed.usage
        } else {
            Usage::default()
        };
        if let Some(followed) = self.followed.get() {
            followed.set_usage(usage);
        }
        self.observe(|estimator, reservation| estimator.answered(reservation, &usage));
    }
}

impl Backend {
    /// Prompt tokens that the engine has to compute before the tokens of a new request.
    pub fn backlog_tokens(&self, now: Instant) -> f64 {
        let candidate = self.candidate(&PromptFingerprint::default(), None, clock::nanos(now));
        candidate.map_or(0.0, |candidate| candidate.backlog)
    }

    /// Seconds for which the backend seems to be at a standstill: its oldest request without output is overdue,
    /// and no other request has had output since. For the first request, the time begins later, because the
    /// engine may compile.
    pub fn standstill_seconds(&self, now: Instant) -> f64 {
        let candidate = self.candidate(&PromptFingerprint::default(), None, clock::nanos(now));
        let Some(candidate) = candidate else {
            return 0.0;
        };
        let tolerated = if candidate.is_calibrated {
            0.0
        } else {
            FIRST_REQUEST_SECONDS
        };
        (candidate.overdue - tolerated).max(0.0)
    }

    /// The load and cost estimates of the backend for a prompt. `known`: the facts that options have about the
    /// prompt. `None`: the options are not asked. `now`: nanoseconds as [`clock::nanos`] returns.
    ///
    /// If the estimates cannot be computed, the gateway forgets its observations of the backend and tries
    /// again, because unusable numbers of one backend must not end requests that other backends can serve.
    /// Returns `None` if the second computation fails too.
    pub fn candidate(
        &self,
        prompt: &PromptFingerprint,
        known: Option<&mut PromptKnowledge<'_>>,
        now: i64,
    ) -> Option<Candidate> {
        self.target_candidate(&self.whole(), prompt, known, now)
    }

    fn whole(&self) -> Target<'_> {
        Target {
            estimator: &self.load.estimator,
            key: self.identity.id_hash,
            part: None,
        }
    }

    /// Passes the load and cost estimates for a prompt to `visit`: one for each target inside the backend, or
    /// one for the whole backend.
    pub(super) fn visit_candidates(
        &self,
        prompt: &PromptFingerprint,
        known: &mut PromptKnowledge<'_>,
        now: i64,
        mut visit: impl FnMut(&mut Candidate),
    ) {
        self.facets.targets.visit(&self.whole(), |target| {
            let candidate = self.target_candidate(target, prompt, Some(&mut *known), now);
            if let Some(mut candidate) = candidate {
                visit(&mut candidate);
            }
        });
    }

    fn target_candidate(
        &self,
        target: &Target<'_>,
        prompt: &PromptFingerprint,
        known: Option<&mut PromptKnowledge<'_>>,
        now: i64,
    ) -> Option<Candidate> {
        let estimate = |known| {
            let estimate = || self.estimate(target, prompt, known, now);
            supervise::catch_panic(BackgroundTask::ROUTING, estimate).filter(Candidate::is_finite)
        };
        estimate(known).or_else(|| {
            let backend = &self.identity.id;
            tracing::error!(%backend, "the load estimates of the backend are no usable numbers: they begin anew");
            target.estimator.forget_observations();
            estimate(None)
        })
    }

    fn estimate(
        &self,
        target: &Target<'_>,
        prompt: &PromptFingerprint,
        mut known: Option<&mut PromptKnowledge<'_>>,
        now: i64,
    ) -> Candidate {
        let prefix = known
            .as_mut()
            .and_then(|known| known.prefix(&self.facets, target));
        let expected = known.as_ref().map_or(0, |known| known.cached_blocks);
        let mut candidate = target
            .estimator
            .candidate_with(prompt, prefix.as_ref(), expected, now);
        if let Some(known) = known {
            known.cached_blocks = candidate.cached_blocks;
        }
        candidate.weight = self.weight();
        candidate.credit = self.load.estimator.credit();
        candidate.key = target.key;
        candidate.part = target.part.map(|part| part.number);
        candidate
    }
}
