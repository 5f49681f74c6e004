//! The command line. Every flag has a twin in the environment: `--drain-timeout` of `serve` is
//! `TOKENWEIR_DRAIN_TIMEOUT`, and those of another command carry its name, as in
//! `TOKENWEIR_SIM_LISTEN`.

mod bench;
mod diagnose;
mod doctor;
mod generate;
mod replay;
mod shell;
mod top;
mod tune;

use crate::backend::address::Address;
use crate::config::{Format, Given, Level, Overrides, Source, UsageMode};
use crate::routing::PolicyKind;
use crate::{sim, units};
pub use bench::Bench;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
pub use diagnose::{Diagnose, Limit};
pub use doctor::{Doctor, FailOn};
pub use generate::{Generate, What};
pub use replay::Replay;
pub use shell::Guide;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
pub use top::Top;
pub use tune::{KvDtype, Tune};

/// A gateway in front of vLLM replicas: it routes by KV-cache pressure and measures every token.
#[derive(Debug, Parser)]
#[command(name = "tokenweir", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tokenweir demo                                        See it work, without a GPU
  tokenweir serve --backend http://127.0.0.1:8000       One vLLM server
  tokenweir serve --config tokenweir.yaml               Several, with names and keys
  tokenweir doctor --backend http://127.0.0.1:8000      Say what is wrong with a replica
  tokenweir diagnose --admin http://127.0.0.1:9090      Say what is the matter right now

Flags win over TOKENWEIR_* variables, variables over the file, the file over the defaults.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve clients.
    Serve(Box<Serve>),
    /// Read a configuration file and say what is wrong with it.
    Check(Check),
    /// Say what is wrong with replicas and a configuration, and what to change.
    Doctor(Box<Doctor>),
    /// Say what is the matter with replicas under load, with evidence, and what to do.
    Diagnose(Box<Diagnose>),
    /// Watch a running gateway in the terminal.
    Top(Box<Top>),
    /// Simulate vLLM replicas, without a GPU.
    Sim(sim::Settings),
    /// Run a gateway, simulated replicas and some traffic, all in this process.
    Demo(Demo),
    /// Try policies on a trace of traffic, in virtual time.
    Replay(Box<Replay>),
    /// Measure a server under load, from when each request was intended.
    Bench(Box<Bench>),
    /// Say which settings of vLLM fit a model, a GPU and what is promised.
    Tune(Box<Tune>),
    /// Print what is installed around the gateway: alerts, dashboards, man pages.
    Generate(Generate),
    /// Make a key for a client, and its hash for the file of keys.
    Key,
}

/// `tokenweir serve`.
#[derive(Debug, Clone)]
pub struct Serve {
    /// The configuration file, if there is one.
    pub config: Option<PathBuf>,
    /// What flags and variables say besides.
    pub overrides: Overrides,
}

/// `tokenweir check`.
#[derive(Debug, Clone, Args)]
pub struct Check {
    /// The configuration file.
    pub file: PathBuf,
    /// How to answer.
    #[arg(long, value_enum, default_value_t, env = "TOKENWEIR_CHECK_FORMAT")]
    pub format: CheckFormat,
}

/// How `tokenweir check` answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object.
    Json,
}

/// `tokenweir demo`.
#[derive(Debug, Clone, Args)]
pub struct Demo {
    /// End after this time, such as 30s. Until interrupted, if not given.
    #[arg(long = "for", value_name = "DURATION", env = "TOKENWEIR_DEMO_FOR")]
    #[arg(value_parser = units::duration::parse)]
    pub duration: Option<Duration>,
    /// Where clients are served.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    #[arg(env = "TOKENWEIR_DEMO_LISTEN")]
    pub listen: SocketAddr,
    /// Where metrics and health are served.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9090")]
    #[arg(env = "TOKENWEIR_DEMO_ADMIN")]
    pub admin: SocketAddr,
    /// Number of simulated replicas.
    #[arg(long, value_name = "N", default_value_t = 3, env = "TOKENWEIR_DEMO_REPLICAS")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub replicas: u16,
    /// Requests per second.
    #[arg(long, value_name = "RATE", default_value_t = 4.0, env = "TOKENWEIR_DEMO_RATE")]
    #[arg(value_parser = rate)]
    pub rate: f64,
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

/// Reads the command line and the environment of this process. The error prints itself, is also
/// how `--help` and `--version` come back, and knows its exit code.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = command().try_get_matches_from(&arguments);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    cli.map_err(|error| name_the_variable(error, &arguments))
}

/// The whole command line. Help names the variables and does not show what they hold.
fn command() -> clap::Command {
    let quiet = |flag: clap::Arg| flag.hide_env_values(true);
    Cli::command().mut_subcommands(|command| command.mut_args(quiet))
}

