//! Loads and validates the configuration from four sources: flags, environment variables, a file
//! and defaults. The result is a valid [`Config`] or an error with its location. Most sections are
//! defined by the modules that use them.

mod access;
mod backends;
mod check;
mod discovery;
mod error;
mod failure_handling;
mod file;
mod kubernetes;
mod limits;
mod objectives;
mod payload_log;
mod quality;
mod reload;
mod rules;
mod schema;
mod secret;
mod settings;
#[cfg(test)]
mod tests;
mod tls;
mod value_sources;
mod yaml;

pub use access::{AccessConfig, CacheSaltConfig, SaltSource, load_keys};
pub use backends::BackendConfig;
pub use check::{ConfigCheck, check};
pub use discovery::{DiscoveryConfig, backends_in};
pub use error::{ConfigError, ConfigLocation, Position};
pub use kubernetes::{KubernetesConfig, PodPort};
pub use limits::LimitsConfig;
pub use reload::ReloadOutcome;
pub use schema::schema;
pub use secret::{Secret, SecretError, SecretValue};
pub use settings::{
    AdmissionConfig, DrainConfig, LogConfig, LogFormat, LogLevel, MetricsConfig, OtlpMetricsConfig,
    RefusalDetectionConfig, ReloadConfig, RoutingConfig, TierKey, TiersConfig, TraceCaptureConfig,
    UsageMode,
};
pub use value_sources::{ConfigSource, ConfigSources, OverrideValue, Overrides};

use crate::backend::health_checker;
use crate::backend::routes::ModelConfig;
use crate::proxy::retry;
use crate::telemetry::otel;
use error::ExcerptRedaction;
use rules::RuleViolation;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::{Map, Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use tokenweir_core::observe::{StallLimits, StreamRules};
use tokenweir_core::record::SlowLimits;
use tokenweir_core::resilience;
use tokenweir_core::slo::Objective;
use tokenweir_net::client;
use tokenweir_net::tls::{TlsClientSettings, TlsServerSettings};

/// The configuration. [`Config::load`] validates it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address of the client listener: an IP address and a port. `0.0.0.0:8080` accepts clients
    /// from other machines.
    #[serde(deserialize_with = "read_socket")]
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Whether other processes of the same user may listen on the same address (`SO_REUSEPORT`).
    pub listen_reuse_port: bool,
    /// Address of the admin listener, which serves metrics, health and this configuration: an IP
    /// address and a port. Clients must not be able to reach it.
    #[serde(deserialize_with = "read_socket")]
    #[schemars(with = "String")]
    pub admin: SocketAddr,
    /// The backends. Names and addresses must be unique.
    pub backends: Vec<BackendConfig>,
    /// Sources that discover further backends while the gateway runs.
    pub discovery: Vec<DiscoveryConfig>,
    /// Model names and aliases for clients, in addition to the models that the backends list.
    pub models: Vec<ModelConfig>,
    /// Selection of a backend for each request.
    pub routing: RoutingConfig,
    /// The admission queue, in which requests wait while every backend of a model is saturated.
    pub admission: AdmissionConfig,
    /// Authentication and permissions of clients and operators.
    pub access: AccessConfig,
    /// TLS of the client listener and the admin listener.
    pub tls: TlsServerSettings,
    /// TLS of the connections to backends.
    pub backend_tls: TlsClientSettings,
    /// Limits on clients: sizes, timeouts, connections and requests.
    pub limits: LimitsConfig,
    /// Timeouts of requests to backends.
    pub timeouts: client::HttpClientTimeouts,
    /// Retries of failed requests on other backends.
    pub retry: retry::RetrySettings,
    /// Circuit breakers, which eject and re-admit backends.
    pub circuit_breaker: resilience::CircuitBreakerSettings,
    /// Scrapes and health checks of backends.
    pub scrape: health_checker::ScrapeSettings,
    /// Whether the gateway requests usage that clients did not request.
    pub usage: UsageMode,
    /// Share of streams, 0 to 1, for which the gateway requests usage in every event from vLLM
    /// (`continuous_usage_stats`). The gateway removes it from the response. Needs `usage: inject`.
    pub continuous_usage: f64,
    /// Handling of streams.
    pub streams: StreamRules,
    /// Detection of stalled streams.
    pub stalls: StallLimits,
    /// Thresholds of slow requests.
    pub slow: SlowLimits,
    /// Detection of model refusals.
    pub refusal_detection: RefusalDetectionConfig,
    /// Assignment of a tier to each request.
    pub tiers: TiersConfig,
    /// Service level objectives. Each request counts as good or bad when it ends. Up to 20.
    pub slos: Vec<Objective>,
    /// Metrics and their export.
    pub metrics: MetricsConfig,
    /// The drain at shutdown.
    pub drain: DrainConfig,
    /// Reloads of the configuration without SIGHUP.
    pub reload: ReloadConfig,
    /// Logs.
    pub log: LogConfig,
    /// Monitoring of the quality of responses.
    pub quality: crate::telemetry::quality::QualitySettings,
    /// Export of traces.
    pub tracing: otel::TracingConfig,
    /// Capture of the traffic to a file, without texts of prompts and responses.
    pub trace_capture: TraceCaptureConfig,
}

