//! A snapshot of the state of the gateway, for gauges, `/status` and the admin page.
//!
//! The values are read from the components of the gateway when the snapshot is taken. The snapshot has no
//! counters of its own.

use super::cpu_time::TelemetryCpuTimes;
use super::otel::SpanCounts;
use super::rotating_file::FileRecordCounts;
use super::{access_log, quality};
use crate::backend::kv_events::{CacheStatus, LearningCounts};
use crate::backend::peers::PeerExchangeStatus;
use crate::backend::{LabelledModel, RankStatus};
use crate::gpu::{BackendGpu, GpuExporterStatus};
use crate::webhook::WebhookStatus;
use serde::Serialize;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokenweir_api::{BackendFacts, ClientSummary, GatewayState, Harm, QueueSummary};
use tokenweir_diagnose::Diagnosis;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_net::supervise::PanicCounts;
use tokenweir_net::tls;

/// A snapshot of the state of the gateway. `/status` returns its serialized fields.
#[derive(Debug, Clone, Default, Serialize)]
pub struct StatusSnapshot {
    /// Requests in progress, from the first byte of the request to the last byte of the response.
    pub requests_in_flight: usize,
    /// The state of the gateway.
    pub state: GatewayState,
    /// Why the state is not `Ready`.
    pub state_reasons: Vec<String>,
    /// The shares of requests that failed, were refused, had a 4xx status or were slow in the last
    /// minute. `state` depends on them.
    pub harm: Harm,
    /// The clients that cause the most work, the largest share first.
    pub clients: Vec<ClientSummary>,
    /// Age of the request that has been in progress longest. 0: no request is in progress.
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
    /// Requests in the admission queue by model: always for the models with a label value of their own,
    /// for other models while requests wait.
    pub model_queues: Vec<ModelQueueStatus>,
    /// All backends, including removed ones that still serve requests.
    pub backends: Vec<BackendStatusSnapshot>,
    /// The GPU exporters. Empty: none is configured.
    pub gpu_exporters: Vec<GpuExporterStatus>,
    /// The latest diagnosis: the verdicts about the backends and the gateway.
    #[serde(skip)]
    pub diagnosis: Arc<Diagnosis>,
    /// The state of the messages to each webhook. Empty: no webhook is configured.
    pub webhooks: Vec<WebhookStatus>,
    /// Memory of the candidate sampler, in bytes. In a large pool the sampler selects a few candidates
    /// for each request, and the policy chooses among them.
    #[serde(skip)]
    pub short_list_bytes: usize,
    /// Memory of the index that relates prompt texts to the blocks of KV events, in bytes.
    #[serde(skip)]
    pub kv_index_bytes: usize,
    /// Numbers of requests for which the gateway could, and could not, derive from KV events which
    /// KV cache block holds which part of the prompt.
    #[serde(skip)]
    pub kv_learning: LearningCounts,
    /// Models that are label values of metrics.
    #[serde(skip)]
    pub models: Vec<LabelledModel>,
    /// Tenants that are label values of metrics.
    #[serde(skip)]
    pub tenants: Vec<String>,
    /// The exchange of messages with other gateways. `None`: `peer_exchange` is not configured.
    pub peer_exchange: Option<PeerExchangeStatus>,
    /// Number of spans by export result.
    pub spans: SpanCounts,
    /// Number of records of the trace capture by result.
    pub trace_capture: FileRecordCounts,
    /// Number of access log lines by result.
    #[serde(skip)]
    pub access_log: access_log::AccessLogCounts,
    /// Number of payload log records by result.
    #[serde(skip)]
    pub payload_log: FileRecordCounts,
    /// Quality of responses by model. `None`: `quality` is disabled.
    pub quality: Option<quality::QualitySnapshot>,
    /// Number of open, refused and failed client connections.
    pub connections: ConnectionStatusSnapshot,
    /// Memory of all request bodies that the gateway holds now, and its limit.
    pub request_bodies: RequestBodyVitals,
    /// Memory of the responses that the gateway keeps for clients that may reconnect to them, in bytes.
    pub resume_bytes: usize,
    /// Memory of the data that the gateway keeps to continue open streams at another backend, in bytes.
    pub continuation_bytes: usize,
    /// Expiry times of certificates, and number of reloads of certificate files.
    pub certificates: tls::CertificateCounts,
    /// Number of configuration reloads by result, and the result of the last load.
    pub config_reloads: ConfigReloadStatus,
    /// Seconds since the metrics page was last read. `None`: never.
    pub metrics_read_seconds_ago: Option<f64>,
    /// Number of panics by background task.
    #[serde(skip)]
    pub panics: PanicCounts,
    /// CPU time of telemetry by kind of work, such as records, logs and the metrics page.
    #[serde(skip)]
    pub telemetry_cpu: TelemetryCpuTimes,
}

