//! The settings that belong to no other room: routing's choice of policy, the limits of the
//! listeners, draining, logs and metrics.

use super::secret::Secret;
use crate::backend::MOST_LABELS;
use crate::telemetry::content;
use crate::telemetry::otel::Protocol;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_core::admission::Classes;
use tokenweir_core::routing::high_water::Marks;
use tokenweir_core::routing::{Policy, PolicyKind, kv_aware};
use tokenweir_core::units;

/// How a replica is chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Routing {
    /// How one is chosen.
    pub policy: PolicyKind,
    /// The headers that may name a session, the one to prefer first.
    pub session_headers: Vec<String>,
    /// The weights of `kv_aware`, which predicts seconds.
    pub kv_aware: kv_aware::Settings,
    /// How many of the last decisions are kept for `/explain`, 4 KiB each at most. 0 keeps none.
    pub explain_ring: usize,
    /// Policies that are asked the same, and never obeyed.
    pub shadow: Vec<PolicyKind>,
}

/// Whether the gateway asks for usage that a client did not ask for.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum UsageMode {
    /// Of servers that are known to tell it in an event of its own, which is taken out of the
    /// answer: vLLM and SGLang.
    #[default]
    Inject,
    /// Never: every byte passes as it came.
    Passive,
}

/// The share of streams whose events are counted, by default. Such an event costs the gateway half as
/// many instructions again as another one that comes alone: in this share 0.5 % more for all events.
pub(super) const CONTINUOUS_USAGE: f64 = 0.01;

/// How the tier of a request is told: a label of metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tiers {
    /// The header that names the tier of a request, such as `x-tier`.
    pub header: Option<String>,
    /// The names that may be in it. Others count as `_other`.
    pub names: Vec<String>,
    /// Clients' tokens and their tiers. They win over the header.
    pub keys: Vec<TierKey>,
}

/// The tier of whoever has a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TierKey {
    /// The token that the client sends.
    pub key: Secret,
    /// Its tier.
    pub tier: String,
}

/// What happens while every replica is full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Admission {
    /// Whether requests wait for a replica with room, or are sent in any case.
    pub enabled: bool,
    /// A replica with as many requests in its queue is full. `None`: its queue does not matter.
    pub max_waiting: Option<u32>,
    /// A replica whose KV cache is as full is full, from 0 to 0.99. `None`: its cache does not
    /// matter.
    pub max_kv_usage: Option<f64>,
    /// A replica with as many requests of this gateway is full, whatever it says of itself.
    /// `None`: no limit.
    pub max_in_flight: Option<u32>,
    /// Most requests that wait. 0: none.
    pub room: usize,
    /// How long a request waits; then it is answered 429.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub max_wait: Duration,
    /// Tiers, from the one that goes first to the one that goes last. `default` stands for all that
    /// are not named.
    pub classes: Vec<String>,
    /// The header that names the tenant; only one that your own proxy sets. `None`: the client's
    /// token, or its address.
    pub tenant_header: Option<String>,
}

/// What is looked for in answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Answers {
    /// An answer that has one of these phrases, in any case, counts as refused.
    pub refusal_phrases: Vec<String>,
}

/// How the gateway ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Drain {
    /// How long connections are still accepted after the signal to end.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub delay: Duration,
    /// How long running requests may go on after that.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub timeout: Duration,
}

/// When the configuration is read again, besides on SIGHUP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Reload {
    /// Whether it is read again when its file has changed. It is looked at every second.
    pub watch: bool,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// The least important events that are logged.
    pub level: Level,
    /// The form of a line.
    pub format: Format,
    /// Whether each request gets a line when it ends. Lines never hold prompts, answers or keys.
    pub access: bool,
    /// Most lines in a second of requests that went well. All others always get theirs. `None`: no
    /// limit.
    pub access_per_second: Option<u32>,
    /// Where prompts and answers go.
    pub content: content::Settings,
}

/// The importance of a logged event.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// What failed.
    Error,
    /// What may fail soon.
    Warn,
    /// Changes of state.
    #[default]
    Info,
    /// Steps on the way.
    Debug,
    /// Everything.
    Trace,
}

