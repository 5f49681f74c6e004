//! Command-line parsing and dispatch. Every flag has an environment variable: `--drain-timeout` of `serve` is
//! `TOKENWEIR_DRAIN_TIMEOUT`. For other commands, the name of the command is part of the variable, as in
//! `TOKENWEIR_SIM_LISTEN`.

#[cfg(feature = "tools")]
use crate::commands::block_on;
use crate::commands::{check, flag_variable_name, keygen, serve, user_hash};
#[cfg(feature = "tools")]
use crate::commands::{demo, diagnose, doctor, generate, operate, sim, top};
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// A gateway for vLLM backends: it routes by KV cache usage and measures every token.
#[derive(Debug, Parser)]
#[command(name = "tokenweir", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: CliCommand,
}

const EXAMPLES: &str = "\
Flags override TOKENWEIR_* variables, variables override the file, the file overrides defaults.

Examples:
  tokenweir demo                                        Try it without a GPU
  tokenweir serve --backend http://127.0.0.1:8000       Serve one vLLM server
  tokenweir serve --config tokenweir.yaml               Serve the backends of a file
  tokenweir doctor --backend http://127.0.0.1:8000      Check a backend
  tokenweir diagnose --admin http://127.0.0.1:9090      Show the current conditions of backends";

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run the gateway.
    Serve(Box<serve::args::ServeArgs>),
    /// Validate a configuration file.
    Check(check::CheckArgs),
    /// A command of the feature `tools`.
    #[cfg(feature = "tools")]
    #[command(flatten)]
    Tool(Box<ToolCommand>),
    /// Create an API key for a client, and its hash for the keys file.
    Keygen,
    /// Print the hash of a user in access log and spans.
    UserHash(user_hash::UserHashArgs),
}

/// The commands of the feature `tools`.
#[cfg(feature = "tools")]
#[derive(Debug, Subcommand)]
pub enum ToolCommand {
    /// Check backends, a configuration or a running gateway for mistakes, and suggest changes.
    Doctor(Box<doctor::args::DoctorArgs>),
    /// Diagnose backends under load: conditions, their evidence and remedies.
    Diagnose(Box<diagnose::args::DiagnoseArgs>),
    /// Print the state of a running gateway and of its backends.
    #[command(after_help = operate::args::STATUS_HELP)]
    Status(operate::args::OperatorArgs),
    /// Explain why a request was slow, and why it went to its backend.
    Explain(operate::args::ExplainArgs),
    /// Drain a backend: it gets no new requests and completes its open requests.
    Drain(operate::args::DrainArgs),
    /// Return a drained backend to service.
    Undrain(operate::args::UndrainArgs),
    /// Reload the configuration of a running gateway.
    #[command(after_help = operate::args::HELP)]
    Reload(operate::args::OperatorArgs),
    /// Show a running gateway in the terminal.
    Top(Box<top::args::TopArgs>),
    /// Run simulated vLLM backends, without a GPU.
    Sim(tokenweir_sim::SimulatorSettings),
    /// Run a gateway, simulated backends and a light load in one process.
    Demo(demo::args::DemoArgs),
    /// Print alerts, dashboards, references, manual pages and shell completions.
    Generate(generate::args::GenerateArgs),
}

/// The commands of the separate program `tokenweir-lab`. Typed after `tokenweir`, they cause a tip that names
/// that program.
const LAB_COMMANDS: [&str; 4] = ["bench", "replay", "tournament", "tune"];

/// Parses the command line of the gateway with [`parse_as`].
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    parse_as::<Cli>(arguments).map_err(name_lab_program)
}

/// Parses the command line and the environment variables of this process. `--help` and `--version` are returned
/// as errors too. An error contains the text to print and the exit code.
pub fn parse_as<C: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<C, clap::Error> {
    let arguments = with_flags(arguments.into_iter().collect());
    let matches = command_with_short_help::<C>().try_get_matches_from(&arguments);
    let cli = matches.and_then(|matches| C::from_arg_matches(&matches));
    cli.map_err(|error| name_env_variable(error, &arguments))
}

/// Replaces common forms of other programs by the flags of this one: `help COMMAND` becomes `COMMAND --help`,
/// and `version` and `-v` become `--version`.
fn with_flags(mut arguments: Vec<OsString>) -> Vec<OsString> {
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("help") => {
            arguments.remove(1);
            arguments.truncate(2);
            arguments.push("--help".into());
        }
        Some("version" | "-v") => arguments[1] = "--version".into(),
        _ => {}
    }
    arguments
}

