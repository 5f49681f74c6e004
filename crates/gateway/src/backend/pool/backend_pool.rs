//! The pool and its current [`PoolSnapshot`]. The pool replaces the snapshot when backends are added or
//! removed, when settings change, and when a backend lists other models.

use super::snapshot::PoolSnapshot;
use crate::backend::capacity_notifier::CapacityNotifier;
use crate::backend::facets::PoolFacets;
use crate::backend::pool_membership::PoolMembership;
use crate::backend::routes::model_labels::{DEFAULT_MAX_MODEL_LABELS, ModelLabelTable};
use crate::backend::routes::{ModelConfig, ModelListInterner, RouteRule, RouteTable};
use crate::backend::{Backend, Health};
use crate::status::LabelledModel;
use arc_swap::{ArcSwap, Guard};
use http::HeaderValue;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::model::ServedModel;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers;
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::resilience;
use tokenweir_routing::{CandidateSampler, Policy, PromptFingerprint};
use tokio::sync::{Notify, broadcast};

/// Maximum time for which a request waits for new model lists. It exceeds the default of `scrape.timeout`, 2 s,
/// which limits one read.
const MAX_MODEL_LIST_WAIT: Duration = Duration::from_secs(3);

/// All backends, and the policy that picks a backend for each attempt.
#[derive(Debug)]
pub struct BackendPool {
    pub(super) snapshot: ArcSwap<PoolSnapshot>,
    /// State for the next snapshot. A change holds the lock until it has stored its snapshot, so that
    /// concurrent changes cannot overwrite each other.
    state: Mutex<PoolState>,
    /// Number of leases requested so far. It numbers the routing decisions.
    pub(super) request_sequence: AtomicU64,
    /// Wakes queued requests when a backend may have capacity.
    pub capacity_notifier: Arc<CapacityNotifier>,
    /// Wakes requests that wait for new model lists. Signalled after each read of a list.
    pub(in crate::backend) model_list_read: Notify,
    /// The prompts that other gateways sent to the backends. A receiver that is too slow misses some.
    pub peer_prompts: broadcast::Sender<PeerPrompt>,
    /// The state that options share between all backends.
    pub facets: PoolFacets,
    /// The value of the `Via` header that names this gateway.
    pub hop: HeaderValue,
}

/// A prompt that another gateway sent to a backend.
#[derive(Debug, Clone)]
pub struct PeerPrompt {
    /// Position of the backend in the pool.
    pub backend: usize,
    /// The blocks of the prompt. The other fields of the fingerprint are not known.
    pub prompt: Arc<PromptFingerprint>,
}

/// Maximum number of prompts of other gateways that wait for a receiver.
const MAX_PEER_PROMPTS: usize = 256;

/// State of the pool that is kept from snapshot to snapshot.
#[derive(Debug)]
struct PoolState {
    model_lists: ModelListInterner,
    model_labels: ModelLabelTable,
    /// Backends that were removed while they had requests in flight.
    retiring: Vec<Arc<Backend>>,
}

/// The settings of the pool, which a reload replaces.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSettings {
    /// The entries of `models`.
    pub models: Vec<ModelConfig>,
    /// The policy that picks among the candidates.
    pub policy: Policy,
    /// Panic mode ignores ejections if the share of backends that are not ejected, from 0 to 1, is
    /// below this value.
    pub panic_threshold: f64,
    /// Maximum number of models that get their own label value in metrics although the
    /// configuration does not name them.
    pub max_model_labels: usize,
}

/// A planned set of backends. [`BackendPool::apply_update`] replaces the backends of the pool by
/// this set.
#[derive(Debug)]
pub struct PoolUpdate(Vec<PlannedBackend>);

#[derive(Debug)]
struct PlannedBackend {
    backend: Arc<Backend>,
    /// The new settings of a backend that is already in the pool, as a `Backend` value. `None`: the backend is
    /// not in the pool yet.
    updated: Option<Box<Backend>>,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            policy: Policy::default(),
            panic_threshold: resilience::CircuitBreakerSettings::default().panic_threshold,
            max_model_labels: DEFAULT_MAX_MODEL_LABELS,
        }
    }
}

impl BackendPool {
    /// A pool of backends whose health is unknown, with these settings.
    pub fn with_settings(backends: Vec<Backend>, settings: &PoolSettings) -> Self {
        Self::with_facets(backends, settings, PoolFacets::default())
    }

