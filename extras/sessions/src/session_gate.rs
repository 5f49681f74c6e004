//! The gate of admission that lets sessions in, and the permits of their turns.

use super::sessions_status::{AdmissionReason, SessionsStatus};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;
use tokenweir_gateway::backend::pool::{BackendPool, BackendRequirements, PeerPrompt};
use tokenweir_gateway::proxy::admission::{AdmissionController, AdmissionGate, Entrance, Standing};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::observe::{Admission, AdmissionPermit};
use tokenweir_request::record::RequestRecord;
use tokenweir_routing::PromptFingerprint;
use tokenweir_routing::sessions::{ContextId, Turn, TurnKind, TurnTokens, WorkingSet};

#[derive(Debug)]
pub(crate) struct SessionGate(Arc<GateState>);

/// The state that permits share.
#[derive(Debug)]
struct GateState {
    pool: Arc<BackendPool>,
    admission: Weak<AdmissionController>,
    /// The working sets by the positions of their backends.
    sets: Mutex<HashMap<Arc<[usize]>, WorkingSet>>,
    /// Number of gateways that share the caches.
    gateways: AtomicU64,
    /// Number of turns that were let in, in the order of [`AdmissionReason::ALL`].
    admitted: [AtomicU64; AdmissionReason::ALL.len()],
}

/// The place of a turn in its working set.
#[derive(Debug)]
struct TurnPermit {
    state: Arc<GateState>,
    backends: Arc<[usize]>,
    context: ContextId,
    /// The tokens of the turn. `None`: not known.
    tokens: Option<TurnTokens>,
}

impl SessionGate {
    pub(crate) fn new(pool: &Arc<BackendPool>, admission: &Arc<AdmissionController>) -> Self {
        Self(Arc::new(GateState {
            pool: pool.clone(),
            admission: Arc::downgrade(admission),
            sets: Mutex::default(),
            gateways: AtomicU64::new(1),
            admitted: Default::default(),
        }))
    }

    /// Reads the capacities of the caches, of which each of `gateways` gateways fills its share, and forgets
    /// sessions that have ended.
    pub(crate) fn update(&self, gateways: u64, now: Instant) {
        let GateState { pool, sets, .. } = &*self.0;
        self.0.gateways.store(gateways.max(1), Ordering::Relaxed);
        lock(sets).retain(|backends, set| {
            set.capacity = self.0.capacity(backends);
            set.need(now);
            !set.is_empty()
        });
        pool.capacity_notifier.notify();
    }

    /// Counts a turn that another gateway has sent.
    pub(crate) fn count_peer(&self, sent: &PeerPrompt, now: Instant) {
        let bytes = sent.prompt.blocks.len() as u64 * u64::from(sent.prompt.block_bytes);
        let prompt = Arc::new(PromptFingerprint {
            bytes,
            ..PromptFingerprint::clone(&sent.prompt)
        });
        for (backends, set) in lock(&self.0.sets).iter_mut() {
            if backends.contains(&sent.backend) {
                set.count_peer(&prompt, now);
            }
        }
    }

    /// What the live sessions of all working sets need, while `held_requests` requests of new sessions wait.
    pub(crate) fn status(&self, held_requests: usize, now: Instant) -> SessionsStatus {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut status = SessionsStatus {
            held_requests,
            is_capacity_known: true,
            admitted: self.0.admitted.iter().map(count).collect(),
            ..SessionsStatus::default()
        };
        for set in lock(&self.0.sets).values_mut() {
            let need = set.need(now);
            status.live_sessions += need.contexts;
            status.needed_tokens += need.tokens;
            status.grown_tokens += need.grown_tokens;
            status.capacity_tokens += set.capacity.unwrap_or(0);
            status.is_capacity_known &= set.capacity.is_some();
        }
        status
    }
}

