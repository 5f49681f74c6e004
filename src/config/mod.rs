//! One configuration, from four sources: flags, environment, file, defaults. Whatever is read is
//! either a whole valid [`Config`] or an error that says where it is wrong; there is nothing in
//! between. Each room owns its settings; here they are put together.

mod access;
mod backends;
mod check;
mod content;
mod discovery;
mod error;
mod failures;
mod file;
mod kubernetes;
mod limits;
mod objectives;
mod quality;
mod reload;
mod rules;
mod schema;
mod secret;
mod settings;
mod sources;
#[cfg(test)]
mod tests;
mod transport;
mod yaml;

pub use access::{Access, CacheSalt, SaltSource, load_keys};
pub use backends::BackendConfig;
pub use check::{Check, check};
pub use discovery::{Discovery, backends_in};
pub use error::{ConfigError, Place, Position};
pub use kubernetes::{Kubernetes, PodPort};
pub use limits::Limits;
pub use reload::Reloaded;
pub use schema::schema;
pub use secret::{Secret, SecretError, SecretValue};
pub use settings::{
    Admission, Answers, Capture, Drain, Format, Level, Log, Metrics, Otlp, Reload, Routing,
    TierKey, Tiers, UsageMode,
};
pub use sources::{Given, Overrides, Source, Sources};

use crate::backend::routes::Named;
use crate::backend::watch;
use crate::proxy::retry;
use crate::telemetry::otel;
use error::Cut;
use rules::Broken;
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
use tokenweir_net::tls::{ClientSettings, ServerSettings};

/// Everything that can be configured. Made by [`Config::load`], which checks it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where clients are served: an IP address and a port. `0.0.0.0:8080` lets other machines in.
    #[serde(deserialize_with = "read_socket")]
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Whether other processes of the same user may serve there too (`SO_REUSEPORT`).
    pub listen_reuse_port: bool,
    /// Where metrics, health and this configuration are served: an IP address and a port. Keep it
    /// away from clients.
    #[serde(deserialize_with = "read_socket")]
    #[schemars(with = "String")]
    pub admin: SocketAddr,
    /// The replicas. No two have the same name or address.
    pub backends: Vec<BackendConfig>,
    /// Where other replicas are found while the gateway runs.
    pub discovery: Vec<Discovery>,
    /// Names that clients may ask for, besides those that the replicas say they serve.
    pub models: Vec<Named>,
    /// How a replica is chosen for each request.
    pub routing: Routing,
    /// What happens while every replica that serves a model is full.
    pub admission: Admission,
    /// Who may come in.
    pub access: Access,
    /// TLS towards clients.
    pub tls: ServerSettings,
    /// TLS towards replicas.
    pub backend_tls: ClientSettings,
    /// What clients may have and take.
    pub limits: Limits,
    /// How long the replicas are waited for.
    pub timeouts: client::Limits,
    /// Whether a request that failed goes to another replica.
    pub retry: retry::Settings,
    /// When replicas are ejected, and how they come back.
    pub health: resilience::Settings,
    /// How the replicas are watched.
    pub watch: watch::Settings,
    /// Whether replicas are asked for usage that clients did not ask for.
    pub usage: UsageMode,
    /// The share of streams, from 0 to 1, for which vLLM is asked for the counts of every event
    /// (`continuous_usage_stats`), which are removed from the answer. Only with `usage: inject`.
    pub continuous_usage: f64,
    /// What is done to streams besides forwarding them.
    pub streams: StreamRules,
    /// When a silence is a stall.
    pub stalls: StallLimits,
    /// When a request is slow.
    pub slow: SlowLimits,
    /// What is looked for in answers.
    pub answers: Answers,
    /// How the tier of a request is told.
    pub tiers: Tiers,
    /// What is promised of requests. Each is counted as good or bad when it ends. Up to 20.
    pub slos: Vec<Objective>,
    /// How metrics are counted.
    pub metrics: Metrics,
    /// How the gateway ends.
    pub drain: Drain,
    /// When the configuration is read again, besides on SIGHUP.
    pub reload: Reload,
    /// What is logged.
    pub log: Log,
    /// Whether answers are as good as they were.
    pub quality: crate::telemetry::quality::Settings,
    /// Where traces go.
    pub tracing: otel::Configured,
    /// Where the traffic is written, without its text.
    pub capture: Capture,
}

/// A configuration, and where each of its values comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The source of every value.
    pub sources: Sources,
    /// The file, if there was one.
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
            routing: Routing::default(),
            admission: Admission::default(),
            access: Access::default(),
            tls: ServerSettings::default(),
            backend_tls: ClientSettings::default(),
            limits: Limits::default(),
            timeouts: client::Limits::default(),
            retry: retry::Settings::default(),
            health: resilience::Settings::default(),
            watch: watch::Settings::default(),
            usage: UsageMode::default(),
            continuous_usage: settings::CONTINUOUS_USAGE,
            streams: StreamRules::default(),
            stalls: StallLimits::default(),
            slow: SlowLimits::default(),
            answers: Answers::default(),
            tiers: Tiers::default(),
            slos: Vec::new(),
            metrics: Metrics::default(),
            drain: Drain::default(),
            reload: Reload::default(),
            log: Log::default(),
            quality: crate::telemetry::quality::Settings::default(),
            tracing: otel::Configured::default(),
            capture: Capture::default(),
        }
    }
}

impl Config {
    /// Reads a file, if there is one, puts the overrides over it and checks the whole. There may
    /// be no backend: see [`Loaded::require_backend`].
    pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<Loaded, ConfigError> {
        let Some(file) = file else {
            let loaded = Self::parse("", Path::new(""), overrides)?;
            return Ok(Loaded { file: None, ..loaded });
        };
        Self::parse(&file::read(file)?, file, overrides)
    }

    /// As [`Config::load`], of a text that stands in `file`.
    pub fn parse(text: &str, file: &Path, overrides: Overrides) -> Result<Loaded, ConfigError> {
        let (mut config, outline) = yaml::parse::<Self>(text, file)?;
        let sources = overrides.apply(&mut config, outline);
        rules::check(&config).map_err(|broken| locate(&broken, &sources, text, file))?;
        Ok(Loaded { config, sources, file: Some(file.to_owned()) })
    }
}

/// Finds the value that breaks a rule: at a flag, in a variable or in the file.
fn locate(broken: &Broken, sources: &Sources, text: &str, file: &Path) -> ConfigError {
    let error = ConfigError::new(&broken.problem);
    let given = broken.paths.iter().find(|path| sources.of(path) != Source::Default);
    let Some(path) = given.or(broken.paths.first()) else { return error };
    match sources.of(path) {
        source @ (Source::Flag(_) | Source::Environment(_)) => error.given_by(source),
        Source::File | Source::Default => match sources.outline().position(path) {
            Some(position) => error.at(file, position, text, Cut::Nothing),
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

// === impl Loaded ===

impl Loaded {
    /// Refuses a configuration that names no replica: nothing could be served.
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

    /// Every value with its source, for people and for the admin port. Secrets are references.
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
            value => json!({ "value": value, "source": self.sources.of(path).to_string() }),
        }
    }
}