/// A configuration with the source of each value.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// The source of every value.
    pub sources: ConfigSources,
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8080).into(),
            listen_reuse_port: false,
            admin: (Ipv4Addr::LOCALHOST, 9090).into(),
            backends: Vec::new(),
            discovery: Vec::new(),
            models: Vec::new(),
            routing: RoutingConfig::default(),
            admission: AdmissionConfig::default(),
            access: AccessConfig::default(),
            tls: TlsServerSettings::default(),
            backend_tls: TlsClientSettings::default(),
            limits: LimitsConfig::default(),
            timeouts: client::HttpClientTimeouts::default(),
            retry: retry::RetrySettings::default(),
            circuit_breaker: resilience::CircuitBreakerSettings::default(),
            scrape: health_checker::ScrapeSettings::default(),
            usage: UsageMode::default(),
            continuous_usage: settings::DEFAULT_CONTINUOUS_USAGE_RATIO,
            streams: StreamRules::default(),
            stalls: StallLimits::default(),
            slow: SlowLimits::default(),
            refusal_detection: RefusalDetectionConfig::default(),
            tiers: TiersConfig::default(),
            slos: Vec::new(),
            metrics: MetricsConfig::default(),
            drain: DrainConfig::default(),
            reload: ReloadConfig::default(),
            log: LogConfig::default(),
            quality: crate::telemetry::quality::QualitySettings::default(),
            tracing: otel::TracingConfig::default(),
            trace_capture: TraceCaptureConfig::default(),
        }
    }
}

impl Config {
    /// Reads a file, if there is one, applies the overrides and validates the result. A
    /// configuration without backends is valid here: see [`LoadedConfig::require_backend`].
    pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<LoadedConfig, ConfigError> {
        let Some(file) = file else {
            let loaded = Self::parse("", Path::new(""), overrides)?;
            return Ok(LoadedConfig { file: None, ..loaded });
        };
        Self::parse(&file::read(file)?, file, overrides)
    }

    /// Like [`Config::load`], with the content of `file` in `text`.
    pub fn parse(
        text: &str,
        file: &Path,
        overrides: Overrides,
    ) -> Result<LoadedConfig, ConfigError> {
        let (mut config, outline) = yaml::parse::<Self>(text, file)?;
        let sources = overrides.apply(&mut config, outline);
        rules::check(&config)
            .map_err(|violation| locate_violation(&violation, &sources, text, file))?;
        Ok(LoadedConfig { config, sources, file: Some(file.to_owned()) })
    }
}

/// The error of a rule violation at its location: a flag, an environment variable or a position in
/// the file.
fn locate_violation(
    violation: &RuleViolation,
    sources: &ConfigSources,
    text: &str,
    file: &Path,
) -> ConfigError {
    let error = ConfigError::new(&violation.problem);
    let set = violation.paths.iter().find(|path| sources.source_of(path) != ConfigSource::Default);
    let Some(path) = set.or(violation.paths.first()) else { return error };
    match sources.source_of(path) {
        source @ (ConfigSource::Flag(_) | ConfigSource::Environment(_)) => error.at_source(source),
        ConfigSource::File | ConfigSource::Default => match sources.outline().position(path) {
            Some(position) => error.at(file, position, text, ExcerptRedaction::Nothing),
            None => error,
        },
    }
}

fn read_socket<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    let problem =
        || format!("`{text}` is not an IP address and a port; write 127.0.0.1:8080 or [::1]:8080");
    text.parse().map_err(|_| D::Error::custom(problem()))
}

// === impl LoadedConfig ===

impl LoadedConfig {
    /// Fails if the configuration has neither backends nor discovery sources.
    pub fn require_backend(&self) -> Result<(), ConfigError> {
        if !self.config.backends.is_empty() || !self.config.discovery.is_empty() {
            return Ok(());
        }
        let error = match &self.file {
            Some(file) => ConfigError::new("no backend is configured").in_file(file),
            None => ConfigError::new("no backend is configured"),
        };
        let help = "give --backend http://HOST:PORT, set TOKENWEIR_BACKEND or add `backends` or \
                    `discovery` to the configuration file";
        Err(error.with_help(Some(help)))
    }

    /// Every value with its source, for `/config`. Secrets are shown as references.
    pub fn view(&self) -> Value {
        let values = serde_json::to_value(&self.config).unwrap_or_default();
        let file = self.file.as_ref().map(|file| file.display().to_string());
        json!({ "file": file, "config": self.annotate("", values) })
    }

    fn annotate(&self, path: &str, value: Value) -> Value {
        let below =
            |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                let annotate = |(key, value): (String, Value)| {
                    let value = self.annotate(&below(&key), value);
                    (key, value)
                };
                Value::Object(fields.into_iter().map(annotate).collect::<Map<_, _>>())
            }
            Value::Array(items) if !items.is_empty() => {
                let items = items.into_iter().enumerate();
                items.map(|(index, item)| self.annotate(&below(&index.to_string()), item)).collect()
            }
            value => json!({ "value": value, "source": self.sources.source_of(path).to_string() }),
        }
    }
}