    /// A pool of backends whose health is unknown, with these settings and options.
    pub fn with_facets(
        backends: Vec<Backend>,
        settings: &PoolSettings,
        facets: PoolFacets,
    ) -> Self {
        let model_labels = ModelLabelTable::new(DEFAULT_MAX_MODEL_LABELS);
        let snapshot = PoolSnapshot {
            backends: Arc::default(),
            backend_ids: Arc::default(),
            routes: RouteTable::default(),
            panic_log: Arc::default(),
            readiness_log: Arc::default(),
            route_rules: Arc::default(),
            candidate_sampler: Arc::new(CandidateSampler::new(clock::now(), 0)),
            policy: Policy::default(),
            panic_threshold: 0.0,
            facets: facets.clone(),
            has_unsuitable: false,
        };
        let state = PoolState {
            model_lists: ModelListInterner::default(),
            model_labels,
            retiring: Vec::new(),
        };
        let pool = Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            state: Mutex::new(state),
            request_sequence: AtomicU64::new(0),
            capacity_notifier: Arc::default(),
            model_list_read: Notify::new(),
            peer_prompts: broadcast::Sender::new(MAX_PEER_PROMPTS),
            facets,
            hop: headers::hop_of(fastrand::u64(..)),
        };
        pool.apply_update(pool.plan_update(backends), settings);
        pool
    }

    /// Records that another gateway sent a prompt to a backend of the pool.
    pub fn on_peer_prompt(&self, backend: &Backend, prompt: &Arc<PromptFingerprint>) {
        backend.on_peer_prompt(prompt);
        if self.peer_prompts.receiver_count() > 0 {
            // Sending fails only if there is no receiver, which is no error.
            let _ = self.peer_prompts.send(PeerPrompt {
                backend: backend.position(),
                prompt: prompt.clone(),
            });
        }
    }

    /// The current snapshot. The guard must be dropped soon and must not be stored.
    pub(super) fn snapshot(&self) -> Guard<Arc<PoolSnapshot>> {
        self.snapshot.load()
    }

    /// Plans an update of the pool to exactly these backends. A backend that is already in the pool
    /// with the same name, address and credentials keeps its state.
    pub fn plan_update(&self, backends: Vec<Backend>) -> PoolUpdate {
        let snapshot = self.snapshot();
        let plan_backend = |backend: Backend| match snapshot
            .backends
            .iter()
            .find(|existing| existing.is_same_endpoint(&backend))
        {
            Some(existing) => PlannedBackend {
                backend: existing.clone(),
                updated: Some(Box::new(backend)),
            },
            None => PlannedBackend {
                backend: self.register(backend),
                updated: None,
            },
        };
        PoolUpdate(backends.into_iter().map(plan_backend).collect())
    }

    /// Connects a new backend to the sampler and the notifier of this pool.
    fn register(&self, mut backend: Backend) -> Arc<Backend> {
        backend.membership = PoolMembership {
            candidate_sampler: self.snapshot().candidate_sampler.clone(),
            position: AtomicUsize::new(usize::MAX),
            capacity_notifier: self.capacity_notifier.clone(),
            hop: self.hop.clone(),
        };
        Arc::new(backend)
    }

    /// Applies a planned update and the settings. New requests go to the new set of backends only. A removed
    /// backend is retiring until its last request ends.
    pub fn apply_update(&self, PoolUpdate(planned): PoolUpdate, settings: &PoolSettings) {
        let mut state = lock(&self.state);
        let previous = self.snapshot();
        let adopt = |planned: PlannedBackend| {
            if let Some(updated) = &planned.updated {
                planned.backend.adopt_settings(updated);
            }
            planned.backend
        };
        let next = planned.into_iter().map(adopt).collect();
        let backends: Arc<[Arc<Backend>]> = assign_positions(previous.backends.len(), next).into();
        let ids: Arc<[BackendId]> = backends
            .iter()
            .map(|backend| backend.identity.id.clone())
            .collect();
        let rules: Arc<[RouteRule]> = RouteRule::resolve_all(&settings.models, &ids).into();
        let removed = previous
            .backends
            .iter()
            .filter(|backend| !contains(&backends, backend));
        let mut backends_left = false;
        for backend in removed {
            backends_left = true;
            backend.set_position(usize::MAX);
            state.retiring.push(backend.clone());
        }
        previous.candidate_sampler.fit(backends.len());
        for (position, backend) in backends.iter().enumerate() {
            backend.set_position(position);
        }
        let has_unsuitable = !backends
            .iter()
            .all(|backend| backend.facets.suit_all_requests());
        state.model_labels.max_labels = settings.max_model_labels;
        let labels = &mut state.model_labels;
        let routes = build_routes(&rules, &backends, labels, &previous.routes, backends_left);
        self.snapshot.store(Arc::new(PoolSnapshot {
            routes,
            backends,
            backend_ids: ids,
            route_rules: rules,
            policy: settings.policy,
            panic_threshold: settings.panic_threshold,
            has_unsuitable,
            ..PoolSnapshot::clone(&previous)
        }));
        state.prune_retiring();
        drop(state);
        // Queued requests may have a backend with capacity now, or no backend at all.
        self.capacity_notifier.notify();
    }

    /// Sets the models that a backend lists, and rebuilds the routes if the list changed.
    pub(in crate::backend) fn set_models(&self, backend: &Backend, models: &Arc<[ServedModel]>) {
        if backend.health.has_new_models(models) {
            let mut state = lock(&self.state);
            let models = state.model_lists.intern(models);
            backend.update_state(|next| next.models = Some(models.clone()));
            let previous = self.snapshot();
            let PoolSnapshot {
                route_rules,
                backends,
                routes,
                ..
            } = &**previous;
            let labels = &mut state.model_labels;
            let routes = build_routes(route_rules, backends, labels, routes, false);
            let next = PoolSnapshot {
                routes,
                ..PoolSnapshot::clone(&previous)
            };
            self.snapshot.store(Arc::new(next));
        }
        // Queued requests may have a backend now, or their model may have become unknown.
        self.capacity_notifier.notify();
    }

    /// Reads the model lists of all backends that are up again, before a request fails because no backend lists
    /// its model any more. The model may have moved to another backend. Concurrent requests share the reads,
    /// and each backend is asked at most once a second.
    pub(crate) async fn read_models_again(&self) {
        let since = clock::now();
        let until = since + MAX_MODEL_LIST_WAIT;
        loop {
            // Creating the future before the lists are checked ensures that no notification is missed.
            let was_read = self.model_list_read.notified();
            let backends = self.backends();
            let is_unread = |backend: &&Arc<Backend>| {
                backend.health.load_state().health == Health::Up
                    && backend.health.models_read_at().is_none_or(|at| at < since)
            };
            let mut unread = backends.iter().filter(is_unread).peekable();
            if unread.peek().is_none() {
                return;
            }
            unread.for_each(|backend| backend.health.mark_models_stale());
            if tokio::time::timeout_at(until.into(), was_read)
                .await
                .is_err()
            {
                return;
            }
        }
    }

    /// The models that have their own label value in metrics.
    pub fn labelled_models(&self, now: Instant) -> Vec<LabelledModel> {
        lock(&self.state).model_labels.labelled_models(now)
    }

    /// Backends that were removed from the pool and still have requests in flight.
    pub fn retiring_backends(&self) -> Vec<Arc<Backend>> {
        let mut state = lock(&self.state);
        state.prune_retiring();
        state.retiring.clone()
    }
}

