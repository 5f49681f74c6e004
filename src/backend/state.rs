//! What is believed of a replica at one moment.

use super::Model;
use super::dialect::{Load, Server};
use super::recent::RecentMeans;
use super::signals::Signals;
use crate::record::{Condition, RecentTimes};
use crate::routing::Report;
use std::sync::Arc;
use std::time::Instant;

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
    /// The gateway has no file descriptor or port for a connection: not the backend's fault.
    Exhausted,
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

// === impl Load ===

impl Load {
    /// What matters of it for a request's record.
    fn condition(&self) -> Condition {
        Condition {
            kv_usage: self.kv_usage,
            running: self.running.map(|running| running as u32),
            waiting: self.waiting.map(|waiting| waiting as u32),
            preemptions: self.preemptions.map(|preemptions| preemptions as u64),
            ..Condition::default()
        }
    }

    /// What matters of it for routing. `None` if it does not tell enough.
    pub(super) fn report(&self) -> Option<Report> {
        Some(Report {
            kv_usage: self.kv_usage,
            waiting: self.waiting?,
            running: self.running?,
            capacity: self.capacity(),
            tokens: self.prompt_tokens.zip(self.generation_tokens).map(|(read, made)| read + made),
        })
    }
}

// === impl ScrapeError ===

impl ScrapeError {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Connect,
        Self::Timeout,
        Self::Status,
        Self::Truncated,
        Self::Encoded,
        Self::TooLarge,
        Self::NotUnderstood,
        Self::Exhausted,
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
            Self::Exhausted => "gateway_exhausted",
        }
    }
}
