//! Runs the tournament of routers and prints the standings.

use super::args::TournamentArgs;
use crate::progress::ProgressLine;
use serde::Serialize;
use std::process::ExitCode;
use tokenweir::commands::{report_config_error, report_error};
use tokenweir::config::{Config, Overrides};
use tokenweir_core::clock;
use tokenweir_core::routing::PolicyKind;
use tokenweir_replay::routers::RouterKind;
use tokenweir_replay::tournament::standings::{self, Standing};
use tokenweir_replay::tournament::{self, Cell, CellResult};

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct TournamentReport<'a> {
    seed: u64,
    /// Runs of each setup.
    repeats: u64,
    standings: &'a [Standing],
    cells: &'a [CellResult],
}

/// Number of setups that are printed: the setups in which the examined policy has the greatest
/// regret.
const MAX_PRINTED_CELLS: usize = 10;
/// The policy whose setups with the greatest regret are printed.
const EXAMINED_POLICY: RouterKind = RouterKind::Shipped(PolicyKind::KvAware);

pub(crate) fn run(arguments: &TournamentArgs) -> ExitCode {
    let loaded = match Config::load(arguments.config.as_deref(), Overrides::default()) {
        Ok(loaded) => loaded,
        Err(error) => return report_config_error(&error),
    };
    let policy = loaded.config.routing.policy(&loaded.config.slos);
    let kinds = match &*arguments.policy {
        [] => RouterKind::all(),
        kinds => kinds.to_vec(),
    };
    let gateways = usize::from(arguments.gateways);
    let draw = |number| Cell { gateways, ..Cell::draw(arguments.setup_seed, number) };
    let cells: Vec<Cell> = (0..arguments.setups).map(draw).collect();
    let progress = ProgressLine::new("setups", Some(cells.len()));
    let results = tournament::run(&cells, &kinds, &policy, clock::now(), arguments.seeds, &|_| {
        progress.step();
    });
    drop(progress);
    let standings = standings::standings(&results, &kinds);
    if arguments.json {
        let report = TournamentReport {
            seed: arguments.setup_seed,
            repeats: arguments.seeds,
            standings: &standings,
            cells: &results,
        };
        return print_json(&report);
    }
    print_standings(&results, &standings);
    ExitCode::SUCCESS
}

#[expect(clippy::print_stdout, reason = "standard output is the result of the command")]
fn print_json(report: &TournamentReport<'_>) -> ExitCode {
    match serde_json::to_string_pretty(report) {
        Ok(json) => println!("{json}"),
        Err(error) => return report_error(&error),
    }
    ExitCode::SUCCESS
}

#[expect(clippy::print_stdout, reason = "standard output is the result of the command")]
fn print_standings(results: &[CellResult], standings: &[Standing]) {
    println!(
        "{} setups; regret in points of goodput against the best policy of a setup",
        results.len()
    );
    println!();
    println!(
        "{:<18} {:>8} {:>8} {:>10} {:>10} {:>8}",
        "policy", "goodput", "regret", "within 1", "within 3", "worst"
    );
    for standing in standings {
        println!(
            "{:<18} {:>6.1} % {:>8.2} {:>8.1} % {:>8.1} % {:>8.1}",
            standing.router,
            standing.goodput * 1e2,
            standing.regret,
            standing.within_one * 1e2,
            standing.within_three * 1e2,
            standing.worst,
        );
    }
    let mut worst: Vec<(f64, &CellResult)> = results
        .iter()
        .filter_map(|result| Some((result.regret(EXAMINED_POLICY.name())?, result)))
        .collect();
    worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!();
    println!("greatest regrets of {}", EXAMINED_POLICY.name());
    for (regret, result) in worst.iter().take(MAX_PRINTED_CELLS) {
        let cell = serde_json::to_string(&result.cell).unwrap_or_default();
        println!("{regret:>5.1} {:<18} {cell}", result.best().unwrap_or_default());
    }
}
