//! The replicas: where they are, what they say of themselves, what this gateway has at them now.

pub mod address;
pub mod client;
pub mod dialect;
mod fetch;
mod lease;
mod model;
mod pace;
pub mod pool;
mod progress;
mod recent;
pub mod routes;
pub mod signals;
mod terms;
pub mod vacancies;
mod wake;
pub mod watch;

pub use model::Model;

use crate::clock;
use crate::record::{BackendId, Condition};
use crate::resilience::{self, Breaker, Effect, Symptom};
use crate::routing::{Candidate, Ledger, Prompt, Report, mix};
use address::Address;
use arc_swap::ArcSwap;
use dialect::{Load, Server};
use http::HeaderValue;
use recent::{RecentGaps, RecentMeans};
use routes::Table;
use signals::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, SetOnce};
use vacancies::Vacancies;

pub use lease::Lease;

/// One replica.
#[derive(Debug)]
pub struct Backend {
    /// Its name.
    pub id: BackendId,
    /// Where it is.
    pub address: Address,
    /// The `Authorization` that it wants, instead of the client's.
    pub authorization: Option<HeaderValue>,
    may_inject_usage: bool,
    /// Its share of the work, relative to the others'. With 0 it gets nothing new.
    pub weight: u32,
    /// What is known of its load and its speed.
    pub ledger: Ledger,
    /// Whether its failures keep requests from it.
    pub breaker: Breaker,
    key: u64,
    gaps: RecentGaps,
    stalled: AtomicU32,
    stalls: AtomicU64,
    state: ArcSwap<State>,
    /// Where its models are told, and its position there.
    table: Option<(Arc<Table>, usize)>,
    /// What it said of its models may be wrong.
    is_doubted: AtomicBool,
    /// Wakes its watcher before its time.
    look_again: Notify,
    /// Tells its watcher that it is idle no more.
    first_request: Notify,
    looked: SetOnce<()>,
    /// Hears of every change that may make room here.
    vacancies: Arc<Vacancies>,
}

/// What is believed of a replica. Replaced whole.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Whether it may be sent requests.
    pub health: Health,
    /// What `/version` said.
    pub version: Option<Arc<str>>,
    /// What `/v1/models` said, as the entries stood there. `None`: not known.
    pub models: Option<Arc<[Model]>>,
    /// The last metrics page that was understood.
    pub sample: Option<Sample>,
    /// What its requests took lately, by its own account.
    means: RecentMeans,
    /// Why the last look at its metrics failed, if it did.
    pub metrics_error: Option<ScrapeError>,
    /// Why it is down, for people.
    pub reason: Option<Arc<str>>,
}

/// Whether a replica may be sent requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Health {
    /// It has not been looked at yet. It gets no requests.
    #[default]
    Unknown,
    /// Its `/health` answers 200.
    Up,
    /// It does not.
    Down,
}

/// A metrics page.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// What the page said.
    pub load: Load,
    /// When it was asked for: the page is not newer.
    pub at: Instant,
}

/// Why a metrics page could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScrapeError {
    /// No connection, or it broke before an answer.
    Connect,
    /// Not in time.
    Timeout,
    /// Not a 200.
    Status,
    /// It broke in the middle of the page.
    Truncated,
    /// Compressed, which was not asked for.
    Encoded,
    /// Longer than the limit.
    TooLarge,
    /// A page without the families to route by.
    NotUnderstood,
}

/// How fast what a replica says grows old, unless it is told otherwise.
const HORIZON: Duration = Duration::from_secs(5);

// === impl Backend ===

impl Backend {
    /// A replica that has not been looked at.
    pub fn new(id: BackendId, address: Address, authorization: Option<HeaderValue>) -> Self {
        let key = id.as_str().bytes().fold(0, |key, byte| mix(key ^ u64::from(byte)));
        Self {
            weight: 1,
            ledger: Ledger::new(clock::now(), HORIZON),
            breaker: Breaker::new(resilience::Settings::default(), clock::now()),
            key,
            id,
            address,
            authorization,
            may_inject_usage: true,
            gaps: RecentGaps::default(),
            stalled: AtomicU32::new(0),
            stalls: AtomicU64::new(0),
            state: ArcSwap::default(),
            table: None,
            is_doubted: AtomicBool::new(false),
            look_again: Notify::new(),
            first_request: Notify::new(),
            looked: SetOnce::new(),
            vacancies: Arc::default(),
        }
    }

    /// Whether it may be asked for usage that clients did not ask for.
    pub fn with_usage_injection(self, may_inject_usage: bool) -> Self {
        Self { may_inject_usage, ..self }
    }

    /// Its share of the work, relative to the others'. With 0 it gets nothing new.
    pub fn with_weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// When it is ejected, and how it comes back.
    pub fn with_health(self, settings: resilience::Settings) -> Self {
        Self { breaker: Breaker::new(settings, clock::now()), ..self }
    }

