//! Records the source of each value. Flags take precedence over environment variables, variables over the file,
//! and the file over the defaults.

use super::backends::section::BackendConfig;
use super::backends::usage::UsageMode;
use super::root::Config;
use super::sections::telemetry::log::{LogFormat, LogLevel};
use super::text::source::ConfigSource;
use super::text::yaml::{Outline, is_within};
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_routing::PolicyKind;

/// A value from a flag or an environment variable, with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideValue<T> {
    /// The value of the flag or the variable.
    pub value: T,
    /// The flag or the environment variable.
    pub source: ConfigSource,
}

/// The values of flags and environment variables. `None`: neither the flag nor the variable is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Overrides the key `backends`: replaces all `backends` of the file.
    pub backends: Option<OverrideValue<Vec<BackendAddress>>>,
    /// Overrides the key `listen`.
    pub listen: Option<OverrideValue<SocketAddr>>,
    /// Overrides the key `admin`.
    pub admin: Option<OverrideValue<SocketAddr>>,
    /// Overrides the key `routing.policy`.
    pub policy: Option<OverrideValue<PolicyKind>>,
    /// Overrides the key `usage`.
    pub usage: Option<OverrideValue<UsageMode>>,
    /// Overrides the key `drain.timeout`.
    pub drain_timeout: Option<OverrideValue<Duration>>,
    /// Overrides the key `log.level`.
    pub log_level: Option<OverrideValue<LogLevel>>,
    /// Overrides the key `log.format`.
    pub log_format: Option<OverrideValue<LogFormat>>,
    /// Overrides the key `log.access`.
    pub access_log: Option<OverrideValue<bool>>,
    /// Overrides the key `tracing.endpoint`.
    pub otlp_endpoint: Option<OverrideValue<String>>,
}

/// The source of every value, by its path, such as `drain.timeout`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigSources {
    /// The values that the file contains.
    outline: Outline,
    /// The paths that flags and environment variables override.
    overridden: Vec<(&'static str, ConfigSource)>,
}

impl Overrides {
    /// Writes the overrides into a configuration with the values of the file and the defaults. `outline`: the
    /// values of the file. Returns the source of every value.
    pub(super) fn apply(self, config: &mut Config, outline: Outline) -> ConfigSources {
        let mut sources = ConfigSources {
            outline,
            overridden: Vec::new(),
        };
        let at = |urls: Vec<BackendAddress>| urls.into_iter().map(BackendConfig::at).collect();
        sources.convert_override("backends", &mut config.backends, self.backends, at);
        sources.apply_override("listen", &mut config.listen, self.listen);
        sources.apply_override("admin", &mut config.admin, self.admin);
        sources.apply_override("routing.policy", &mut config.routing.policy, self.policy);
        sources.apply_override("usage", &mut config.usage, self.usage);
        sources.apply_override(
            "drain.timeout",
            &mut config.drain.timeout,
            self.drain_timeout,
        );
        sources.apply_override("log.level", &mut config.log.level, self.log_level);
        sources.apply_override("log.format", &mut config.log.format, self.log_format);
        sources.apply_override("log.access", &mut config.log.access, self.access_log);
        let endpoint = &mut config.tracing.endpoint;
        sources.apply_override("tracing.endpoint", endpoint, self.otlp_endpoint);
        sources
    }
}

impl ConfigSources {
    /// The source of the value at a path.
    pub fn source_of(&self, path: &str) -> ConfigSource {
        let mut overridden = self.overridden.iter();
        match overridden.find(|(parent, _)| is_within(path, parent)) {
            Some((_, source)) => source.clone(),
            None if self.outline.contains(path) => ConfigSource::File,
            None => ConfigSource::Default,
        }
    }

    pub(super) fn outline(&self) -> &Outline {
        &self.outline
    }

    fn apply_override<T, V: Into<T>>(
        &mut self,
        path: &'static str,
        value: &mut T,
        new: Option<OverrideValue<V>>,
    ) {
        self.convert_override(path, value, new, V::into);
    }

    fn convert_override<T, V>(
        &mut self,
        path: &'static str,
        value: &mut T,
        new: Option<OverrideValue<V>>,
        convert: impl FnOnce(V) -> T,
    ) {
        if let Some(new) = new {
            *value = convert(new.value);
            self.overridden.push((path, new.source));
        }
    }
}
