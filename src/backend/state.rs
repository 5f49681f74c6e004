//! The state of a backend at one moment, from health checks and scrapes.

use super::recent_times::RecentMeanTimes;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_core::dialect::{EngineKind, EngineLoad};
use tokenweir_core::engine_metrics::{EngineMetricSet, ScrapeError};
use tokenweir_core::model::ServedModel;
use tokenweir_core::record::{BackendCondition, RecentEngineTimes};

/// The state of a backend. Each change replaces the whole value.
#[derive(Debug, Clone, Default)]
#[repr(C)] // the summary, which every request reads, comes first and in adjacent cache lines
pub struct BackendState {
    summary: StateSummary,
    /// The result of the health checks.
    pub health: Health,
    /// The version from `/version`.
    pub version: Option<Arc<str>>,
    /// The models from `/v1/models`, each with its original entry. `None`: not known yet.
    pub models: Option<Arc<[ServedModel]>>,
    /// The last successful scrape.
    pub sample: Option<LoadSample>,
    /// Start of the last scrape that reported waiting requests.
    queued_at: Option<Instant>,
    /// Recent mean queue and prefill times, from the counters of the engine.
    pub(super) mean_times: RecentMeanTimes,
    /// Why the last scrape failed, if it did.
    pub metrics_error: Option<ScrapeError>,
    /// Why the backend is down or unknown, as text for users.
    pub reason: Option<Arc<str>>,
}

/// The values that every request record reads, derived anew with each change.
#[derive(Debug, Clone, Copy, Default)]
struct StateSummary {
    server_kind: Option<EngineKind>,
    /// The last reported load, without its age.
    condition: BackendCondition,
    /// Start of the scrape that reported `condition`.
    scraped_at: Option<Instant>,
    /// Recent mean queue and prefill times.
    recent_times: RecentEngineTimes,
}

/// The result of the health checks of a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Health {
    /// No health check has completed yet. The backend gets no requests.
    #[default]
    Unknown,
    /// The health checks pass.
    Up,
    /// The health checks fail, a connection failed, or the engine is stuck.
    Down,
}

/// Whether a backend may be sent new requests, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Availability {
    /// The backend gets new requests. A saturated backend is available too: requests wait for it in
    /// the queue.
    Available,
    /// The circuit breaker has ejected the backend, because it failed requests.
    Ejected,
    /// The engine sleeps.
    Asleep,
    /// The configured weight is 0.
    ZeroWeight,
    /// An operator has drained the backend.
    Drained,
    /// The health checks fail, or the engine makes no progress.
    Down,
    /// The first health check has not completed.
    Unknown,
}

/// The result of one scrape.
#[derive(Debug, Clone, Copy)]
pub struct LoadSample {
    /// The load that the metrics page reported.
    pub load: EngineLoad,
    /// Start of the scrape. The page may be newer, but not older.
    pub scraped_at: Instant,
}

// === impl BackendState ===

impl BackendState {
    /// The same state with the summary derived from its other fields.
    pub(super) fn with_summary(mut self) -> Self {
        let has_queue = |sample: &LoadSample| sample.load.waiting.is_some_and(|count| count >= 1.0);
        let queued = self.sample.filter(has_queue);
        self.queued_at = queued.map(|sample| sample.scraped_at).or(self.queued_at);
        let from_models = self.models().first().and_then(|model| model.server);
        let condition = self.sample.map(|sample| sample.load.condition()).unwrap_or_default();
        let from_metrics = || self.sample.as_ref().and_then(|sample| sample.load.server);
        self.summary = StateSummary {
            server_kind: from_models.or_else(from_metrics),
            condition: BackendCondition {
                last_queued_at: self.queued_at,
                is_down: self.health == Health::Down,
                ..condition
            },
            scraped_at: self.sample.map(|sample| sample.scraped_at),
            recent_times: self.mean_times.times(),
        };
        self
    }

    /// The kind of inference server, from the `owned_by` of its models or else from its metrics.
    pub const fn server_kind(&self) -> Option<EngineKind> {
        self.summary.server_kind
    }

    /// Whether its engine reports that it sleeps: its weights are off the GPU, and it gets no
    /// requests.
    pub fn is_asleep(&self) -> bool {
        self.sample.is_some_and(|sample| sample.load.is_asleep() == Some(true))
    }

    /// Whether it is up and awake.
    pub(super) fn is_serving(&self) -> bool {
        self.health == Health::Up && !self.is_asleep()
    }

    /// Whether it has this LoRA adapter loaded, or does not report its adapters.
    pub(super) fn may_have_adapter(&self, adapter: u64) -> bool {
        let adapters = self.sample.and_then(|sample| sample.load.adapters);
        adapters.is_none_or(|adapters| adapters.has(adapter))
    }

    /// The metrics that its last successful scrape offered.
    pub fn metrics(&self) -> EngineMetricSet {
        self.sample.map(|sample| EngineMetricSet::from_load(&sample.load)).unwrap_or_default()
    }

    /// The last reported load of the backend, with its age at `now`.
    pub fn condition(&self, now: Instant) -> BackendCondition {
        let age = self.summary.scraped_at.map(|at| now.saturating_duration_since(at));
        BackendCondition { age, ..self.summary.condition }
    }

    /// Recent mean queue and prefill times, from the counters of the engine.
    pub(super) const fn recent_times(&self) -> RecentEngineTimes {
        self.summary.recent_times
    }

    /// The models that it lists. Empty if its list is not known yet.
    pub fn models(&self) -> &[ServedModel] {
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

// === impl Availability ===

impl Availability {
    /// All values.
    pub const ALL: [Self; 7] = [
        Self::Available,
        Self::Ejected,
        Self::Asleep,
        Self::ZeroWeight,
        Self::Drained,
        Self::Down,
        Self::Unknown,
    ];

    /// The name in metrics, in `/status` and in `/readyz`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Ejected => "ejected",
            Self::Asleep => "asleep",
            Self::ZeroWeight => "zero_weight",
            Self::Drained => "drained",
            Self::Down => "down",
            Self::Unknown => "unknown",
        }
    }
}
