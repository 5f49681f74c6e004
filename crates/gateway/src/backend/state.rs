//! The state of a backend at one moment, as its health checks and scrapes found it.

use super::recent_times::MeanPrefill;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::{EngineKind, EngineLoad};
use tokenweir_engine::engine_metrics::{EngineMetricSet, ScrapeError};
use tokenweir_engine::model::ServedModel;
use tokenweir_protocol::named_enum;
use tokenweir_request::record::BackendCondition;
use tokenweir_routing::resilience::Availability;

/// The state of a backend at one moment. A change replaces the value by a new value.
#[derive(Debug, Clone, Default)]
#[repr(C)] // the summary, which every request reads, comes first and in adjacent cache lines
pub struct BackendState {
    summary: StateSummary,
    /// The result of the health checks.
    pub health: Health,
    /// The server version from `/version`. `None`: not known.
    pub version: Option<Arc<str>>,
    /// The models from `/v1/models`, each with its original entry. `None`: not known yet.
    pub models: Option<Arc<[ServedModel]>>,
    /// The result of the last successful scrape. `None`: no scrape has succeeded.
    pub sample: Option<LoadSample>,
    /// Recent mean prefill time, from the counters of the engine.
    pub(super) mean_prefill: MeanPrefill,
    /// The reason why the last scrape failed. `None`: the last scrape succeeded, or no scrape has ended yet.
    pub metrics_error: Option<ScrapeError>,
    /// Why some models of the backend are not known, and the remedy. `None`: all models are known.
    pub models_error: Option<Arc<str>>,
    /// The reason why `health` is down or unknown, as text for status pages and logs.
    pub reason: Option<Arc<str>>,
    /// The cause if `health` is down, as far as it is known.
    down_cause: DownCause,
    /// Whether an operator has paused the engine. `false`: the engine works, or vLLM does not report whether
    /// the engine is paused.
    pub(super) is_paused: bool,
    /// The availability that an option announces before it takes the backend out of service. `None`: no option
    /// does.
    pub(super) withdrawal: Option<Availability>,
    /// Whether the backend is another tokenweir gateway, as its model list shows.
    pub is_gateway: bool,
    /// The front end of vLLM. `None`: not known, or the server is not vLLM.
    pub front_end: Option<FrontEnd>,
}

/// The values that every request record reads. Each change of the state derives them from the other fields of
/// [`BackendState`].
#[derive(Debug, Clone, Copy, Default)]
struct StateSummary {
    server_kind: Option<EngineKind>,
    /// Whether the backend is down, and its last reported load. The age of the load is left out, because it
    /// depends on the time of reading.
    condition: BackendCondition,
    /// Start of the scrape that reported the load in `condition`.
    scraped_at: Option<Instant>,
    /// Recent mean prefill time. `None`: not known.
    mean_prefill: Option<Duration>,
}

named_enum! {
    /// The result of the health checks of a backend.
    #[derive(Default)]
    pub enum Health {
        /// No health check has completed yet. The backend gets no requests.
        #[default]
        Unknown = "unknown",
        /// The last health check passed.
        Up = "up",
        /// Health checks fail, a connection of a request failed, or the engine is stuck.
        Down = "down",
    }
}

/// Why a backend is down: the causes that routing and status pages distinguish.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum DownCause {
    /// Any other cause. [`BackendState::reason`] states it.
    #[default]
    Other,
    /// The engine shows no progress, but may work nevertheless.
    Stuck,
    /// The backend answers neither probes nor requests, but may work nevertheless.
    Silent,
    /// The server process started a moment ago and is not healthy yet.
    Starting,
    /// The number of ranks of the engine changes.
    Scaling,
    /// The engine was removed from its group of ranks.
    Retired,
}

named_enum! {
    /// The front end of a vLLM server. The two front ends serve different paths.
    pub enum FrontEnd {
        /// The API server in Python.
        Python = "python",
        /// The API server in Rust.
        Rust = "rust",
    }
}

/// The result of one successful scrape.
#[derive(Debug, Clone, Copy)]
pub struct LoadSample {
    /// The load that the metrics page reported.
    pub load: EngineLoad,
    /// Start of the scrape. The backend rendered the metrics page at this time or later.
    pub scraped_at: Instant,
}

