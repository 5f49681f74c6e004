//! The replicas: where they are, what they say of themselves, what this gateway has at them now.

mod fleet;

mod keeper;
mod labels;
mod lease;

mod pace;
pub mod pool;
mod progress;
mod readiness;
mod recent;
mod roster;
pub mod routes;

mod state;
mod stream_events;
mod terms;
pub mod vacancies;
mod wake;
pub mod watch;

use arc_swap::ArcSwap;
use http::HeaderValue;
use recent::RecentGaps;
use roster::Roster;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use stream_events::StreamEvents;
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_core::dialect::Server;
use tokenweir_core::model::Model;
use tokenweir_core::record::BackendId;
use tokenweir_core::resilience::{self, Breaker, Effect, Symptom};
use tokenweir_core::routing::{Candidate, Ledger, Prompt, Shortlist, mix};
use tokenweir_net::idle::Idle;
use tokenweir_net::shortage;
use tokio::sync::{Notify, SetOnce, watch as watched};
use vacancies::Vacancies;

pub use keeper::Keeper;
pub use labels::{LabelledModel, MOST_LABELS};
pub use lease::Lease;
pub use readiness::{Availability, Readiness, Standing};
pub use roster::{Change, Selection};
pub use state::{Health, Sample, State};

/// One replica.
///
/// What a decision reads of each candidate lies together, here and in the ledger: in a large fleet it is
/// not in the CPU's caches, and each piece that lies elsewhere is waited for.
#[derive(Debug)]
#[repr(C)]
pub struct Backend {
    /// What of the state each decision asks of many replicas.
    is_open: AtomicBool,
    /// An operator wants it to get nothing new.
    is_drained: AtomicBool,
    may_inject_usage: AtomicBool,
    /// What it said of its models may be wrong.
    is_doubted: AtomicBool,
    weight: AtomicU32,
    key: u64,
    /// Its watcher has been told of the first request, and has not heard it yet.
    is_told_of_work: AtomicBool,
    /// Whether its failures keep requests from it.
    pub breaker: Breaker,
    /// What is known of its load and its speed.
    pub ledger: Ledger,
    state: ArcSwap<State>,
    idle: Idle,
    /// Where it shows how it stands.
    shortlist: Arc<Shortlist>,
    /// Its position in the fleet; none that there is, if it is in none.
    place: AtomicUsize,
    /// Its name.
    pub id: BackendId,
    /// Where it is.
    pub address: Address,
    /// The `Authorization` that it wants, instead of the client's.
    pub authorization: Option<HeaderValue>,
    gaps: RecentGaps,
    stream_events: StreamEvents,
    stalls: AtomicU64,
    /// Where it is told which models it serves.
    roster: Weak<Roster>,
    /// Wakes its watcher before its time.
    look_again: Notify,
    /// Tells its watcher that it is idle no more.
    first_request: Notify,
    looked: SetOnce<()>,
    /// Whether its health check has declared it down. A failed connection alone does not.
    declared_down: watched::Sender<bool>,
    /// Hears of every change that may make room here.
    vacancies: Arc<Vacancies>,
}

/// How fast what a replica says grows old, unless it is told otherwise.
const HORIZON: Duration = Duration::from_secs(5);

// === impl Backend ===

impl Backend {
    /// A replica that has not been looked at.
    pub fn new(id: BackendId, address: Address, authorization: Option<HeaderValue>) -> Self {
        let key = id.as_str().bytes().fold(0, |key, byte| mix(key ^ u64::from(byte)));
        Self {
            weight: AtomicU32::new(1),
            is_drained: AtomicBool::new(false),
            ledger: Ledger::new(clock::now(), HORIZON),
            breaker: Breaker::new(resilience::Settings::default(), clock::now()),
            key,
            id,
            address,
            authorization,
            may_inject_usage: AtomicBool::new(true),
            gaps: RecentGaps::default(),
            stream_events: StreamEvents::default(),
            stalls: AtomicU64::new(0),
            state: ArcSwap::default(),
            is_open: AtomicBool::new(false),
            idle: Idle::default(),
            shortlist: Arc::new(Shortlist::new(clock::now(), 0)),
            place: AtomicUsize::new(usize::MAX),
            roster: Weak::new(),
            is_doubted: AtomicBool::new(false),
            is_told_of_work: AtomicBool::new(false),
            look_again: Notify::new(),
            first_request: Notify::new(),
            looked: SetOnce::new(),
            declared_down: watched::Sender::new(false),
            vacancies: Arc::default(),
        }
    }

