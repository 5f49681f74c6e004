//! The command line. Every flag has a twin in the environment: `--drain-timeout` of `serve` is
//! `TOKENWEIR_DRAIN_TIMEOUT`, and those of another command carry its name, as in
//! `TOKENWEIR_SIM_LISTEN`.

#[cfg(feature = "tools")]
use crate::commands::block_on;
#[cfg(feature = "tools")]
use crate::commands::{bench, demo, diagnose, doctor, generate, replay, sim, top, tune};
use crate::commands::{check, keygen, serve};
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

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
    Serve(Box<serve::args::Serve>),
    /// Read a configuration file and say what is wrong with it.
    Check(check::Check),
    /// Say what is wrong with replicas and a configuration, and what to change.
    #[cfg(feature = "tools")]
    Doctor(Box<doctor::args::Doctor>),
    /// Say what is the matter with replicas under load, with evidence, and what to do.
    #[cfg(feature = "tools")]
    Diagnose(Box<diagnose::args::Diagnose>),
    /// Watch a running gateway in the terminal.
    #[cfg(feature = "tools")]
    Top(Box<top::args::Top>),
    /// Simulate vLLM replicas, without a GPU.
    #[cfg(feature = "tools")]
    Sim(tokenweir_sim::Settings),
    /// Run a gateway, simulated replicas and some traffic, all in this process.
    #[cfg(feature = "tools")]
    Demo(demo::args::Demo),
    /// Try policies on a trace of traffic, in virtual time.
    #[cfg(feature = "tools")]
    Replay(Box<replay::args::Replay>),
    /// Measure a server under load, from when each request was intended.
    #[cfg(feature = "tools")]
    Bench(Box<bench::args::Bench>),
    /// Say which settings of vLLM fit a model, a GPU and what is promised.
    #[cfg(feature = "tools")]
    Tune(Box<tune::args::Tune>),
    /// Print what is installed around the gateway: alerts, dashboards, man pages.
    #[cfg(feature = "tools")]
    Generate(generate::args::Generate),
    /// Make a key for a client, and its hash for the file of keys.
    Key,
}

/// Reads the command line and the environment of this process. The error prints itself, is also
/// how `--help` and `--version` come back, and knows its exit code.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = command().try_get_matches_from(&arguments);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    cli.map_err(|error| name_the_variable(error, &arguments))
}

/// Runs a command to its end.
pub fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Serve(serve) => serve::run::run(*serve),
        Command::Check(check) => check::run(&check),
        #[cfg(feature = "tools")]
        Command::Diagnose(diagnose) => block_on(diagnose::run::run(*diagnose)),
        #[cfg(feature = "tools")]
        Command::Doctor(doctor) => block_on(doctor::run::run(*doctor)),
        #[cfg(feature = "tools")]
        Command::Top(top) => block_on(top::run::run(*top)),
        #[cfg(feature = "tools")]
        Command::Sim(settings) => block_on(sim::run(settings)),
        #[cfg(feature = "tools")]
        Command::Demo(demo) => block_on(demo::run::run(demo)),
        #[cfg(feature = "tools")]
        Command::Replay(replay) => replay::run::run(&replay),
        #[cfg(feature = "tools")]
        Command::Bench(bench) => bench::run::run(&bench),
        #[cfg(feature = "tools")]
        Command::Tune(tune) => tune::run::run(*tune),
        #[cfg(feature = "tools")]
        Command::Generate(generate) => generate::run::run(&generate),
        Command::Key => keygen::run(),
    }
}

/// The whole command line. Help names the variables and does not show what they hold.
pub(crate) fn command() -> clap::Command {
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

/// The twin of a flag.
pub(crate) fn variable(command: &str, id: &str) -> String {
    let name = if command == "serve" { id.to_owned() } else { format!("{command}_{id}") };
    format!("TOKENWEIR_{}", name.replace('-', "_").to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::serve::args::Serve;
    use crate::config::Source;
    use std::time::Duration;
    use tokenweir_core::address::Address;
    use tokenweir_core::routing::PolicyKind;

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
