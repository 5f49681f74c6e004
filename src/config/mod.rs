//! Loads and validates the configuration from four sources: flags, environment variables, a file
//! and defaults. The result is a valid [`Config`] or an error with its location. Many sections are
//! defined by the modules that use them, the others by `sections`.
//!
//! ```text
//! text        a file as text, its YAML with positions, and the errors
//! sections    the types of the sections
//! root        the configuration: all sections
//! rules       conditions on values and between values
//! load        file, overrides, rules ─► LoadedConfig
//! mistakes    all mistakes of a file, for `check`
//! contradictions  valid settings that contradict each other
//! conversion  LoadedConfig ─► settings of the other modules
//! ```

mod contradictions;
mod conversion;
mod files;
mod load;
mod mistakes;
mod overrides;
mod reload;
mod root;
mod rules;
mod schema;
mod sections;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod violation;

pub use conversion::ConfiguredSecret;
pub use conversion::{
    BackendTlsContexts, PeerExchangeError, ProxySettingsError, WebhooksError, backend_tls_contexts,
};
pub use files::{
    CheckedFile, all_backends_in, backends_in, check_appendable, load_all_keys, load_keys,
};
pub use load::LoadedConfig;
pub use mistakes::Mistakes;
pub use overrides::{ConfigSources, OverrideValue, Overrides};
pub use reload::ReloadOutcome;
pub use root::Config;
pub use rules::tls::file_problems as tls_file_problems;
pub use schema::schema;
pub use sections::access::AccessConfig;
pub use sections::backends::BackendConfig;
pub use sections::discovery::DiscoveryConfig;
pub use sections::identities::IdentitiesConfig;
pub use sections::limits::LimitsConfig;
pub use sections::secret::{Secret, SecretError, SecretValue, UnreadableSecret};
pub use sections::settings::{
    AdmissionConfig, CostConfig, DrainConfig, LogConfig, LogFormat, LogLevel, MetricsConfig,
    RefusalDetectionConfig, ReloadConfig, RoutingConfig, TiersConfig, TraceCaptureConfig,
    UsageMode,
};
pub use text::error::{ConfigError, ConfigLocation, Position};
pub use text::source::ConfigSource;