/// The form of a log line.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// For people.
    Human,
    /// One JSON object.
    Json,
}

/// How metrics are counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Whether metrics are counted, and `/metrics` is served.
    pub enabled: bool,
    /// Bounds of histograms in place of those that ship, by metric and in its unit: ascending.
    pub buckets: BTreeMap<String, Vec<f64>>,
    /// Most models of replicas that are label values, the first that come. Requests for the others
    /// are counted under `_other`. The names of `models` are label values besides.
    pub max_models: usize,
    /// Where they are pushed.
    pub otlp: Otlp,
}

/// Where metrics are pushed. What is `None` here is decided by the standard `OTEL_*` variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Otlp {
    /// The URL of an OTLP collector, such as `http://127.0.0.1:4317`. `None`: as
    /// `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT` says, if
    /// `OTEL_METRICS_EXPORTER` has otlp.
    pub endpoint: Option<String>,
    /// How it is spoken to. `None`: as `OTEL_EXPORTER_OTLP_PROTOCOL` says, or grpc.
    pub protocol: Option<Protocol>,
    /// The time from one push to the next, at least 1s. `None`: as `OTEL_METRIC_EXPORT_INTERVAL`
    /// says, or 1m.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub interval: Option<Duration>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            enabled: true,
            buckets: BTreeMap::new(),
            max_models: MOST_LABELS,
            otlp: Otlp::default(),
        }
    }
}

/// Where the traffic is written, without its text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Capture {
    /// The file. `None`: nowhere.
    pub file: Option<PathBuf>,
    /// Most bytes of the file and the one before it (`FILE.old`) together.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::schema::Size")]
    pub max_bytes: usize,
    /// Share of requests that are kept, from 0 to 1. Of a session, all or none.
    pub sample: f64,
}

impl Routing {
    /// The policy with its settings.
    pub const fn policy(&self) -> Policy {
        Policy { kind: self.policy, kv_aware: self.kv_aware }
    }
}

impl Default for Routing {
    /// By predicted time to first token; sessions are named by `x-session-id`. The last 1,024
    /// decisions are kept, and no other policy is asked.
    fn default() -> Self {
        Self {
            policy: PolicyKind::default(),
            session_headers: vec!["x-session-id".to_owned()],
            kv_aware: kv_aware::Settings::default(),
            explain_ring: 1_024,
            shadow: Vec::new(),
        }
    }
}

impl Admission {
    /// The classes, with the one of all other tiers.
    pub fn classes(&self) -> Classes {
        Classes::new(self.classes.iter().map(|name| name.as_str().into()))
    }

    /// The marks.
    pub const fn marks(&self) -> Marks {
        Marks {
            waiting: self.max_waiting,
            kv_usage: self.max_kv_usage,
            in_flight: self.max_in_flight,
        }
    }
}

impl Default for Admission {
    /// 16 requests in a replica's queue, 97 % of its cache; 1,024 places, 30 s.
    fn default() -> Self {
        Self {
            enabled: true,
            max_waiting: Some(16),
            max_kv_usage: Some(0.97),
            max_in_flight: None,
            room: 1_024,
            max_wait: Duration::from_secs(30),
            classes: Vec::new(),
            tenant_header: None,
        }
    }
}

impl Default for Drain {
    /// No delay, and 30 s, which is what Kubernetes grants.
    fn default() -> Self {
        Self { delay: Duration::ZERO, timeout: Duration::from_secs(30) }
    }
}

impl Default for Log {
    /// Changes of state and a line for each request, up to 1,000 a second if all goes well.
    fn default() -> Self {
        Self {
            level: Level::default(),
            format: Format::default(),
            access: true,
            access_per_second: Some(1_000),
            content: content::Settings::default(),
        }
    }
}

impl Default for Capture {
    /// Nowhere; else everything, in up to 1 GiB.
    fn default() -> Self {
        Self { file: None, max_bytes: 1 << 30, sample: 1.0 }
    }
}

impl Level {
    /// The name, as filters of log events have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}
