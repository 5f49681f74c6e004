//! What is believed of a replica at one moment.

use super::recent::RecentMeans;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_core::dialect::{Load, Server};
use tokenweir_core::model::Model;
use tokenweir_core::record::{Condition, RecentTimes};
use tokenweir_core::signals::{ScrapeError, Signals};

/// What is believed of a replica. Replaced whole.
#[derive(Debug, Clone, Default)]
#[repr(C)] // what each request's record takes of it first, and together
pub struct State {
    brief: Brief,
    /// Whether it may be sent requests.
    pub health: Health,
    /// What `/version` said.
    pub version: Option<Arc<str>>,
    /// What `/v1/models` said, as the entries stood there. `None`: not known.
    pub models: Option<Arc<[Model]>>,
    /// The last metrics page that was understood.
    pub sample: Option<Sample>,
    /// When the last page was asked for on which requests waited in its engine.
    queued_at: Option<Instant>,
    /// What its requests took lately, by its own account.
    pub(super) means: RecentMeans,
    /// Why the last look at its metrics failed, if it did.
    pub metrics_error: Option<ScrapeError>,
    /// Why it is down, for people.
    pub reason: Option<Arc<str>>,
}

/// What each request's record takes of it, made anew whenever it changes.
#[derive(Debug, Clone, Copy, Default)]
struct Brief {
    server: Option<Server>,
    /// What it last said of itself, without its age.
    condition: Condition,
    /// When it was asked.
    at: Option<Instant>,
    /// What its requests took lately.
    times: RecentTimes,
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

// === impl State ===

impl State {
    /// With what is made of the rest of it.
    pub(super) fn settled(mut self) -> Self {
        let queue = self.sample.filter(|sample| sample.load.waiting.is_some_and(|it| it >= 1.0));
        self.queued_at = queue.map(|sample| sample.at).or(self.queued_at);
        let by_owner = self.models().first().and_then(|model| model.server);
        let condition = self.sample.map(|sample| sample.load.condition()).unwrap_or_default();
        let by_metrics = || self.sample.as_ref().and_then(|sample| sample.load.server);
        self.brief = Brief {
            server: by_owner.or_else(by_metrics),
            condition: Condition {
                queued_at: self.queued_at,
                is_down: self.health == Health::Down,
                ..condition
            },
            at: self.sample.map(|sample| sample.at),
            times: self.means.times(),
        };
        self
    }

    /// What kind of server it is: its models tell, or its metrics.
    pub const fn server(&self) -> Option<Server> {
        self.brief.server
    }

    /// Whether it said that its engine sleeps: its weights are off the GPU, and it is sent nothing.
    pub fn is_asleep(&self) -> bool {
        self.sample.is_some_and(|sample| sample.load.is_asleep() == Some(true))
    }

    /// Whether it is up and awake.
    pub(super) fn is_open(&self) -> bool {
        self.health == Health::Up && !self.is_asleep()
    }

    /// Whether it has a LoRA adapter, or does not tell which ones it has.
    pub(super) fn may_have(&self, adapter: u64) -> bool {
        let adapters = self.sample.and_then(|sample| sample.load.adapters);
        adapters.is_none_or(|adapters| adapters.has(adapter))
    }

    /// The signals that its metrics offered last.
    pub fn signals(&self) -> Signals {
        self.sample.map(|sample| Signals::of(&sample.load)).unwrap_or_default()
    }

    /// What it last said of itself.
    pub fn condition(&self, now: Instant) -> Condition {
        let age = self.brief.at.map(|at| now.saturating_duration_since(at));
        Condition { age, ..self.brief.condition }
    }

    /// What its requests took lately, by its own account.
    pub(super) const fn recent_times(&self) -> RecentTimes {
        self.brief.times
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
