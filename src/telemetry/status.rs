//! A snapshot of the state of the gateway, for gauges, `/status` and the admin page.
//!
//! The values are read from their owners when the snapshot is taken. No counter is maintained
//! twice.

use super::{access_log, metrics_push, payload_log, quality, trace_capture};
use crate::backend::LabelledModel;
use serde::{Serialize, Serializer};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokenweir_core::model::ServedModel;
use tokenweir_diagnose::Diagnosis;
use tokenweir_net::supervise::PanicCounts;
use tokenweir_net::tls;

/// A snapshot of the state of the gateway. This is the document of `/status`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct StatusSnapshot {
    /// Requests in progress, from the first byte of the request to the last byte of the response.
    pub in_flight: usize,
    /// Whether the gateway is ready: a backend can be used and no shutdown is in progress.
    pub ready: bool,
    /// Why no backend can receive requests: the states of all backends. `None`: at least one can.
    pub unready_reason: Option<String>,
    /// Whether so many backends are ejected that ejections are ignored.
    pub panic_mode: bool,
    /// Whether the gateway is shutting down.
    pub draining: bool,
    /// Requests in the admission queue by class, highest priority first.
    pub queue: Vec<QueueStatusSnapshot>,
    /// All backends, including removed ones that still serve requests.
    pub backends: Vec<BackendStatusSnapshot>,
    /// Conditions that diagnosis detects on the backends.
    #[serde(skip)]
    pub diagnosis: Arc<Diagnosis>,
    /// Current size of the candidate sampler in bytes. The sampler selects the candidates for a
    /// request in a large pool.
    pub short_list_bytes: usize,
    /// Models that are label values of metrics.
    #[serde(skip)]
    pub models: Vec<LabelledModel>,
    /// Tenants that are label values of metrics.
    pub tenants: Vec<String>,
    /// Spans by export result.
    pub spans: SpanCounts,
    /// Records of the trace capture by result.
    pub capture: trace_capture::TraceCaptureCounts,
    /// Access log lines and payload log records by result.
    pub logs: RequestLogCounts,
    /// Quality of responses by model. `None`: `quality` is disabled.
    pub quality: Option<quality::QualitySnapshot>,
    /// Pushes of metrics to a collector by result.
    pub pushes: metrics_push::MetricsPushCounts,
    /// Client connections.
    pub connections: ConnectionStatusSnapshot,
    /// Memory of request bodies.
    pub request_bodies: RequestBodyVitals,
    /// Expiry and reloads of certificates.
    pub tls: tls::CertificateCounts,
    /// Results of configuration reloads.
    pub reloads: ConfigReloadStatus,
    /// Panics of background tasks.
    #[serde(skip)]
    pub panics: PanicCounts,
}

/// A snapshot of the client connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionStatusSnapshot {
    /// Open connections.
    pub open: usize,
    /// Limit of open connections. `None`: no limit.
    pub limit: Option<usize>,
    /// Connections refused because of the limit of all connections.
    pub full: u64,
    /// Connections refused because of the limit per client.
    pub client_full: u64,
    /// Failed TLS handshakes.
    pub failed_handshakes: u64,
    /// Failed `accept()` calls.
    pub accept_errors: u64,
}

/// A snapshot of the memory of request bodies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RequestBodyVitals {
    /// Bytes in use.
    pub bytes: usize,
    /// Limit in bytes.
    pub limit: usize,
}

/// The results of configuration reloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ConfigReloadStatus {
    /// Whether the last load succeeded.
    pub last_successful: bool,
    /// Unix time of the last successful load, in seconds.
    pub last_success_seconds: f64,
    /// Reloads that succeeded.
    pub ok: u64,
    /// Reloads that failed. The previous configuration stayed in use.
    pub failed: u64,
}

/// A snapshot of one class of the admission queue.
#[derive(Debug, Clone, Default, Serialize)]
pub struct QueueStatusSnapshot {
    /// Name of the class.
    pub class: String,
    /// Requests waiting in the class.
    pub waiting: usize,
}