/// A bad value of a variable is reported as the flag's. Says so, if the flag was not given.
fn name_the_variable(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    if !matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        return error;
    }
    let Some(ContextValue::String(usage)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let flag = usage.split([' ', '=']).next().unwrap_or_default();
    let is_it = |argument: &OsString| argument.to_string_lossy().split('=').next() == Some(flag);
    if !flag.starts_with("--") || arguments.iter().any(is_it) {
        return error;
    }
    let command = command();
    let name = arguments.get(1).map(OsString::as_os_str).unwrap_or_default();
    let known = command.get_subcommands().find(|command| OsStr::new(command.get_name()) == name);
    let long = flag.trim_start_matches('-');
    let mut known = known.into_iter().flat_map(clap::Command::get_arguments);
    let variable = known.find(|argument| argument.get_long() == Some(long));
    if let Some(variable) = variable.and_then(clap::Arg::get_env) {
        let tip = format!("the value is that of the variable {}", variable.to_string_lossy());
        let tips = vec![StyledStr::from(tip)];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

fn rate(text: &str) -> Result<f64, &'static str> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or("expected a number above 0")
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
        Some(ValueSource::EnvVariable) => Source::Environment(variable("serve", id)),
        _ => Source::Flag(format!("--{}", id.replace('_', "-"))),
    };
    value.map(|value| Given { value, source })
}

/// The twin of a flag.
fn variable(command: &str, id: &str) -> String {
    let name = if command == "serve" { id.to_owned() } else { format!("{command}_{id}") };
    format!("TOKENWEIR_{}", name.replace('-', "_").to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cli(line: &str) -> Result<Cli, String> {
        parse(line.split(' ').map(OsString::from)).map_err(|error| error.to_string())
    }

    fn serve(line: &str) -> Serve {
        match cli(line).unwrap().command {
            Command::Serve(serve) => *serve,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_has_its_twin_in_the_environment() {
        for command in command().get_subcommands() {
            let flags = command.get_arguments().filter_map(|flag| Some((flag.get_long()?, flag)));
            for (long, flag) in flags.filter(|(long, _)| *long != "help") {
                let twin = flag.get_env().map(|name| name.to_string_lossy().into_owned());
                let expected = variable(command.get_name(), long);
                assert_eq!(twin, Some(expected), "{} --{long}", command.get_name());
            }
        }
    }

    #[test]
    fn the_names_that_sources_show_are_those_of_the_flags() {
        for flag in ServeFlags::augment_args(clap::Command::new("serve")).get_arguments() {
            let id = flag.get_id().as_str();
            assert_eq!(flag.get_long(), Some(id.replace('_', "-").as_str()));
            assert_eq!(flag.get_env(), Some(OsStr::new(&variable("serve", id))));
        }
    }

    #[test]
    fn the_flags_of_serve_become_overrides() {
        let line = "tokenweir serve --backend http://a:1 --backend b:2,c:3 --listen [::1]:1 \
                    --config x.yaml --policy p2c --access-log false --drain-timeout 1m";
        let Serve { config, overrides } = serve(line);
        let backends = overrides.backends.unwrap();
        let urls: Vec<String> = backends.value.iter().map(Address::to_string).collect();
        assert_eq!(urls, ["http://a:1", "http://b:2", "http://c:3"]);
        assert_eq!(backends.source, Source::Flag("--backend".to_owned()));
        assert_eq!(config, Some("x.yaml".into()));
        assert_eq!(overrides.policy.unwrap().value, PolicyKind::P2c);
        assert!(!overrides.access_log.unwrap().value);
        let drain = overrides.drain_timeout.unwrap();
        assert_eq!(drain.value, Duration::from_mins(1));
        assert_eq!(drain.source, Source::Flag("--drain-timeout".to_owned()));
        assert_eq!(overrides.admin, None);
    }

    #[test]
    fn a_bad_value_says_what_would_be_right() {
        let error = cli("tokenweir serve --backend http://a:1/v1").unwrap_err();
        assert!(error.contains("leave out the path"), "{error}");
        let error = cli("tokenweir serve --drain-timeout 30").unwrap_err();
        assert!(error.contains("write a number and its unit"), "{error}");
        let error = cli("tokenweir serve --policy kv").unwrap_err();
        assert!(error.contains("least_requests"), "{error}");
    }

    #[test]
    fn help_is_short_and_has_examples() {
        let help = cli("tokenweir --help").unwrap_err();
        assert!(help.contains("tokenweir serve --backend"), "{help}");
        assert!(help.lines().count() < 32, "{help}");
        assert!(cli("tokenweir --version").unwrap_err().starts_with("tokenweir "));
    }
}
