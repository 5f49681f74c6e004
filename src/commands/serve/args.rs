//! The flags of `serve`. They override environment variables, which override the configuration file.

use crate::config::{Format, Given, Level, Overrides, Source, UsageMode};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, FromArgMatches};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::routing::PolicyKind;
use tokenweir_core::units;

/// `tokenweir serve`.
#[derive(Debug, Clone)]
pub struct Serve {
    /// The configuration file, if there is one.
    pub config: Option<PathBuf>,
    /// What flags and variables say besides.
    pub overrides: Overrides,
}

/// The flags of `serve`, before it is known who gave them.
#[derive(Debug, Args)]
struct ServeFlags {
    /// A replica; may be given several times, or several with commas.
    #[arg(long, value_name = "URL", value_delimiter = ',', action = ArgAction::Append)]
    #[arg(env = "TOKENWEIR_BACKEND", value_parser = Address::parse)]
    backend: Option<Vec<Address>>,
    /// Where clients are served. [default: 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT", env = "TOKENWEIR_LISTEN")]
    listen: Option<SocketAddr>,
    /// Where metrics and health are served. [default: 127.0.0.1:9090]
    #[arg(long, value_name = "IP:PORT", env = "TOKENWEIR_ADMIN")]
    admin: Option<SocketAddr>,
    /// A configuration file; what it says gives way to flags and variables.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_CONFIG")]
    config: Option<PathBuf>,
    #[arg(
        help = "Whether replicas are asked for usage that clients did not ask for. [default: inject]"
    )]
    #[arg(long, value_enum, env = "TOKENWEIR_USAGE")]
    usage: Option<UsageMode>,
    #[arg(help = "How a replica is chosen. [default: kv_aware]")]
    #[arg(long, value_enum, env = "TOKENWEIR_POLICY")]
    policy: Option<PolicyKind>,
    /// The least important events that are logged. [default: info]
    #[arg(long, value_name = "LEVEL", value_enum, env = "TOKENWEIR_LOG_LEVEL")]
    log_level: Option<Level>,
    /// The form of log lines. [default: auto]
    #[arg(long, value_name = "FORMAT", value_enum, env = "TOKENWEIR_LOG_FORMAT")]
    log_format: Option<Format>,
    /// Whether each request gets a log line. [default: true]
    #[arg(long, value_name = "BOOL", env = "TOKENWEIR_ACCESS_LOG")]
    access_log: Option<bool>,
    /// How long running requests may go on after the signal to end. [default: 30s]
    #[arg(long, value_name = "DURATION", env = "TOKENWEIR_DRAIN_TIMEOUT")]
    #[arg(value_parser = units::duration::parse)]
    drain_timeout: Option<Duration>,
    #[arg(help = "Where traces go, such as http://127.0.0.1:4317. [default: nowhere]")]
    #[arg(long, value_name = "URL", env = "TOKENWEIR_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
}

// === impl Serve ===

impl Args for Serve {
    fn augment_args(command: clap::Command) -> clap::Command {
        ServeFlags::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        ServeFlags::augment_args_for_update(command)
    }
}

impl FromArgMatches for Serve {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = ServeFlags::from_arg_matches(matches)?;
        Ok(Self { config: flags.config.clone(), overrides: flags.overrides(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ServeFlags {
    fn overrides(self, matches: &ArgMatches) -> Overrides {
        Overrides {
            backends: given(matches, "backend", self.backend),
            listen: given(matches, "listen", self.listen),
            admin: given(matches, "admin", self.admin),
            policy: given(matches, "policy", self.policy),
            usage: given(matches, "usage", self.usage),
            drain_timeout: given(matches, "drain_timeout", self.drain_timeout),
            log_level: given(matches, "log_level", self.log_level),
            log_format: given(matches, "log_format", self.log_format),
            access_log: given(matches, "access_log", self.access_log),
            otlp_endpoint: given(matches, "otlp_endpoint", self.otlp_endpoint),
        }
    }
}

/// A value with its source: the flag of this id, or the flag's twin.
fn given<T>(matches: &ArgMatches, id: &str, value: Option<T>) -> Option<Given<T>> {
    let source = match matches.value_source(id) {
        Some(ValueSource::EnvVariable) => Source::Environment(crate::cli::variable("serve", id)),
        _ => Source::Flag(format!("--{}", id.replace('_', "-"))),
    };
    value.map(|value| Given { value, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::variable;
    use std::ffi::OsStr;

    #[test]
    fn the_names_that_sources_show_are_those_of_the_flags() {
        for flag in ServeFlags::augment_args(clap::Command::new("serve")).get_arguments() {
            let id = flag.get_id().as_str();
            assert_eq!(flag.get_long(), Some(id.replace('_', "-").as_str()));
            assert_eq!(flag.get_env(), Some(OsStr::new(&variable("serve", id))));
        }
    }
}
