//! Loads and validates the configuration from four sources: flags, environment variables, a file
//! and defaults. The result is a valid [`Config`] or an error with its location. Each section is a file in
//! `backends`, `sections` or the crate of an option with the contract of [`tokenweir_settings::ConfigSection`]: its values, rules,
//! reload class, secrets and files. The values of many sections are types of the modules that use them.
//!
//! ```text
//! text        a file as text, its YAML with positions, and the errors
//! backends    the sections of the backends and of their discovery
//! sections    the other sections
//! root        the configuration: the list of all sections
//! references  what the rules of a section read from other sections
//! load        file, overrides, rules ─► LoadedConfig
//! mistakes    all mistakes of a file, for `check`
//! upgrade     files of earlier versions, for `check --upgrade`
//! contradictions  valid settings that contradict each other
//! conversion  LoadedConfig ─► settings of the other modules
//! ```

mod backends;
mod contradictions;
mod conversion;
mod files;
mod load;
mod mistake;
mod mistakes;
mod overrides;
mod references;
mod reload;
mod root;
mod schema;
mod sections;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod upgrade;

pub use backends::discovery::DiscoveryConfig;
pub use backends::section::BackendConfig;
pub use backends::usage::UsageMode;
pub use contradictions::Contradiction;
pub use conversion::{
    BackendTlsContexts, ProxySettingsError, backend_tls_contexts, tls_file_problems,
};
pub use files::{
    CheckedFile, all_backends_in, backends_in, check_appendable, load_all_keys, load_keys,
};
pub use load::LoadedConfig;
pub use mistakes::Mistakes;
pub use overrides::{ConfigSources, OverrideValue, Overrides};
pub use reload::ReloadOutcome;
pub use root::Config;
pub use schema::schema;
pub use sections::clients::access::AccessConfig;
pub use sections::clients::identities::IdentitiesConfig;
pub use sections::clients::limits::LimitsConfig;
pub use sections::clients::tiers::TiersConfig;
pub use sections::process::drain::DrainConfig;
pub use sections::process::reload::ReloadConfig;
pub use sections::responses::refusal_detection::RefusalDetectionConfig;
pub use sections::telemetry::log::{LogConfig, LogFormat, LogLevel};
pub use sections::telemetry::metrics::MetricsConfig;
pub use sections::upstream::admission::AdmissionConfig;
pub use sections::upstream::routing::RoutingConfig;
pub use text::error::{ConfigError, ConfigLocation, Position};
pub use text::source::ConfigSource;
pub use tokenweir_settings::{
    ConfiguredSecret, ListedSecret, OutputFile, ReloadClass, Secret, SecretError, SecretValue,
    UnreadableSecret,
};
pub use upgrade::{
    EditedLines, QueriedMetric, UpgradeNote, UpgradedFile, UpgradedKind, upgrade_file,
};