/// Prints the text of an error of [`parse_as`], and returns its exit code.
pub fn report(error: &clap::Error) -> ExitCode {
    // A closed output pipe is ignored.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Runs a command until it ends. Returns the exit code of the process.
pub fn run(cli: Cli) -> ExitCode {
    match cli.command {
        CliCommand::Serve(serve) => serve::run::run(*serve),
        CliCommand::Check(check) => check::run(&check),
        #[cfg(feature = "tools")]
        CliCommand::Tool(tool) => run_tool(*tool),
        CliCommand::Keygen => keygen::run(),
        CliCommand::UserHash(user) => user_hash::run(&user),
    }
}

#[cfg(feature = "tools")]
fn run_tool(tool: ToolCommand) -> ExitCode {
    match tool {
        ToolCommand::Diagnose(diagnose) => block_on(diagnose::run::run(*diagnose)),
        ToolCommand::Doctor(doctor) => block_on(doctor::run::run(*doctor)),
        ToolCommand::Status(status) => block_on(operate::run::status(status)),
        ToolCommand::Explain(explain) => block_on(operate::run::explain(explain)),
        ToolCommand::Drain(drain) => block_on(operate::run::drain(drain)),
        ToolCommand::Undrain(undrain) => block_on(operate::run::undrain(undrain)),
        ToolCommand::Reload(reload) => block_on(operate::run::reload(reload)),
        ToolCommand::Top(top) => block_on(top::run::run(*top)),
        ToolCommand::Sim(settings) => block_on(sim::run(settings)),
        ToolCommand::Demo(demo) => block_on(demo::run::run(demo)),
        ToolCommand::Generate(generate) => generate::run::run(&generate, &command()),
    }
}

/// Builds the clap definition of the gateway's command line.
#[cfg(any(test, feature = "tools"))]
pub(crate) fn command() -> clap::Command {
    definition::<Cli>()
}

/// Builds the clap definition of a command line. Each flag has the environment variable that
/// [`flag_variable_name`] names. Manual pages show the names of the variables and hide their values.
fn definition<C: CommandFactory>() -> clap::Command {
    C::command().mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        command.mut_args(|argument| match argument.get_long() {
            Some(flag) => {
                let variable = flag_variable_name(&name, flag);
                argument.env(variable).hide_env_values(true)
            }
            None => argument,
        })
    })
}

/// Like [`definition`], but with shorter help: instead of each flag's environment variable, one sentence states
/// how the name of a variable follows from its flag.
fn command_with_short_help<C: CommandFactory>() -> clap::Command {
    definition::<C>().mut_subcommands(|command| {
        let named = |flag: &clap::Arg| {
            Some(format!(
                "--{} is {}",
                flag.get_long()?,
                flag.get_env()?.to_string_lossy()
            ))
        };
        let Some(example) = command.get_arguments().find_map(named) else {
            return command;
        };
        let rule = format!("Each flag has an environment variable: {example}.");
        let help = match command.get_after_help() {
            Some(help) => format!("{help}\n\n{rule}"),
            None => rule,
        };
        command
            .mut_args(|flag| flag.hide_env(true))
            .after_help(help)
    })
}

