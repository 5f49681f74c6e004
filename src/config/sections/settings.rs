//! The configuration sections that no other module defines: routing, tiers, admission, refusal
//! detection, drain, reload, logs, metrics and trace capture.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_gateway::backend::DEFAULT_MAX_MODEL_LABELS;
use tokenweir_gateway::telemetry::metrics_registry::MetricsLevel;
use tokenweir_gateway::telemetry::payload_log;
use tokenweir_protocol::named_enum;
use tokenweir_protocol::units;
use tokenweir_request::continuation::ContinuationMode;
use tokenweir_request::observe::OnTruncation;
use tokenweir_routing::admission::PriorityClasses;
use tokenweir_routing::saturation::SaturationThresholds;
use tokenweir_routing::{Policy, PolicyKind, kv_aware};

/// Selection of a backend for each request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingConfig {
    /// The policy that picks the backend.
    pub policy: PolicyKind,
    /// Weights of the `kv_aware` policy. They scale its predictions in seconds.
    pub kv_aware: kv_aware::KvAwareSettings,
    /// Number of recent decisions that are kept, 0 to 16384, of up to 4.5 KiB each.
    pub decision_log_size: usize,
    /// Shadow policies, whose picks are recorded and not used.
    pub shadow: Vec<PolicyKind>,
    /// Whether routing picks a data-parallel rank of a vLLM server. At each start of the server,
    /// each rank gets two requests of one token.
    pub data_parallel_ranks: bool,
}

/// Whether the gateway requests usage that a client did not request.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum UsageMode {
    /// Request usage from vLLM and SGLang, and remove its event from responses.
    #[default]
    Inject,
    /// Request no usage.
    Passive,
}

/// Default of `continuous_usage`. With this share of streams, all events together cost the gateway
/// up to 3 % more instructions. docs/concepts/usage.md has the figures, also for vLLM.
pub(crate) const DEFAULT_CONTINUOUS_USAGE_RATIO: f64 = 0.03;

/// Assignment of a tier to each request. The tier is a label of metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TiersConfig {
    /// Header that contains the tier of a request, such as `x-tier`. The tier of a tenant in the keys file
    /// takes precedence.
    pub header: Option<String>,
    /// Accepted values of the header. Other values count as `_other`.
    pub names: Vec<String>,
}

/// The admission queue, in which requests wait while every backend of a model is full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdmissionConfig {
    /// Whether requests wait for a backend with capacity.
    pub enabled: bool,
    /// Number of requests in the engine's queue at which a backend is full. A sixteenth of the running
    /// requests counts instead if that is more. `None`: the queue is not considered.
    pub max_waiting: Option<u32>,
    /// KV cache usage at which a backend is full, 0.01 to 0.99. `None`: the usage is not
    /// considered.
    pub max_kv_usage: Option<f64>,
    /// Greatest number of requests of this gateway at a backend, whatever load it reports. `None`: no
    /// limit.
    pub max_in_flight: Option<u32>,
    /// Maximum number of requests in the queue. 0: no queue.
    pub queue_capacity: usize,
    /// Maximum time of a request in the queue. Then the gateway responds with 429.
    #[serde(with = "units::Duration")]
    pub max_wait: Duration,
    /// Maximum time of a request in the queue while no backend can serve its model, then 503. `None`:
    /// `max_wait`. 0: 503 at once.
    #[serde(with = "units::OptionalDuration")]
    pub max_backend_wait: Option<Duration>,
    /// Tiers, the highest priority first. `default` stands for all others.
    pub classes: Vec<String>,
    /// Header that contains the tenant. Use only a header that your own proxy sets. `None`: the
    /// client's address.
    pub tenant_header: Option<String>,
}

/// Handling of streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StreamsConfig {
    /// How the client learns that its stream was truncated.
    pub on_truncation: OnTruncation,
    /// Silence towards the client after which the gateway sends an SSE comment, so that proxies do not
    /// close the connection. A later failure becomes an error event. `null`: no comments.
    #[serde(with = "units::OptionalDuration")]
    pub keep_alive: Option<Duration>,
    /// Requests with an `Idempotency-Key` whose clients may lose their connection and return.
    pub resume: ResumeConfig,
    /// How a stream of chat completions or completions goes on at another backend, if its backend ends
    /// it early, stalls, is drained with `migrate` or is removed.
    pub continuation: ContinuationMode,
    /// Whether only streams with `temperature` 0 are continued. A sampled stream that is continued is
    /// not the one that its first backend would have sent.
    pub continuation_greedy_only: bool,
}

/// Requests that go on while their client is away. Needs the permission `resume`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResumeConfig {
    /// How long a request, also an ended one, waits for its client to return. `null`: off.
    #[serde(rename = "for", with = "units::OptionalDuration")]
    pub window: Option<Duration>,
    /// Maximum memory of all kept responses. A tenant may use half of it, one response a sixteenth.
    /// Beyond these limits a client cannot return to its request.
    #[serde(with = "units::Size")]
    pub memory: usize,
}

/// Detection of model refusals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RefusalDetectionConfig {
    /// Phrases that mark a response as a model refusal. Case is ignored.
    pub refusal_phrases: Vec<String>,
}

/// The drain at shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DrainConfig {
    /// How long the gateway still accepts connections after the shutdown signal.
    #[serde(with = "units::Duration")]
    pub delay: Duration,
    /// How long requests may run after the delay. The gateway then aborts the remaining requests.
    #[serde(with = "units::Duration")]
    pub timeout: Duration,
}