    /// Whether it may be asked for usage that clients did not ask for.
    pub fn with_usage_injection(self, may_inject_usage: bool) -> Self {
        Self { may_inject_usage: AtomicBool::new(may_inject_usage), ..self }
    }

    /// Its share of the work, relative to the others'. With 0 it gets nothing new.
    pub fn with_weight(self, weight: u32) -> Self {
        Self { weight: AtomicU32::new(weight), ..self }
    }

    /// When it is ejected, and how it comes back.
    pub fn with_health(self, settings: resilience::Settings) -> Self {
        Self { breaker: Breaker::new(settings, clock::now()), ..self }
    }

    /// How fast what it says of itself grows old.
    pub fn with_horizon(self, horizon: Duration) -> Self {
        self.ledger.set_horizon(horizon);
        self
    }

    /// Its share of the work, relative to the others'. With 0 it gets nothing new; while it is
    /// drained it is 0.
    pub fn weight(&self) -> u32 {
        if self.is_drained() { 0 } else { self.weight.load(Ordering::Relaxed) }
    }

    /// Whether an operator wants it to get nothing new.
    pub fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    /// It gets nothing new from now on, and finishes what it has; or it gets its share again.
    /// Whether that is a change.
    fn drain(&self, is_drained: bool) -> bool {
        let is_change = self.is_drained.swap(is_drained, Ordering::Relaxed) != is_drained;
        if is_change {
            tracing::info!(backend = %self.id, is_drained, "an operator drains a replica, or ends that");
            self.on_change(clock::now());
        }
        is_change
    }