/// A snapshot of one backend.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendStatusSnapshot {
    /// Name of the backend.
    pub backend: String,
    /// Base URL of the backend.
    pub url: String,
    /// `up`, `down`, `unknown`, or [`LEAVING_STATE`].
    pub health: &'static str,
    /// State of the circuit breaker.
    pub breaker: &'static str,
    /// Number of ejections by the circuit breaker.
    pub ejections: u64,
    /// Whether the backend can receive new requests, and if not, why:
    /// [`Availability::as_str`](crate::backend::Availability::as_str), or [`LEAVING_STATE`].
    pub state: &'static str,
    /// Whether the backend receives new requests now. In panic mode an ejected backend does.
    pub up: bool,
    /// Why the health of the backend keeps new requests from it.
    pub reason: Option<String>,
    /// Weight of the backend relative to the others.
    pub weight: u32,
    /// Whether an operator has drained the backend.
    pub drained: bool,
    /// vLLM version of the backend.
    pub version: Option<String>,
    /// Models that the backend serves.
    #[serde(serialize_with = "ids")]
    pub models: Arc<[ServedModel]>,
    /// Requests of this gateway in progress on the backend.
    pub in_flight: u32,
    /// Streams of the backend that are stalled now.
    pub stalled: u32,
    /// Number of stalls on the backend.
    pub stalls: u64,
    /// KV cache usage from the last successful scrape, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Requests waiting in the engine.
    pub waiting: Option<f64>,
    /// Requests running in the engine.
    pub running: Option<f64>,
    /// Preemptions since the engine started.
    pub preemptions: Option<f64>,
    /// Capacity of the KV cache in tokens.
    pub kv_capacity_tokens: Option<u64>,
    /// Whether the engine is in sleep mode.
    pub asleep: Option<bool>,
    /// Inference server whose metric names the backend uses.
    pub dialect: Option<&'static str>,
    /// Metrics that the backend reports, and those that it does not.
    pub metrics: BackendMetricAvailability,
    /// Age of the last successful scrape in seconds.
    pub scrape_age_seconds: Option<f64>,
    /// Why the last scrape failed. `None`: it succeeded.
    pub scrape_error: Option<&'static str>,
    /// Estimates that the gateway learned from responses of the backend.
    pub learned: BackendEstimates,
}

/// The health and the state of a removed backend that still serves requests.
pub const LEAVING_STATE: &str = "leaving";

/// Estimates of a backend that the gateway learned from its responses.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendEstimates {
    /// Weight of the last scraped load in predictions, 0 to 1: horizon ÷ (horizon + age). 0: no
    /// scrape has succeeded.
    pub freshness: f64,
    /// Prompt tokens computed per second.
    pub prefill_tokens_per_second: f64,
    /// Time to first output of a prompt without uncached tokens, in seconds.
    pub prefill_base_seconds: f64,
    /// Predicted prompt tokens that the engine must compute before those of a new request.
    pub prefill_backlog_tokens: f64,
    /// Recent mean time to first output in seconds. `None`: no output yet.
    pub ttft_seconds: Option<f64>,
    /// Mean bytes of prompt text per token.
    pub bytes_per_token: f64,
    /// Mean output tokens per response.
    pub output_tokens: f64,
    /// Share of the KV cache assumed to hold prefixes of past requests.
    pub prefix_retention: f64,
    /// Memory of the prefix index of the backend, in bytes.
    pub prefix_index_bytes: usize,
}

/// Metrics of a backend, by their names in
/// [`ENGINE_METRICS`](tokenweir_core::engine_metrics::ENGINE_METRICS).
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendMetricAvailability {
    /// Metrics that the last metrics page had.
    pub available: Vec<&'static str>,
    /// Metrics that the last metrics page lacked.
    pub missing: Vec<&'static str>,
}

/// Spans by export result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpanCounts {
    /// Spans put into the queue of the exporter.
    pub queued: u64,
    /// Spans that the collector accepted.
    pub exported: u64,
    /// Spans that the collector rejected, or that could not be delivered.
    pub failed: u64,
    /// Spans of traces that are not sampled.
    pub filtered: u64,
}

/// Access log lines and payload log records by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RequestLogCounts {
    /// Access log lines.
    pub access: access_log::AccessLogCounts,
    /// Payload log records.
    pub content: payload_log::PayloadLogCounts,
}

// === impl ConnectionStatusSnapshot, ConfigReloadStatus, SpanCounts ===

impl ConnectionStatusSnapshot {
    /// The refused connections by reason.
    pub const fn refusals(&self) -> [(&'static str, u64); 3] {
        [("full", self.full), ("client_full", self.client_full), ("tls", self.failed_handshakes)]
    }
}

impl SpanCounts {
    /// The counts with the names of the results.
    pub const fn by_result(&self) -> [(&'static str, u64); 4] {
        [
            ("queued", self.queued),
            ("exported", self.exported),
            ("failed", self.failed),
            ("filtered", self.filtered),
        ]
    }
}

impl ConfigReloadStatus {
    /// The counts with the names of the results.
    pub const fn by_result(&self) -> [(&'static str, u64); 2] {
        [("ok", self.ok), ("failed", self.failed)]
    }

    /// The state after the first load of the configuration.
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

fn ids<S: Serializer>(models: &Arc<[ServedModel]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(models.iter().map(|model| &*model.id))
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