/// A snapshot of the client connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionStatusSnapshot {
    /// Number of connections that are open now.
    pub open: usize,
    /// Limit of open connections. `None`: no limit.
    pub limit: Option<usize>,
    /// Number of connections that were refused because `limit` was reached, or for lack of a file
    /// descriptor.
    pub full: u64,
    /// Number of connections that were refused because the client had as many as one client may have.
    pub client_full: u64,
    /// Number of failed TLS handshakes.
    pub failed_handshakes: u64,
    /// Number of failed `accept()` calls.
    pub accept_errors: u64,
}

/// A snapshot of the memory of all request bodies that the gateway holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RequestBodyVitals {
    /// Memory of the request bodies, in bytes.
    pub bytes: usize,
    /// Limit of `bytes`.
    pub limit: usize,
}

/// The results of configuration reloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ConfigReloadStatus {
    /// Whether the last load of the configuration succeeded, at the start or at a reload.
    pub last_successful: bool,
    /// Unix time of the last successful load, in seconds.
    pub last_success_seconds: f64,
    /// Number of reloads that succeeded. The load at the start is not counted.
    pub ok: u64,
    /// Number of reloads that failed. After a failed reload the previous configuration stays in
    /// use.
    pub failed: u64,
}

/// A snapshot of the requests for one model in the admission queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ModelQueueStatus {
    /// The label value of the model.
    pub model: String,
    /// Number of requests that wait now.
    pub waiting: usize,
    /// Seconds for which no backend could serve the model while requests for the model wait. `None`: a
    /// backend can serve the model, or no request waits.
    pub seconds_without_backend: Option<f64>,
}

/// A snapshot of one backend.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendStatusSnapshot {
    /// Name of the backend.
    pub backend: String,
    /// The fields about the backend that `/status` and `GET /streams` have in common.
    #[serde(flatten)]
    pub facts: BackendFacts,
    /// Number of ejections by the circuit breaker.
    pub ejections: u64,
    /// The role of the backend if one backend computes the prompt (`prefill`) and another the output
    /// (`decode`) of a request: `prefill`, `decode` or `both`. `None`: it serves whole requests only.
    pub role: Option<&'static str>,
    /// The data-parallel ranks that are targets of routing. Empty: the backend chooses the rank itself.
    pub ranks: Vec<RankStatus>,
    /// How often the gateway woke the engine, and how often it put the engine into sleep mode.
    #[serde(skip)]
    pub sleep_counts: [u64; 2],
    /// Number of stalls of the backend's streams since the start of the gateway.
    pub stalls: u64,
    /// Number of GPUs of the backend, and the price of all of them for one hour. `None`: not
    /// configured.
    #[serde(skip)]
    pub gpu_cost: [Option<f64>; 2],
    /// Number of restarts of the backend's process that the gateway detected.
    pub restarts: u64,
    /// Values of the last successful scrape. `None`: no scrape has succeeded.
    #[serde(skip)]
    pub engine: Option<EngineLoad>,
    /// The prefix cache of the backend as its KV events show it, and how reliable this information is.
    /// `None`: the gateway does not subscribe to the KV events of the backend.
    pub kv_events: Option<CacheStatus>,
    /// Number of preemptions since the engine started, from the last successful scrape. `None`: not
    /// reported.
    pub preemptions: Option<f64>,
    /// Whether the engine is in sleep mode. `None`: not reported.
    pub asleep: Option<bool>,
    /// Name of the inference server whose metric names the backend uses, such as vLLM. `None`: not
    /// known.
    pub dialect: Option<&'static str>,
    /// Names of the engine metrics that the backend reports and of those that it does not report.
    pub metrics: BackendMetricAvailability,
    /// Why the model list of the backend is missing or incomplete, and the remedy. `None`: the list
    /// is complete.
    pub models_error: Option<String>,
    /// Estimates that the gateway derives from the responses and scrapes of the backend.
    pub learned: BackendEstimates,
    /// The name of the Kubernetes pod of the backend. `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The GPUs of the backend, from the last successful scrapes of the GPU exporters.
    pub gpus: Vec<BackendGpu>,
}