impl AdmissionGate for SessionGate {
    fn standing(&self, request: &BackendRequirements<'_>, now: Instant) -> Standing {
        let backends = self.0.pool.model_backends(request.model);
        let kind = self
            .0
            .in_set(&backends, request, |set, turn| set.turn_kind(turn, now));
        match kind {
            TurnKind::Unlimited | TurnKind::OfLiveSession => Standing::Member,
            TurnKind::Fits => Standing::Fits,
            TurnKind::Waits => Standing::Held,
        }
    }

    fn enter(
        &self,
        request: &BackendRequirements<'_>,
        entrance: Entrance,
        now: Instant,
    ) -> Option<Admission> {
        let makes_room = entrance == Entrance::Overdue;
        let mut kind = TurnKind::Unlimited;
        // The turn ends in the set in which it begins, also if the pool changes meanwhile.
        let backends = self.0.pool.model_backends(request.model);
        let context = self.0.in_set(&backends, request, |set, turn| {
            kind = set.turn_kind(turn, now);
            if kind == TurnKind::Waits && entrance == Entrance::AtOnce {
                return None;
            }
            set.begin(turn, makes_room, now)
        });
        let reason = match (kind, entrance) {
            (TurnKind::Unlimited, _) => AdmissionReason::UnknownCapacity,
            (TurnKind::OfLiveSession, _) => AdmissionReason::LiveSession,
            (TurnKind::Waits, Entrance::AtOnce) => return None,
            (TurnKind::Fits, Entrance::AtOnce) => AdmissionReason::Fits,
            (_, Entrance::AfterWait) => AdmissionReason::AfterWait,
            (_, Entrance::Overdue) => AdmissionReason::Overdue,
        };
        self.0.admitted[reason as usize].fetch_add(1, Ordering::Relaxed);
        let permit = |context| -> Box<dyn AdmissionPermit> {
            Box::new(TurnPermit {
                state: self.0.clone(),
                backends,
                context,
                tokens: None,
            })
        };
        Some(Admission {
            reason: reason.as_str(),
            permit: context.map(permit),
        })
    }

    fn reason(&self, held: usize, now: Instant) -> String {
        self.status(held, now).summary()
    }
}

impl GateState {
    /// Runs `work` on the working set of `backends`, those of the model of a request.
    fn in_set<R>(
        &self,
        backends: &Arc<[usize]>,
        request: &BackendRequirements<'_>,
        work: impl FnOnce(&mut WorkingSet, &Turn<'_>) -> R,
    ) -> R {
        let turn = Turn {
            prompt: request.prompt,
            session: request.session,
            output: request.assumed_output(),
        };
        let mut sets = lock(&self.sets);
        let set = sets.entry(backends.clone());
        let set = set.or_insert_with_key(|backends| WorkingSet::new(self.capacity(backends)));
        work(set, &turn)
    }

    /// The share of this gateway in the caches of these backends, in tokens. `None`: not known.
    fn capacity(&self, backends: &[usize]) -> Option<u64> {
        let tokens = self.pool.cache_tokens(backends)?;
        Some(tokens / self.gateways.load(Ordering::Relaxed))
    }
}

impl AdmissionPermit for TurnPermit {
    fn finished(&mut self, record: &RequestRecord) {
        let usage = &record.observed.usage;
        let Some(input) = usage.input else { return };
        self.tokens = Some(TurnTokens {
            prompt: input,
            cached: usage.cached,
            output: usage.output.unwrap_or(0),
            has_missed: self
                .state
                .admission
                .upgrade()
                .and_then(|it| it.has_missed_objective(record)),
        });
        if let Some(prompt) = &record.fingerprint
            && let Some(set) = lock(&self.state.sets).get_mut(&self.backends)
        {
            set.learn_tokens(prompt, input);
        }
    }
}

impl Drop for TurnPermit {
    fn drop(&mut self) {
        if let Some(set) = lock(&self.state.sets).get_mut(&self.backends) {
            set.end(self.context, self.tokens, clock::now());
        }
        self.state.pool.capacity_notifier.notify();
    }
}
