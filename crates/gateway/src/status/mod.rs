//! A snapshot of the state of the gateway, for gauges, `/status` and the admin page.
//!
//! The values are read from the components of the gateway when the snapshot is taken. The snapshot has no
//! counters of its own and names no option. Each option adds its [`StatusBlock`].

mod blocks;

pub use blocks::{StatusBlock, StatusBlocks};

use serde::Serialize;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokenweir_api::{
    AnswerCounts, BackendFacts, Change, ClientSummary, GatewayState, Harm, QueueSummary,
};
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_net::tls;

/// A snapshot of the state of the gateway. `/status` returns its serialized fields.
#[derive(Debug, Clone, Default, Serialize)]
pub struct StatusSnapshot {
    /// Requests in progress, from the first byte of the request to the last byte of the response.
    pub requests_in_flight: usize,
    /// The state in one word, which `tokenweir status` prints first.
    pub state: GatewayState,
    /// The reasons for a state other than `Ready`.
    pub state_reasons: Vec<String>,
    /// The results that clients got in the last minute, by kind.
    pub answers: AnswerCounts,
    /// The strongest differences between the last minute and the last hour, the strongest first.
    pub changes: Vec<Change>,
    /// The shares of requests in the last minute that failed, were refused, had a 4xx status or were slow.
    /// `state` depends on them.
    pub harm: Harm,
    /// The clients that cause the most work, the largest share first.
    pub clients: Vec<ClientSummary>,
    /// Age of the oldest request in progress. 0: no request is in progress.
    #[serde(skip)]
    pub oldest_request_age_seconds: f64,
    /// Whether the gateway is ready: a backend can be used and no shutdown is in progress.
    pub ready: bool,
    /// Why no backend can receive requests: a summary of the states of all backends. `None`: at
    /// least one backend can receive requests.
    pub unready_reason: Option<String>,
    /// Whether panic mode is active: so many backends are ejected that ejections are ignored.
    pub panic_mode: bool,
    /// Whether the gateway is shutting down.
    pub draining: bool,
    /// Requests in the admission queue by class, highest priority first.
    pub queue: Vec<QueueSummary>,
    /// Requests in the admission queue by model. Models with a label value of their own are always listed,
    /// other models only while requests wait.
    pub model_queues: Vec<ModelQueueStatus>,
    /// All backends, including removed ones that still serve requests.
    pub backends: Vec<BackendStatusSnapshot>,
    /// The parts of the status that options add.
    #[serde(flatten)]
    pub blocks: StatusBlocks,
    /// Memory of the candidate sampler, in bytes. In a large pool the sampler selects a few candidates for each
    /// request, among which the policy chooses.
    #[serde(skip)]
    pub short_list_bytes: usize,
    /// Models with a label value of their own in metrics.
    #[serde(skip)]
    pub models: Vec<LabelledModel>,
    /// Tenants with a label value of their own in metrics.
    #[serde(skip)]
    pub tenants: Vec<String>,
    /// Number of open, refused and failed client connections.
    pub connections: ConnectionStatusSnapshot,
    /// Memory of all request bodies that the gateway holds now, and its limit.
    pub request_bodies: RequestBodyVitals,
    /// Expiry times of certificates, and number of reloads of certificate files.
    pub certificates: tls::CertificateCounts,
    /// Number of configuration reloads by result, and the result of the last load.
    pub config_reloads: ConfigReloadStatus,
    /// Seconds since the metrics page was last read. `None`: never.
    pub metrics_read_seconds_ago: Option<f64>,
}

/// A function that writes the state of one part of the gateway into a snapshot, for example as a
/// [`StatusBlock`]. Its second argument is the current time.
pub type StatusSource = Arc<dyn Fn(&mut StatusSnapshot, Instant) + Send + Sync>;

/// A model with a label value of its own in metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledModel {
    /// The model name, as the label value in metrics.
    pub name: Arc<str>,
    /// Whether the time series of the model exist before its first request.
    pub is_seeded: bool,
}

/// Numbers of open and refused client connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionStatusSnapshot {
    /// Connections that are open now.
    pub open: usize,
    /// Limit of open connections. `None`: no limit.
    pub limit: Option<usize>,
    /// Number of connections that were refused because `limit` was reached, or for lack of a file
    /// descriptor.
    pub full: u64,
    /// Number of connections that were refused because of the limit of connections per client.
    pub client_full: u64,
    /// TLS handshakes of clients that failed.
    pub failed_handshakes: u64,
    /// Number of failed `accept()` calls.
    pub accept_errors: u64,
}

/// A snapshot of the memory of all request bodies that the gateway holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RequestBodyVitals {
    /// Memory that request bodies occupy now.
    pub bytes: usize,
    /// The setting `limits.body_memory`, in bytes.
    pub limit: usize,
}

/// Number of reloads by result, and the last success.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ConfigReloadStatus {
    /// Whether the last load of the configuration succeeded. The load at the start counts.
    pub last_successful: bool,
    /// Unix time of the last successful load, in seconds.
    pub last_success_seconds: f64,
    /// Number of reloads that succeeded, without the load at the start.
    pub ok: u64,
    /// Number of reloads that failed. A failed reload leaves the previous configuration in use.
    pub failed: u64,
}