/// Value of [`BackendFacts::health`] and [`BackendFacts::state`] for a removed backend that still serves
/// requests.
pub const LEAVING_STATE: &str = "leaving";

/// Estimates of a backend that the gateway derives from the responses and scrapes of the backend.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendEstimates {
    /// Weight of the last scraped load in predictions, 0 to 1: horizon ÷ (horizon + age of the scrape).
    /// The horizon is the age at which the weight is ½. 0: no scrape has succeeded.
    pub freshness: f64,
    /// Prompt tokens that the backend computes per second.
    pub prefill_tokens_per_second: f64,
    /// Predicted time to first output of a prompt whose tokens are all cached, in seconds.
    pub prefill_base_seconds: f64,
    /// Predicted prompt tokens that the engine must compute before those of a new request.
    pub prefill_backlog_tokens: f64,
    /// Recent mean time to first output in seconds. `None`: the backend has had no output yet.
    pub ttft_seconds: Option<f64>,
    /// Mean bytes of prompt text per token.
    pub bytes_per_token: f64,
    /// Mean output tokens per response.
    pub output_tokens: f64,
    /// Memory of the prefix index of the backend, in bytes.
    pub prefix_index_bytes: usize,
}

/// The available and the missing engine metrics of a backend. The names are those of
/// [`ENGINE_METRICS`](tokenweir_engine::engine_metrics::ENGINE_METRICS).
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendMetricAvailability {
    /// Names of the metrics that the last scraped metrics page contains.
    pub available: Vec<&'static str>,
    /// Names of the metrics that the last scraped metrics page lacks.
    pub missing: Vec<&'static str>,
}

// === impl StatusSnapshot, BackendStatusSnapshot ===

impl StatusSnapshot {
    /// Returns the backends that are configured or discovered now, without removed backends that
    /// still serve requests.
    pub(super) fn registered_backends(&self) -> impl Iterator<Item = &BackendStatusSnapshot> {
        self.backends.iter().filter(|backend| backend.is_registered())
    }
}

impl BackendStatusSnapshot {
    /// Whether the backend is configured or discovered now.
    pub(super) fn is_registered(&self) -> bool {
        self.facts.health != LEAVING_STATE
    }
}

// === impl ConnectionStatusSnapshot, ConfigReloadStatus ===

impl ConnectionStatusSnapshot {
    /// Returns the number of refused connections by reason. A failed TLS handshake has the reason
    /// `tls`.
    pub const fn refusals(&self) -> [(&'static str, u64); 3] {
        [("full", self.full), ("client_full", self.client_full), ("tls", self.failed_handshakes)]
    }
}

impl ConfigReloadStatus {
    /// Returns the number of reloads for each result: first the name of the result, then the
    /// number.
    pub const fn by_result(&self) -> [(&'static str, u64); 2] {
        [("ok", self.ok), ("failed", self.failed)]
    }

    /// Returns the status after the load of the configuration at the start of the gateway. `now` is
    /// the time of that load.
    pub fn initial(now: SystemTime) -> Self {
        Self { last_successful: true, last_success_seconds: unix_seconds(now), ..Self::default() }
    }

    /// Records a successful reload.
    pub fn record_success(&mut self, now: SystemTime) {
        let Self { ok, failed, .. } = *self;
        *self = Self { ok: ok + 1, failed, ..Self::initial(now) };
    }

    /// Records a failed reload.
    pub fn failed(&mut self) {
        self.last_successful = false;
        self.failed += 1;
    }
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
