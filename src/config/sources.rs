//! Where each value comes from. Flags win over the environment, the environment over the file,
//! the file over the defaults.

use super::settings::{Format, Level, UsageMode};
use super::yaml::Outline;
use super::{BackendConfig, Config};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::routing::PolicyKind;

/// Where a value comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Source {
    /// Nobody said otherwise.
    #[default]
    Default,
    /// The configuration file.
    File,
    /// This environment variable.
    Environment(String),
    /// This flag, with its dashes.
    Flag(String),
}

/// A value from outside the file, and where it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given<T> {
    /// The value.
    pub value: T,
    /// A flag or an environment variable.
    pub source: Source,
}

/// What flags and environment variables say. `None`: nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Instead of all of the file's `backends`.
    pub backends: Option<Given<Vec<Address>>>,
    /// `listen`.
    pub listen: Option<Given<SocketAddr>>,
    /// `admin`.
    pub admin: Option<Given<SocketAddr>>,
    /// `routing.policy`.
    pub policy: Option<Given<PolicyKind>>,
    /// `usage`.
    pub usage: Option<Given<UsageMode>>,
    /// `drain.timeout`.
    pub drain_timeout: Option<Given<Duration>>,
    /// `log.level`.
    pub log_level: Option<Given<Level>>,
    /// `log.format`.
    pub log_format: Option<Given<Format>>,
    /// `log.access`.
    pub access_log: Option<Given<bool>>,
    /// `tracing.endpoint`.
    pub otlp_endpoint: Option<Given<String>>,
}

/// The source of every value, by its path, such as `drain.timeout`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    outline: Outline,
    overridden: Vec<(&'static str, Source)>,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File => f.write_str("file"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

// === impl Overrides ===

impl Overrides {
    /// Puts them over what the file says.
    pub(super) fn apply(self, config: &mut Config, outline: Outline) -> Sources {
        let mut sources = Sources { outline, overridden: Vec::new() };
        let backends = self.backends.map(|Given { value, source }| Given {
            value: value.into_iter().map(BackendConfig::at).collect(),
            source,
        });
        sources.put("backends", &mut config.backends, backends);
        sources.put("listen", &mut config.listen, self.listen);
        sources.put("admin", &mut config.admin, self.admin);
        sources.put("routing.policy", &mut config.routing.policy, self.policy);
        sources.put("usage", &mut config.usage, self.usage);
        sources.put("drain.timeout", &mut config.drain.timeout, self.drain_timeout);
        sources.put("log.level", &mut config.log.level, self.log_level);
        sources.put("log.format", &mut config.log.format, self.log_format);
        sources.put("log.access", &mut config.log.access, self.access_log);
        let endpoint =
            self.otlp_endpoint.map(|Given { value, source }| Given { value: Some(value), source });
        sources.put("tracing.endpoint", &mut config.tracing.endpoint, endpoint);
        sources
    }
}

// === impl Sources ===

impl Sources {
    /// The source of the value at a path.
    pub fn of(&self, path: &str) -> Source {
        let is_below = |parent: &str| {
            let rest = path.strip_prefix(parent);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        match self.overridden.iter().find(|(parent, _)| is_below(parent)) {
            Some((_, source)) => source.clone(),
            None if self.outline.contains(path) => Source::File,
            None => Source::Default,
        }
    }

    pub(super) fn outline(&self) -> &Outline {
        &self.outline
    }

    fn put<T>(&mut self, path: &'static str, value: &mut T, given: Option<Given<T>>) {
        if let Some(given) = given {
            *value = given.value;
            self.overridden.push((path, given.source));
        }
    }
}