    /// Whether the other one is the same replica, spoken to in the same way.
    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
            && self.address == other.address
            && self.authorization == other.authorization
    }

    /// Takes the terms of another one, which may change while it is used.
    fn take_terms(&self, other: &Self) {
        self.breaker.set(other.breaker.settings());
        self.weight.store(other.weight.load(Ordering::Relaxed), Ordering::Relaxed);
        let may_inject_usage = other.may_inject_usage.load(Ordering::Relaxed);
        self.may_inject_usage.store(may_inject_usage, Ordering::Relaxed);
        self.stream_events.take_share(&other.stream_events);
        self.ledger.set_horizon(other.ledger.horizon());
    }

    /// Whether a request that does not ask for usage is to be made to: only servers that are known
    /// to tell it in an event of its own are asked.
    pub fn injects_usage(&self) -> bool {
        self.may_inject_usage.load(Ordering::Relaxed)
            && self.server().is_some_and(Server::tells_usage_apart)
    }

    /// What kind of server it is, if that is known.
    pub fn server(&self) -> Option<Server> {
        self.state.load().server()
    }

    /// Whether it is up and awake.
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Its streams that are silent now.
    pub fn stalled(&self) -> u32 {
        self.ledger.silent()
    }

    /// Silences of its streams since the start.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// The p99 of the times between outputs of its streams lately, in seconds. `None`: too few.
    pub fn gap_p99(&self) -> Option<f64> {
        self.gaps.p99()
    }

    /// What is believed of it.
    pub fn state(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// Requests of this gateway at it.
    pub fn in_flight(&self) -> u32 {
        self.ledger.own().in_flight
    }

    /// A connection to it failed: it gets no requests until its watcher finds it well again,
    /// which it is asked to try at once.
    pub fn suspect(&self, reason: &str) {
        self.update(|state| {
            state.health = Health::Down;
            state.reason = Some(reason.into());
        });
        self.look_again.notify_one();
    }

    /// It failed a request; `why` is for people.
    pub fn on_failure(&self, symptom: Symptom, why: &str, now: Instant) {
        let id = &self.id;
        match symptom.effect() {
            Effect::Nothing => return,
            Effect::Down => return self.suspect(why),
            Effect::Doubt => return self.doubt_models(),
            Effect::Strike if self.breaker.on_failure(now) => {
                tracing::warn!(backend = %id, why, "replica is ejected: it failed too often");
            }
            Effect::Eject if self.breaker.on_death(now) => {
                tracing::warn!(backend = %id, why, "replica is ejected: its engine is dead");
            }
            Effect::Drain if self.breaker.on_drain(now) => {
                tracing::warn!(backend = %id, why, "replica gives up requests: it is left alone");
            }
            Effect::Rest => self.breaker.on_full(now),
            Effect::Strike | Effect::Eject | Effect::Drain => {}
        }
        self.look_again.notify_one();
        self.on_change(now);
    }

    /// It has begun to answer a request.
    pub fn on_answer(&self, now: Instant) {
        if self.breaker.on_answer(now) {
            tracing::info!(backend = %self.id, "replica answers again: it starts slowly");
            self.on_change(now);
        }
    }

    /// It did not know a model that it said it serves: it is asked again for its models.
    pub fn doubt_models(&self) {
        if !self.is_doubted.swap(true, Ordering::Relaxed) {
            self.look_again.notify_one();
        }
    }

    /// The connections to it that are not in use.
    pub fn idle(&self) -> &Idle {
        &self.idle
    }

    /// Waits until its health check has declared it down.
    pub async fn declared_down(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.declared_down.subscribe().wait_for(|is_down| *is_down).await;
    }

    /// Waits until it has been looked at once.
    pub async fn seen(&self) {
        self.looked.wait().await;
    }

    fn update(&self, change: impl Fn(&mut State)) {
        self.state.rcu(|state| {
            let mut next = State::clone(state);
            change(&mut next);
            next.settled()
        });
        // Whoever changed it meanwhile may have told before this does.
        loop {
            let state = self.state.load();
            self.is_open.store(state.is_open(), Ordering::Release);
            if Arc::ptr_eq(&state, &self.state.load()) {
                break;
            }
        }
        self.on_change(clock::now());
    }

    /// It has said which models it serves.
    fn serves(&self, models: &Arc<[Model]>) {
        self.is_doubted.store(false, Ordering::Relaxed);
        let known = self.state.load().models.clone();
        if known.is_some_and(|known| Model::are_same(&known, models)) {
            return;
        }
        match self.roster.upgrade() {
            Some(roster) => roster.serves(self, models),
            None => self.update(|state| state.models = Some(models.clone())),
        }
    }

    /// The number of replicas in its fleet; 1 if it is in none.
    fn fleet_size(&self) -> usize {
        self.roster.upgrade().map_or(1, |roster| roster.fleet().backends.len())
    }

    /// It has this position in the fleet from now on.
    fn take_place(&self, place: usize) {
        self.place.store(place, Ordering::Relaxed);
        self.show(clock::now());
    }

    /// It may stand better or worse than it did: those who draw short lists see it, and those who
    /// wait for room hear of it.
    fn on_change(&self, now: Instant) {
        self.show(now);
        self.vacancies.tell();
    }

    /// Shows to those who draw short lists how it stands. Done whenever that may have changed.
    fn show(&self, now: Instant) {
        self.shortlist.show(self.place.load(Ordering::Relaxed), now, || {
            let gets_none = !self.is_open() || self.weight() == 0 || self.breaker.is_shut(now);
            (!gets_none).then(|| self.candidate(&Prompt::default(), now))
        });
    }

    /// What it is believed to be for this prompt.
    fn candidate(&self, prompt: &Prompt, now: Instant) -> Candidate {
        Candidate { weight: self.weight(), key: self.key, ..self.ledger.candidate(prompt, now) }
    }

    /// It is idle, and gets a request. Telling its watcher once will do until that hears it: the
    /// watcher's part of the replica is in no cache of the CPU.
    fn on_first_request(&self) {
        if !self.is_told_of_work.load(Ordering::Relaxed)
            && !self.is_told_of_work.swap(true, Ordering::Relaxed)
        {
            self.first_request.notify_one();
        }
    }

    fn on_stall(&self, is_silent: bool) {
        if is_silent {
            self.stalls.fetch_add(1, Ordering::Relaxed);
        }
        self.ledger.on_silence(is_silent, clock::now());
    }

    /// The gateway could not look at it. What is known of it holds.
    pub(super) fn is_unseen(&self, problem: &str) {
        shortage::warn(problem);
        self.update(|state| {
            if state.health == Health::Unknown {
                state.reason = Some(problem.into());
            }
        });
    }
}
