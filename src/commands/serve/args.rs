//! The flags of `serve`. A flag overrides its environment variable, which overrides the
//! configuration file.

use crate::commands::{BackendList, flag_variable_name};
use crate::config::{ConfigSource, LogFormat, LogLevel, OverrideValue, Overrides, UsageMode};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, FromArgMatches};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_engine::address::parse_listen_address;
use tokenweir_protocol::units;
use tokenweir_routing::PolicyKind;

/// Arguments of `tokenweir serve`.
#[derive(Debug, Clone)]
pub struct ServeArgs {
    /// The configuration file. `None`: the gateway runs without a file.
    pub config: Option<PathBuf>,
    /// Values of flags and environment variables. They override the values of the file.
    pub overrides: Overrides,
}

/// The flags of `serve` as clap parses them, without the source of each value.
#[derive(Debug, Args)]
struct ServeFlags {
    /// URL of a backend; can be given several times, or as a list with commas.
    #[arg(long, value_name = "URL", action = ArgAction::Append, value_parser = BackendList::parse)]
    backend: Option<Vec<BackendList>>,
    /// Address of the client listener. [default: 127.0.0.1:8080]
    #[arg(long, value_name = "[IP]:PORT", value_parser = parse_listen_address)]
    listen: Option<SocketAddr>,
    /// Address of the admin listener (metrics, health, state). [default: 127.0.0.1:9090]
    #[arg(long, value_name = "[IP]:PORT", value_parser = parse_listen_address)]
    admin: Option<SocketAddr>,
    /// Configuration file. Flags and environment variables override its values.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[arg(
        help = "Whether the gateway requests token counts for clients that did not. [default: inject]"
    )]
    #[arg(long, value_enum)]
    usage: Option<UsageMode>,
    #[arg(help = "Routing policy. [default: kv_aware]")]
    #[arg(long, value_parser = policy_parser())]
    policy: Option<PolicyKind>,
    /// Lowest level of messages that are logged. [default: info]
    #[arg(long, value_name = "LEVEL", value_enum)]
    log_level: Option<LogLevel>,
    /// Format of log lines. [default: auto]
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    /// Whether the gateway writes an access log line for each request. [default: true]
    #[arg(long, value_name = "BOOL")]
    access_log: Option<bool>,
    /// Time limit for running requests after the shutdown signal. [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = units::duration::parse)]
    drain_timeout: Option<Duration>,
    #[arg(help = "OTLP endpoint for traces, such as http://127.0.0.1:4317. [default: none]")]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
}

impl Args for ServeArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        ServeFlags::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        ServeFlags::augment_args_for_update(command)
    }
}

impl FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = ServeFlags::from_arg_matches(matches)?;
        Ok(Self {
            config: flags.config.clone(),
            overrides: flags.into_overrides(matches),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ServeFlags {
    fn into_overrides(self, matches: &ArgMatches) -> Overrides {
        Overrides {
            backends: override_value(matches, "backend", self.backend.map(BackendList::flatten)),
            listen: override_value(matches, "listen", self.listen),
            admin: override_value(matches, "admin", self.admin),
            policy: override_value(matches, "policy", self.policy),
            usage: override_value(matches, "usage", self.usage),
            drain_timeout: override_value(matches, "drain_timeout", self.drain_timeout),
            log_level: override_value(matches, "log_level", self.log_level),
            log_format: override_value(matches, "log_format", self.log_format),
            access_log: override_value(matches, "access_log", self.access_log),
            otlp_endpoint: override_value(matches, "otlp_endpoint", self.otlp_endpoint),
        }
    }
}

/// Adds the source to a value that clap has parsed. The source is the flag with the clap id `id`, or its
/// environment variable. `None`: neither is set.
fn override_value<T>(matches: &ArgMatches, id: &str, value: Option<T>) -> Option<OverrideValue<T>> {
    let source = match matches.value_source(id) {
        Some(ValueSource::EnvVariable) => {
            ConfigSource::Environment(flag_variable_name("serve", id))
        }
        _ => ConfigSource::Flag(format!("--{}", id.replace('_', "-"))),
    };
    value.map(|value| OverrideValue { value, source })
}

/// The parser of a routing policy. It knows all names with their help texts.
fn policy_parser() -> impl TypedValueParser<Value = PolicyKind> {
    let names = PossibleValuesParser::new(PolicyKind::ALL.map(policy_value));
    names.try_map(|name| {
        let kind = PolicyKind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == name);
        kind.ok_or("unknown policy")
    })
}

fn policy_value(kind: PolicyKind) -> PossibleValue {
    let help = match kind {
        PolicyKind::KvAware => {
            "The least predicted time to first token, from queue, prompt, cached prefix and KV cache usage"
        }
        PolicyKind::RoundRobin => "Each backend in turn, by weight",
        PolicyKind::Random => "A random backend, by weight",
        PolicyKind::LeastRequests => {
            "The fewest requests of this gateway in flight, relative to the weight"
        }
        PolicyKind::P2c => "The less loaded of two random backends",
        PolicyKind::PrefixAffinity => {
            "The backend that was sent the longest prefix of the prompt before, unless it is overloaded"
        }
        PolicyKind::Session => {
            "The same backend for all requests of a session, unless it is overloaded"
        }
    };
    PossibleValue::new(kind.as_str()).help(help)
}