/// A snapshot of the requests for one model in the admission queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ModelQueueStatus {
    /// The model name, as the label value in metrics.
    pub model: String,
    /// Number of requests that wait now.
    pub waiting: usize,
    /// Seconds for which requests for the model have waited while no backend could serve it. `None`: a backend
    /// can serve the model, or no request waits.
    pub seconds_without_backend: Option<f64>,
}

/// State, load and learned estimates of one backend.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendStatusSnapshot {
    /// The name, which is the label `backend`.
    pub backend: String,
    /// The fields about the backend that both `/status` and `GET /streams` contain.
    #[serde(flatten)]
    pub facts: BackendFacts,
    /// Number of ejections by the circuit breaker.
    pub ejections: u64,
    /// The role of the backend in a pool where one backend computes the prompt (`prefill`) and another the
    /// output (`decode`): `prefill`, `decode` or `both`. `None`: the backend serves whole requests only.
    pub role: Option<&'static str>,
    /// Number of stalls of the backend's streams since the start of the gateway.
    pub stalls: u64,
    /// Number of restarts of the backend's process that the gateway detected.
    pub restarts: u64,
    /// Values of the last successful scrape. `None`: no scrape has succeeded.
    #[serde(skip)]
    pub engine: Option<EngineLoad>,
    /// Number of preemptions since the engine started, from the last successful scrape. `None`: not
    /// reported.
    pub preemptions: Option<f64>,
    /// Whether the engine is in sleep mode. `None`: not reported.
    pub asleep: Option<bool>,
    /// The inference server, such as vLLM, whose metric names the backend uses. `None`: not known.
    pub dialect: Option<&'static str>,
    /// Names of the engine metrics that the backend reports, and of the metrics that it lacks.
    pub metrics: BackendMetricAvailability,
    /// Why the model list of the backend is missing or incomplete, and a remedy. `None`: the list is complete.
    pub models_error: Option<String>,
    /// Estimates that the gateway learns from the responses and scrapes of the backend.
    pub learned: BackendEstimates,
    /// The name of the Kubernetes pod of the backend. `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The blocks of the options that have data about the backend.
    #[serde(flatten)]
    pub blocks: StatusBlocks,
}

/// Value of [`BackendFacts::health`] and [`BackendFacts::state`] for a removed backend that still serves
/// requests.
pub const LEAVING_STATE: &str = "leaving";

/// Estimates that the gateway learns from the responses and scrapes of one backend.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendEstimates {
    /// Weight of the last scraped load in predictions, 0 to 1: horizon ÷ (horizon + age of the scrape).
    /// The horizon is the age at which the weight is ½. 0: no scrape has succeeded.
    pub freshness: f64,
    /// Prompt tokens that the backend computes per second.
    pub prefill_tokens_per_second: f64,
    /// Predicted time to first output of a prompt whose tokens are all cached, in seconds.
    pub prefill_base_seconds: f64,
    /// Predicted prompt tokens that the engine must compute before the tokens of a new request.
    pub prefill_backlog_tokens: f64,
    /// Recent mean time to first output in seconds. `None`: the backend has had no output yet.
    pub ttft_seconds: Option<f64>,
    /// Mean bytes of prompt text per token.
    pub bytes_per_token: f64,
    /// Mean output tokens per response.
    pub output_tokens: f64,
    /// The assumed share of the KV cache that holds prefixes of past requests.
    pub prefix_retention: f64,
    /// Memory that the prefix index of the backend occupies.
    pub prefix_index_bytes: usize,
}

/// The available and the missing engine metrics of a backend, named as in
/// [`ENGINE_METRICS`](tokenweir_engine::engine_metrics::ENGINE_METRICS).
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendMetricAvailability {
    /// Names of the metrics that the last scraped metrics page contains.
    pub available: Vec<&'static str>,
    /// Names of the metrics that the last scraped metrics page lacks.
    pub missing: Vec<&'static str>,
}

impl StatusSnapshot {
    /// Returns the backends that are configured or discovered now. Removed backends that still serve requests
    /// are left out.
    pub fn registered_backends(&self) -> impl Iterator<Item = &BackendStatusSnapshot> {
        self.backends
            .iter()
            .filter(|backend| backend.is_registered())
    }
}

impl BackendStatusSnapshot {
    /// Whether the backend is configured or discovered now.
    pub fn is_registered(&self) -> bool {
        self.facts.health != LEAVING_STATE
    }
}

impl ConfigReloadStatus {
    /// Returns the status after the load of the configuration at the start of the gateway. `now` is
    /// the time of that load.
    pub fn initial(now: SystemTime) -> Self {
        Self {
            last_successful: true,
            last_success_seconds: unix_seconds(now),
            ..Self::default()
        }
    }

    /// Counts a successful reload at `now`.
    pub fn record_success(&mut self, now: SystemTime) {
        let Self { ok, failed, .. } = *self;
        *self = Self {
            ok: ok + 1,
            failed,
            ..Self::initial(now)
        };
    }

    /// Counts a reload whose configuration had a mistake.
    pub fn failed(&mut self) {
        self.last_successful = false;
        self.failed += 1;
    }
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