/// For an error about an invalid value from an environment variable, adds a tip that names the variable. Clap
/// reports such a value as the value of the flag.
fn name_env_variable(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    if !matches!(
        error.kind(),
        ErrorKind::ValueValidation | ErrorKind::InvalidValue
    ) {
        return error;
    }
    let Some(ContextValue::String(usage)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let flag = usage.split([' ', '=']).next().unwrap_or_default();
    let is_flag = |argument: &OsString| argument.to_string_lossy().split('=').next() == Some(flag);
    let (Some(command), Some(long)) = (arguments.get(1), flag.strip_prefix("--")) else {
        return error;
    };
    if !arguments.iter().any(is_flag) {
        let variable = flag_variable_name(&command.to_string_lossy(), long);
        insert_tip(
            &mut error,
            format!("the value is that of the variable {variable}"),
        );
    }
    error
}

/// For an error about a command of the program `tokenweir-lab`, adds a tip that names that program.
fn name_lab_program(mut error: clap::Error) -> clap::Error {
    let invalid = error.get(ContextKind::InvalidSubcommand);
    let Some(ContextValue::String(command)) = invalid else {
        return error;
    };
    if LAB_COMMANDS.contains(&command.as_str()) {
        let tip = format!("it is a command of another program: tokenweir-lab {command}");
        error.remove(ContextKind::SuggestedSubcommand);
        insert_tip(&mut error, tip);
    }
    error
}

fn insert_tip(error: &mut clap::Error, tip: String) {
    let tips = vec![StyledStr::from(tip)];
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_engine::address::BackendAddress;

    fn parse_line(line: &str) -> Result<Cli, String> {
        parse(line.split(' ').map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_has_no_errors() {
        command().debug_assert();
    }

    #[test]
    fn ids_and_variables_follow_from_flags() {
        let program = command();
        let serve = program.find_subcommand("serve").unwrap();
        for (long, flag) in serve
            .get_arguments()
            .map(|flag| (flag.get_long().unwrap(), flag))
        {
            // `serve` derives the names of the sources of its values from the ids.
            assert_eq!(flag.get_id().as_str().replace('_', "-"), long);
            let variable = format!("TOKENWEIR_{}", long.replace('-', "_").to_uppercase());
            assert_eq!(flag.get_env().unwrap(), variable.as_str());
        }
    }

    #[test]
    fn serve_takes_all_backend_flags() {
        let line = "tokenweir serve --backend http://a:1 --backend b:2,c:3";
        let CliCommand::Serve(serve) = parse_line(line).unwrap().command else {
            panic!("{line}")
        };
        let backends = serve.overrides.backends.unwrap();
        let urls: Vec<String> = backends
            .value
            .iter()
            .map(BackendAddress::to_string)
            .collect();
        assert_eq!(urls, ["http://a:1", "http://b:2", "http://c:3"]);
    }

    #[test]
    fn an_invalid_flag_value_is_reported_with_help() {
        let error = parse_line("tokenweir serve --backend http://a:1/v1").unwrap_err();
        assert!(error.contains("leave out `/v1`"), "{error}");
        let error = parse_line("tokenweir serve --drain-timeout 30").unwrap_err();
        assert!(error.contains("write a number and its unit"), "{error}");
        let error = parse_line("tokenweir serve --policy kv").unwrap_err();
        assert!(error.contains("least_requests"), "{error}");
    }

    #[test]
    fn a_command_of_the_lab_names_its_program() {
        for command in LAB_COMMANDS {
            let error = parse_line(&format!("tokenweir {command} x")).unwrap_err();
            assert!(
                error.contains(&format!("tokenweir-lab {command}")),
                "{error}"
            );
        }
    }

    #[test]
    fn the_help_is_short_and_contains_an_example() {
        let help = parse_line("tokenweir --help").unwrap_err();
        assert!(help.contains("tokenweir serve --backend"), "{help}");
        assert!(help.lines().count() < 40, "{help}");
        assert_eq!(parse_line("tokenweir help").unwrap_err(), help);
        let version = parse_line("tokenweir --version").unwrap_err();
        assert!(version.starts_with("tokenweir "), "{version}");
        for form in ["version", "-v", "-V"] {
            assert_eq!(
                parse_line(&format!("tokenweir {form}")).unwrap_err(),
                version
            );
        }
    }

    #[test]
    fn each_help_has_one_sentence_about_variables() {
        for command in command().get_subcommands().map(clap::Command::get_name) {
            let help = parse_line(&format!("tokenweir {command} --help")).unwrap_err();
            assert!(!help.contains("[env: "), "{help}");
            assert_eq!(
                parse_line(&format!("tokenweir help {command}")).unwrap_err(),
                help
            );
            let rules = help
                .matches("Each flag has an environment variable: --")
                .count();
            assert_eq!(rules, usize::from(command != "keygen"), "{help}");
        }
        let help = parse_line("tokenweir top -h").unwrap_err();
        assert!(help.contains("--admin is TOKENWEIR_TOP_ADMIN."), "{help}");
    }

    #[test]
    fn help_paragraphs_have_no_line_breaks() {
        let program = command();
        for command in std::iter::once(&program).chain(program.get_subcommands()) {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            for paragraph in help
                .split("\n\n")
                .filter(|it| !it.starts_with("Examples:\n"))
            {
                assert!(
                    !paragraph.contains('\n'),
                    "{}: {paragraph}",
                    command.get_name()
                );
            }
        }
    }
}