    /// How fast what it says of itself grows old.
    pub fn with_horizon(self, horizon: Duration) -> Self {
        Self { ledger: Ledger::new(clock::now(), horizon), ..self }
    }

    /// Whether a request that does not ask for usage is to be made to: only servers that are known
    /// to tell it in an event of its own are asked.
    pub fn injects_usage(&self) -> bool {
        let server = self.state.load().server();
        self.may_inject_usage && server.is_some_and(Server::tells_usage_apart)
    }

    /// Its streams that are silent now.
    pub fn stalled(&self) -> u32 {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Silences of its streams since the start.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
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
        self.vacancies.tell();
    }

    /// It has begun to answer a request.
    pub fn on_answer(&self, now: Instant) {
        if self.breaker.on_answer(now) {
            tracing::info!(backend = %self.id, "replica answers again: it starts slowly");
            self.vacancies.tell();
        }
    }

    /// It did not know a model that it said it serves: it is asked again for its models.
    pub fn doubt_models(&self) {
        if !self.is_doubted.swap(true, Ordering::Relaxed) {
            self.look_again.notify_one();
        }
    }

    /// Waits until it has been looked at once.
    pub async fn seen(&self) {
        self.looked.wait().await;
    }

    fn update(&self, change: impl Fn(&mut State)) {
        self.state.rcu(|state| {
            let mut next = State::clone(state);
            change(&mut next);
            next
        });
        self.vacancies.tell();
    }

    /// It has said which models it serves.
    fn serves(&self, models: &Arc<[Model]>) {
        self.is_doubted.store(false, Ordering::Relaxed);
        let known = self.state.load().models.clone();
        if known.is_some_and(|known| Model::are_same(&known, models)) {
            return;
        }
        self.update(|state| state.models = Some(models.clone()));
        if let Some((table, position)) = &self.table {
            table.set(*position, models.clone());
        }
    }

    /// What it is believed to be for this prompt.
    fn candidate(&self, prompt: &Prompt, now: Instant) -> Candidate {
        Candidate { weight: self.weight, key: self.key, ..self.ledger.candidate(prompt, now) }
    }

    fn on_stall(&self, is_silent: bool) {
        if is_silent {
            self.stalls.fetch_add(1, Ordering::Relaxed);
            self.stalled.fetch_add(1, Ordering::Relaxed);
        } else {
            self.stalled.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

// === impl State ===

impl State {
    /// What kind of server it is: its models tell, or its metrics.
    pub fn server(&self) -> Option<Server> {
        let owner = self.models().first().and_then(|model| model.entry.get("owned_by")?.as_str());
        let by_metrics = || self.sample.as_ref().and_then(|sample| sample.load.server);
        owner.and_then(Server::of_owner).or_else(by_metrics)
    }

    /// Whether it said that its engine sleeps: its weights are off the GPU, and it is sent nothing.
    pub fn is_asleep(&self) -> bool {
        self.sample.is_some_and(|sample| sample.load.is_asleep() == Some(true))
    }

    /// Whether it has a LoRA adapter, or does not tell which ones it has.
    fn may_have(&self, adapter: u64) -> bool {
        let adapters = self.sample.and_then(|sample| sample.load.adapters);
        adapters.is_none_or(|adapters| adapters.has(adapter))
    }

    /// The signals that its metrics offered last.
    pub fn signals(&self) -> Signals {
        self.sample.map(|sample| Signals::of(&sample.load)).unwrap_or_default()
    }

    /// What it last said of itself.
    pub fn condition(&self, now: Instant) -> Condition {
        let Some(sample) = &self.sample else { return Condition::default() };
        let load = &sample.load;
        Condition {
            kv_usage: load.kv_usage,
            running: load.running.map(|running| running as u32),
            waiting: load.waiting.map(|waiting| waiting as u32),
            preemptions: load.preemptions.map(|preemptions| preemptions as u64),
            age: Some(now.saturating_duration_since(sample.at)),
        }
    }

    /// The models that it says it serves; none if it has not said.
    pub fn models(&self) -> &[Model] {
        self.models.as_deref().unwrap_or_default()
    }
}

// === impl Health ===

impl Health {
    /// The name in `/status` and the banner.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

// === impl Load ===

impl Load {
    /// What matters of it for routing. `None` if it does not tell enough.
    fn report(&self) -> Option<Report> {
        Some(Report {
            kv_usage: self.kv_usage,
            waiting: self.waiting?,
            running: self.running?,
            capacity: self.capacity(),
        })
    }
}

// === impl ScrapeError ===

impl ScrapeError {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Connect,
        Self::Timeout,
        Self::Status,
        Self::Truncated,
        Self::Encoded,
        Self::TooLarge,
        Self::NotUnderstood,
    ];

    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::Truncated => "truncated",
            Self::Encoded => "encoded",
            Self::TooLarge => "too_large",
            Self::NotUnderstood => "not_understood",
        }
    }
}
