//! The command line. It follows the rules of the gateway's command line: `--rate` of `bench` is
//! `TOKENWEIR_BENCH_RATE`.

use crate::{bench, replay, tournament, tune};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Experiments with tokenweir: simulated routing, load tests and sizing.
#[derive(Debug, Parser)]
#[command(name = "tokenweir-lab", version, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Compare routing policies on a traffic trace in virtual time.
    Replay(Box<replay::args::ReplayArgs>),
    /// Compare routing policies in generated setups in virtual time.
    Tournament(tournament::args::TournamentArgs),
    /// Load-test a server. Latencies count from the intended start of each request.
    Bench(Box<bench::args::BenchArgs>),
    /// Compute vLLM settings for a model, a GPU and latency targets.
    Tune(Box<tune::args::TuneArgs>),
}

/// Runs a command until it ends. Returns the exit code of the process.
pub fn run(cli: Cli) -> ExitCode {
    match cli.command {
        CliCommand::Replay(arguments) => replay::run::run(&arguments),
        CliCommand::Tournament(arguments) => tournament::run::run(&arguments),
        CliCommand::Bench(arguments) => bench::run::run(&arguments),
        CliCommand::Tune(arguments) => tune::run::run(*arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_compose_file_uses_existing_bench_flags() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docker/compose.yml");
        let composition = std::fs::read_to_string(file).unwrap();
        let commands = composition
            .lines()
            .filter_map(|line| line.trim().strip_prefix("command: ["));
        let own = commands
            .filter(|command| command.starts_with("bench"))
            .map(|command| {
                let words = command.trim_end_matches(']').split(',');
                let words = words.map(|word| word.trim().trim_matches('"'));
                Cli::try_parse_from(["tokenweir-lab"].into_iter().chain(words)).map(drop)
            });
        let results: Vec<_> = own
            .map(|parsed| parsed.map_err(|error| error.to_string()))
            .collect();
        assert_eq!(results, [Ok(())]);
    }
}