/// Reloads of the configuration without SIGHUP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReloadConfig {
    /// Whether a change of the configuration file causes a reload. The file is polled every second.
    pub watch: bool,
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Minimum level of events in the process log.
    pub level: LogLevel,
    /// Format of the lines.
    pub format: LogFormat,
    /// Whether the access log has a line for each request. Lines never contain prompts, responses
    /// or keys.
    pub access: bool,
    /// Whether the access log also has a line when the body of a request was read.
    pub access_start: bool,
    /// Maximum number of access log lines per second for requests without a tenant that succeeded at the
    /// first attempt, neither slow nor stalled, and for requests that no backend got. All others are always
    /// logged. `None`: no limit.
    pub access_per_second: Option<u32>,
    /// Maximum size of `payloads.file`, `quality.file` and `trace_capture.file`, each together with its
    /// rotated file `FILE.old`. At least 1MiB, and 32 times `payloads.max_bytes`.
    #[serde(with = "units::Size")]
    pub max_file_bytes: usize,
    /// The payload log, with prompts and responses.
    pub payloads: payload_log::PayloadLogSettings,
}

named_enum! {
    /// The level of a log event.
    #[derive(
        Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
    )]
    #[serde(rename_all = "lowercase")]
    pub enum LogLevel {
        /// Failures.
        Error = "error",
        /// Conditions that may lead to a failure.
        Warn = "warn",
        /// Changes of state.
        #[default]
        Info = "info",
        /// Details for debugging.
        Debug = "debug",
        /// All events.
        Trace = "trace",
    }
}

/// The format of log lines.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
    /// Text.
    Human,
    /// One JSON object per line.
    Json,
}

/// Metrics and their export.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// How many series the gateway exports. `null`: none, and `/metrics` is 404.
    pub level: Option<MetricsLevel>,
    /// Bucket bounds that replace the defaults, by histogram: ascending, in the metric's unit.
    pub buckets: BTreeMap<String, Vec<f64>>,
    /// Whether `/metrics` is also available with native histograms, for a Prometheus that asks for
    /// them.
    pub native_histograms: bool,
    /// Maximum number of discovered models with their own label value. Others have `_other`.
    pub max_models: usize,
}

/// Cost of the GPUs, for the metrics of cost. The gateway does not act on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CostConfig {
    /// Number of GPUs of each backend without its own number. `None`: not known.
    pub gpus: Option<u32>,
    /// Price of one GPU for one hour, in any currency. `None`: not known.
    pub gpu_hour_price: Option<f64>,
}

impl Default for ResumeConfig {
    fn default() -> Self {
        Self { window: None, memory: 256 << 20 }
    }
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            level: Some(MetricsLevel::default()),
            buckets: BTreeMap::new(),
            native_histograms: false,
            max_models: DEFAULT_MAX_MODEL_LABELS,
        }
    }
}

/// Capture of the traffic to a file, without texts of prompts and responses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TraceCaptureConfig {
    /// File of the capture. `None`: no capture.
    pub file: Option<PathBuf>,
    /// Share of requests in the capture, more than 0 and at most 1. Sessions are captured as a
    /// whole.
    pub sample: f64,
}

impl RoutingConfig {
    /// The policy with its settings.
    pub fn policy(&self) -> Policy {
        Policy { kind: self.policy, kv_aware: self.kv_aware }
    }
}

impl Default for RoutingConfig {
    /// Policy `kv_aware`, 1,024 decisions, no shadow policies, no data-parallel ranks.
    fn default() -> Self {
        Self {
            policy: PolicyKind::default(),
            kv_aware: kv_aware::KvAwareSettings::default(),
            decision_log_size: 1_024,
            shadow: Vec::new(),
            data_parallel_ranks: false,
        }
    }
}

impl AdmissionConfig {
    /// The priority classes, including the default class.
    pub fn classes(&self) -> PriorityClasses {
        PriorityClasses::new(self.classes.iter().map(|name| name.as_str().into()))
    }

    /// The thresholds at which a backend is full.
    pub const fn marks(&self) -> SaturationThresholds {
        SaturationThresholds {
            waiting: self.max_waiting,
            kv_usage: self.max_kv_usage,
            in_flight: self.max_in_flight,
        }
    }
}

impl Default for AdmissionConfig {
    /// A backend is full at 4 waiting requests or 97 % KV usage. 1,024 requests wait up to 30 s.
    fn default() -> Self {
        let thresholds = SaturationThresholds::default();
        Self {
            enabled: true,
            max_waiting: thresholds.waiting,
            max_kv_usage: thresholds.kv_usage,
            max_in_flight: thresholds.in_flight,
            queue_capacity: 1_024,
            max_wait: Duration::from_secs(30),
            max_backend_wait: None,
            classes: Vec::new(),
            tenant_header: None,
        }
    }
}

impl Default for DrainConfig {
    /// No delay, and a timeout of 30 s, which is the default grace period of Kubernetes.
    fn default() -> Self {
        Self { delay: Duration::ZERO, timeout: Duration::from_secs(30) }
    }
}

impl Default for LogConfig {
    /// Level info, and an access log with up to 1,000 lines per second for successful requests.
    fn default() -> Self {
        Self {
            level: LogLevel::default(),
            format: LogFormat::default(),
            access: true,
            access_start: false,
            access_per_second: Some(1_000),
            max_file_bytes: 1 << 30,
            payloads: payload_log::PayloadLogSettings::default(),
        }
    }
}

impl Default for TraceCaptureConfig {
    /// The default: requests are not captured. With a file, all are.
    fn default() -> Self {
        Self { file: None, sample: 1.0 }
    }
}
