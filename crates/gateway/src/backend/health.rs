//! The health of a backend: the state from its health checks and scrapes, its circuit breaker, and
//! whether an operator has drained the backend.

use super::drain::Drain;
use super::state::BackendState;
use arc_swap::{ArcSwap, Guard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::EngineKind;
use tokenweir_engine::model::ServedModel;
use tokenweir_protocol::atomic::{AtomicFlag, AtomicInstant};
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::resilience::{
    Availability, BreakerAction, CircuitBreaker, CircuitBreakerSettings, RecentCuts,
};
use tokio::sync::{Notify, SetOnce};

/// The state from health checks and scrapes, the circuit breaker, and the drain.
#[derive(Debug)]
#[repr(C)] // the fields that routing reads of each candidate come first
pub struct BackendHealth {
    /// Whether the backend may serve requests: a copy of [`BackendState::is_serving`]. Routing
    /// reads this copy, which is cheaper than `state`, for many backends per request.
    is_serving: AtomicBool,
    /// Whether the backend is only suspected to be down: a copy of [`BackendState::is_suspected`].
    pub(super) is_suspected: AtomicFlag,
    /// Whether the backend is drained. Copy of [`HealthSignals::drain`], which routing reads.
    is_drained: AtomicFlag,
    /// Whether the stored model list may be out of date, because the backend rejected a model of this list.
    pub(super) is_model_list_stale: AtomicFlag,
    /// Whether [`HealthSignals::unserved`] contains a path.
    has_unserved: AtomicFlag,
    /// The prompts of the streams that the backend cut a short time ago.
    pub(super) recent_cuts: RecentCuts,
    /// The circuit breaker, which ejects the backend when its requests fail.
    pub breaker: CircuitBreaker,
    state: ArcSwap<BackendState>,
    /// The signals of the health checker. They are boxed to keep this struct small: then the load
    /// of the backend, which routing also reads, is close to the health in memory.
    signals: Box<HealthSignals>,
}

/// Signals between the health checker of a backend and the requests to the backend.
#[derive(Debug, Default)]
struct HealthSignals {
    /// Wakes the health checker before the end of its interval.
    check_requested: Notify,
    first_check_completed: SetOnce<()>,
    /// Whether the health checker has declared the backend down. A failed connection of a client request does
    /// not set this flag.
    is_declared_down: AtomicBool,
    /// Wakes the requests that wait for the backend to be declared down, in the order of their arrival.
    went_down: Notify,
    /// Whether the log already states that the backend is down.
    is_down_logged: AtomicFlag,
    /// Start of the last request for the model list. `None`: no request yet.
    models_read_at: AtomicInstant,
    /// Who drained the backend, and why. `None`: the backend is not drained.
    drain: Mutex<Option<Arc<Drain>>>,
    /// The API paths that this backend does not serve but another backend does. Each path has the time of the
    /// last request that showed this.
    unserved: Mutex<Vec<(&'static str, Instant)>>,
}

/// The pseudo-path that stands for media in prompts in the list of unserved paths.
pub(crate) const MEDIA: &str = "media";
/// Time after which the gateway again tries a path that the backend did not serve.
const UNSERVED_TIME: Duration = Duration::from_mins(10);

impl BackendHealth {
    /// The health of a new backend: unknown, with a closed circuit breaker.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            is_serving: AtomicBool::new(false),
            is_suspected: AtomicFlag::default(),
            is_drained: AtomicFlag::default(),
            is_model_list_stale: AtomicFlag::default(),
            has_unserved: AtomicFlag::default(),
            recent_cuts: RecentCuts::default(),
            breaker: CircuitBreaker::new(CircuitBreakerSettings::default(), now),
            state: ArcSwap::default(),
            signals: Box::default(),
        }
    }

    /// The state that the last health check or scrape found.
    pub fn state(&self) -> Arc<BackendState> {
        self.state.load_full()
    }

    /// The current state, cheaper than [`Self::state`]. The guard must be dropped soon and must not be
    /// stored.
    pub(super) fn load_state(&self) -> Guard<Arc<BackendState>> {
        self.state.load()
    }

    /// The kind of the inference server, such as vLLM. `None`: not known.
    pub fn server_kind(&self) -> Option<EngineKind> {
        self.state.load().server_kind()
    }

    /// Whether the backend is up, and its engine neither sleeps nor is paused.
    pub(super) fn is_serving(&self) -> bool {
        self.is_serving.load(Ordering::Acquire)
    }

    /// The drain of the backend. `None`: the backend is not drained.
    pub fn drain(&self) -> Option<Arc<Drain>> {
        lock(&self.signals.drain).clone()
    }

    /// Passes the current drain of the backend to `change`, and stores the result. Returns the previous drain.
    pub(super) fn update_drain(
        &self,
        change: impl FnOnce(Option<&Arc<Drain>>) -> Option<Arc<Drain>>,
    ) -> Option<Arc<Drain>> {
        let mut drain = lock(&self.signals.drain);
        let next = change(drain.as_ref());
        // The lock is still held, so `is_drained` always matches the stored drain.
        self.is_drained.set(next.is_some());
        std::mem::replace(&mut *drain, next)
    }

    /// Whether an operator or the configuration has drained the backend.
    pub fn is_drained(&self) -> bool {
        self.is_drained.get()
    }

    /// Returns whether a backend with this configured weight may get new requests, and if not, why.
    pub(super) fn availability(&self, weight: u32, now: Instant) -> Availability {
        match self.state.load().engine_availability() {
            _ if self.is_drained.get() => Availability::Drained,
            Some(availability) => availability,
            None if weight == 0 => Availability::ZeroWeight,
            None if self.breaker.is_ejected(now) => Availability::Ejected,
            None => Availability::Available,
        }
    }

    /// Replaces the state by a changed copy. `change` may run more than once.
    pub(super) fn update_state(&self, change: impl Fn(&mut BackendState)) {
        self.state.rcu(|state| {
            let mut next = BackendState::clone(state);
            change(&mut next);
            next.with_summary()
        });
        // Concurrent updates may store `is_serving` in another order than the states. The loop repeats until
        // the flag matches the current state.
        loop {
            let state = self.state.load();
            self.is_suspected.set(state.is_suspected());
            self.is_serving.store(state.is_serving(), Ordering::Release);
            if Arc::ptr_eq(&state, &self.state.load()) {
                break;
            }
        }
    }

    /// Applies the effect of a failed request to the circuit breaker, and logs an ejection. `id`
    /// names the backend in the log, and `why` is the logged reason of the failure.
    pub(super) fn apply_to_breaker(
        &self,
        action: BreakerAction,
        id: &BackendId,
        why: &str,
        now: Instant,
    ) {
        match action {
            BreakerAction::CountUnlessServing if self.breaker.is_serving(now) => {}
            BreakerAction::CountFailure | BreakerAction::CountUnlessServing
                if self.breaker.on_failure(now) =>
            {
                tracing::warn!(backend = %id, why, "backend ejected: too many requests failed");
            }
            BreakerAction::Eject if self.breaker.on_death(now) => {
                tracing::warn!(backend = %id, why, "backend ejected: its engine is dead");
            }
            BreakerAction::Drain if self.breaker.on_drain(now) => {
                tracing::warn!(backend = %id, why, "backend ejected: it aborts its requests");
            }
            _ => {}
        }
    }

    /// Records that the backend does not serve a path that another backend serves. Returns `true` if
    /// this was not known before.
    pub(super) fn add_unserved(&self, path: &'static str, now: Instant) -> bool {
        let mut paths = lock(&self.signals.unserved);
        if let Some((_, since)) = paths.iter_mut().find(|(missing, _)| *missing == path) {
            *since = now;
            return false;
        }
        paths.push((path, now));
        self.has_unserved.set(true);
        true
    }

    /// Whether a request in the last 10 minutes showed that the backend does not serve this path.
    pub(super) fn lacks(&self, path: Option<&'static str>, now: Instant) -> bool {
        let is_recent = |since: Instant| now.saturating_duration_since(since) < UNSERVED_TIME;
        self.has_unserved.get()
            && lock(&self.signals.unserved)
                .iter()
                .any(|(missing, since)| Some(*missing) == path && is_recent(*since))
    }

    /// The paths that the backend does not serve, as requests of the last 10 minutes showed, in
    /// alphabetical order.
    pub fn unserved(&self, now: Instant) -> Vec<&'static str> {
        let is_recent = |since: Instant| now.saturating_duration_since(since) < UNSERVED_TIME;
        let missing = lock(&self.signals.unserved);
        let recent = missing.iter().filter(|(_, since)| is_recent(*since));
        let mut paths: Vec<&'static str> = recent.map(|(path, _)| *path).collect();
        paths.sort_unstable();
        paths
    }

    /// Records that the backend cut the stream of a request. `prompt`: a hash of the prompt of the request.
    pub fn on_cut(&self, prompt: u64, now: Instant) {
        self.recent_cuts.add(prompt, now);
    }

    /// Forgets the paths that the backend did not serve, because another program may run after a restart.
    pub(super) fn forget_unserved(&self) {
        lock(&self.signals.unserved).clear();
        self.has_unserved.set(false);
    }

    pub(super) fn request_check(&self) {
        self.signals.check_requested.notify_one();
    }

    pub(super) async fn wait_check_requested(&self) {
        self.signals.check_requested.notified().await;
    }

    /// Marks the stored model list as out of date, because the backend rejected a model that it had
    /// listed. Requests a health check, which fetches a new list.
    pub fn mark_models_stale(&self) {
        if !self.is_model_list_stale.replace(true) {
            self.request_check();
        }
    }

    /// Records that a request for the model list, which began at `at`, has ended.
    pub(super) fn set_models_read(&self, at: Instant) {
        self.signals.models_read_at.set(Some(at));
    }

    /// Start of the last request for the model list. `None`: no request yet.
    pub(super) fn models_read_at(&self) -> Option<Instant> {
        self.signals.models_read_at.get()
    }

    /// Whether `models`, a list from the backend, differs from the stored list in any entry or in the order.
    /// Also true if no list is stored. Every call clears the mark of [`Self::mark_models_stale`]. The mark does
    /// not influence the result.
    pub(super) fn has_new_models(&self, models: &[ServedModel]) -> bool {
        self.is_model_list_stale.set(false);
        let stored_models = self.state.load().models.clone();
        !stored_models.is_some_and(|stored| ServedModel::are_equivalent(&stored, models))
    }

    /// Logs that the backend is down. Repeated calls during one outage log nothing.
    pub(super) fn log_down(&self, id: &BackendId, reason: &str) {
        if !self.signals.is_down_logged.replace(true) {
            tracing::warn!(
                backend = %id,
                reason,
                "backend is down: it gets no new requests, and requests without a response may \
                 fail over"
            );
        }
    }

    pub(super) fn log_up(&self, id: &BackendId) {
        self.signals.is_down_logged.set(false);
        tracing::info!(backend = %id, "backend is up: it gets requests");
    }

    /// Records whether the health checker declared the backend down.
    pub(super) fn set_declared_down(&self, is_down: bool) {
        self.signals
            .is_declared_down
            .store(is_down, Ordering::SeqCst);
        if is_down {
            self.signals.went_down.notify_waiters();
        }
    }

    pub(super) fn is_declared_down(&self) -> bool {
        self.signals.is_declared_down.load(Ordering::Relaxed)
    }

    /// Waits until the health checker declares the backend down.
    pub async fn wait_declared_down(&self) {
        // Creating the future before the flag is read ensures that no notification after the read is missed.
        let went_down = self.signals.went_down.notified();
        if !self.signals.is_declared_down.load(Ordering::SeqCst) {
            went_down.await;
        }
    }

    pub(super) fn on_check_completed(&self) {
        // After the first check, this fails without effect, because the value is already set.
        let _ = self.signals.first_check_completed.set(());
    }

    /// Waits until the first health check has completed.
    pub async fn wait_first_check(&self) {
        self.signals.first_check_completed.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::DrainInitiator;
    use crate::backend::Health;
    use crate::backend::routes::tests::model_list;
    use futures_util::FutureExt;
    use tokenweir_protocol::clock;

    fn new_health() -> BackendHealth {
        BackendHealth::new(clock::now())
    }

    #[test]
    fn a_drained_backend_stays_drained_in_any_health() {
        let health = new_health();
        let now = clock::now();
        assert_eq!(health.availability(1, now), Availability::Unknown);
        let drain = Arc::new(Drain::begin(DrainInitiator::Configuration, None, None));
        health.update_drain(|_| Some(drain));
        for value in [Health::Unknown, Health::Up, Health::Down] {
            health.update_state(|state| state.health = value);
            assert_eq!(health.availability(1, now), Availability::Drained);
        }
        health.update_drain(|_| None);
        assert_eq!(health.availability(1, now), Availability::Down);
    }

    #[test]
    fn a_rejected_model_causes_one_check() {
        let health = new_health();
        let is_check_requested = || health.wait_check_requested().now_or_never().is_some();
        health.mark_models_stale();
        assert!(health.is_model_list_stale.get() && is_check_requested());
        health.mark_models_stale();
        assert!(!is_check_requested(), "it was requested before");
        let models = model_list(&["a"]);
        assert!(health.has_new_models(&models) && !health.is_model_list_stale.get());
        health.update_state(|state| state.models = Some(models.clone()));
        assert!(!health.has_new_models(&models), "the list is known");
    }

    #[test]
    fn a_wait_ends_with_its_event() {
        let health = new_health();
        assert!(health.wait_first_check().now_or_never().is_none());
        health.on_check_completed();
        health.on_check_completed();
        assert!(health.wait_first_check().now_or_never().is_some());
        assert!(health.wait_declared_down().now_or_never().is_none());
        health.set_declared_down(true);
        assert!(health.wait_declared_down().now_or_never().is_some());
    }
}