impl BackendState {
    /// A copy of the state with a summary of its other fields.
    pub(super) fn with_summary(mut self) -> Self {
        let from_models = self.models().first().and_then(|model| model.server);
        let condition = self
            .sample
            .map(|sample| BackendCondition::of(&sample.load))
            .unwrap_or_default();
        let from_metrics = || self.sample.as_ref().and_then(|sample| sample.load.server);
        self.summary = StateSummary {
            server_kind: from_models.or_else(from_metrics),
            condition: BackendCondition {
                is_down: self.health == Health::Down,
                ..condition
            },
            scraped_at: self.sample.map(|sample| sample.scraped_at),
            mean_prefill: self.mean_prefill.time,
        };
        self
    }

    /// The kind of the inference server, from `owned_by` in the model list or, if that shows none, from the
    /// names of the metrics. `None`: not known.
    pub const fn server_kind(&self) -> Option<EngineKind> {
        self.summary.server_kind
    }

    /// Why an up engine gets no requests: an option takes it out of service, or the engine reports that it
    /// sleeps or is paused. `None`: neither.
    fn rest(&self) -> Option<Availability> {
        let reported = || Availability::of_engine(&self.sample?.load);
        self.withdrawal.or_else(reported)
    }

    /// Sets the result of the health checks. `reason`: why the backend is down or unknown.
    pub(super) fn set_health(&mut self, health: Health, reason: Option<&Arc<str>>) {
        (self.health, self.reason) = (health, reason.cloned());
        self.down_cause = DownCause::Other;
    }

    pub(super) fn set_down(&mut self, cause: DownCause, reason: &Arc<str>) {
        self.set_health(Health::Down, Some(reason));
        self.down_cause = cause;
    }

    /// The reason why the engine gets no new requests, by its health checks and its own state. `None`: nothing
    /// prevents them. A backend that is down only by suspicion still gets requests that no other backend can serve.
    pub fn engine_availability(&self) -> Option<Availability> {
        match (self.health, self.down_cause) {
            (Health::Unknown, _) => Some(Availability::Unknown),
            (Health::Down, DownCause::Other | DownCause::Stuck | DownCause::Silent) => {
                Some(Availability::Down)
            }
            (Health::Down, DownCause::Starting) => Some(Availability::Starting),
            (Health::Down, DownCause::Scaling) => Some(Availability::Scaling),
            (Health::Down, DownCause::Retired) => Some(Availability::Retired),
            (Health::Up, _) if self.rest().is_some() => self.rest(),
            (Health::Up, _) if self.is_paused => Some(Availability::Paused),
            (Health::Up, _) => None,
        }
    }

    /// Whether the backend is down only by suspicion (no progress, or no answers), and its engine does not
    /// rest. Such a backend gets requests that no other backend can serve.
    pub(super) fn is_suspected(&self) -> bool {
        matches!(self.down_cause, DownCause::Stuck | DownCause::Silent) && self.rest().is_none()
    }

    /// Whether the backend is down because it answers neither probes nor requests.
    pub(super) fn is_silent(&self) -> bool {
        self.down_cause == DownCause::Silent
    }

    /// Whether the backend is up, and its engine neither sleeps nor is paused.
    pub fn is_serving(&self) -> bool {
        self.engine_availability().is_none()
    }

    /// Whether the backend may have loaded the LoRA adapter with this name hash. Also true if the backend does
    /// not report its adapters.
    pub(super) fn may_have_adapter(&self, adapter: u64) -> bool {
        let adapters = self.sample.as_ref().and_then(|sample| sample.load.adapters);
        adapters.is_none_or(|adapters| adapters.has(adapter))
    }

    /// The set of engine metrics that the last successful scrape contained. Empty without a scrape.
    pub fn metrics(&self) -> EngineMetricSet {
        self.sample
            .map(|sample| EngineMetricSet::from_load(&sample.load))
            .unwrap_or_default()
    }

    /// The load of the last successful scrape. Empty: no scrape has succeeded.
    pub fn engine_load(&self) -> EngineLoad {
        self.sample.map(|sample| sample.load).unwrap_or_default()
    }

    /// The reported load of the backend, with its age at `now`.
    pub fn condition(&self, now: Instant) -> BackendCondition {
        let age = self
            .summary
            .scraped_at
            .map(|at| now.saturating_duration_since(at));
        BackendCondition {
            age,
            ..self.summary.condition
        }
    }

    /// Recent mean prefill time, from the counters of the engine. `None`: not known.
    pub(super) const fn mean_prefill(&self) -> Option<Duration> {
        self.summary.mean_prefill
    }

    /// The models that the backend lists. Empty if the list is not known yet.
    pub fn models(&self) -> &[ServedModel] {
        self.models.as_deref().unwrap_or_default()
    }
}