/// Builds the routes to `backends` from the configured rules and the models that each backend
/// lists, and assigns model labels. `backends_left`: whether backends left the pool.
fn build_routes(
    rules: &[RouteRule],
    backends: &[Arc<Backend>],
    labels: &mut ModelLabelTable,
    previous: &RouteTable,
    backends_left: bool,
) -> RouteTable {
    let advertised = backends
        .iter()
        .map(|backend| backend.health.load_state().models.clone());
    let advertised: Vec<Option<Arc<[ServedModel]>>> = advertised.collect();
    labels.update(
        rules.iter().map(|rule| &rule.name),
        ModelListInterner::distinct_models(&advertised),
        clock::now(),
    );
    RouteTable::new(rules, &advertised, labels, previous, backends_left)
}

fn contains(backends: &[Arc<Backend>], wanted: &Arc<Backend>) -> bool {
    backends.iter().any(|backend| Arc::ptr_eq(backend, wanted))
}

/// Assigns positions (indexes in the result) to the backends of an update. Retained backends keep their
/// position, because the candidate sampler refers to backends by position. Added backends take free positions.
/// If positions stay free, the last backends move into them. `previous`: the previous number of backends.
fn assign_positions(previous: usize, next: Vec<Arc<Backend>>) -> Vec<Arc<Backend>> {
    let mut by_position: Vec<Option<Arc<Backend>>> = vec![None; previous];
    let mut added = Vec::new();
    for backend in next {
        match by_position.get_mut(backend.position()) {
            Some(retained) => *retained = Some(backend),
            None => added.push(backend),
        }
    }
    let mut free_positions: Vec<usize> = (0..previous)
        .rev()
        .filter(|position| by_position[*position].is_none())
        .collect();
    for backend in added {
        match free_positions.pop() {
            Some(position) => by_position[position] = Some(backend),
            None => by_position.push(Some(backend)),
        }
    }
    // Moves the last backend into each remaining free position, from the highest free position
    // down.
    for position in free_positions {
        by_position.swap_remove(position);
    }
    by_position.into_iter().flatten().collect()
}

impl PoolState {
    /// Removes the retiring backends whose last request has ended.
    fn prune_retiring(&mut self) {
        self.retiring.retain(|backend| backend.load.in_flight() > 0);
    }
}

impl PoolUpdate {
    /// The planned backends that are not in the pool yet. Their health checks may start before the
    /// update is applied.
    pub fn added_backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.0
            .iter()
            .filter(|planned| planned.updated.is_none())
            .map(|planned| &planned.backend)
    }
}
