//! Runs the tournament of routers and prints the standings (the routers by their mean goodput).

use super::args::TournamentArgs;
use crate::admission;
use crate::output::print_json;
use crate::progress::ProgressLine;
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use tokenweir::commands::report_config_error;
use tokenweir::config::{Config, Overrides};
use tokenweir_protocol::clock;
use tokenweir_replay::routers::RouterKind;
use tokenweir_replay::tournament::standings::{self, Standing};
use tokenweir_replay::tournament::{Cell, CellResult, OBJECTIVES, Tournament};

/// The JSON document that the command prints with `--json`.
#[derive(Debug, Serialize)]
struct TournamentReport<'a> {
    /// The configuration file of the gateway. `None`: the default configuration.
    config: Option<&'a Path>,
    first_seed: u64,
    seeds: u64,
    requests: usize,
    /// Number of drawn traffics. `None`: the traffics are the named ones.
    drawn: Option<u32>,
    standings: &'a [Standing],
    cells: &'a [CellResult],
}

pub(crate) fn run(arguments: &TournamentArgs) -> ExitCode {
    let loaded = match Config::load(arguments.config.as_deref(), Overrides::default()) {
        Ok(loaded) => loaded,
        Err(error) => return report_config_error(&error),
    };
    let kinds = match &*arguments.policy {
        [] => RouterKind::all(),
        kinds => kinds.to_vec(),
    };
    let cells = chosen_cells(arguments);
    let tournament = Tournament {
        policy: loaded.config.routing.policy(),
        seeds: arguments.first_seed..=arguments.first_seed + arguments.seeds - 1,
        requests: arguments.requests as usize,
        seconds: arguments.duration.as_secs_f64(),
        gateways: arguments.gateways.into(),
        admission: admission::simulated(&loaded.config, OBJECTIVES),
        epoch: clock::now(),
        kinds,
    };
    let progress = ProgressLine::new("setups", Some(cells.len()));
    let results = tournament.run(&cells, &|| progress.step());
    drop(progress);
    let standings = standings::standings(&results, &tournament.kinds);
    if arguments.json {
        let report = TournamentReport {
            config: arguments.config.as_deref(),
            first_seed: arguments.first_seed,
            seeds: arguments.seeds,
            requests: tournament.requests,
            drawn: arguments.drawn,
            standings: &standings,
            cells: &results,
        };
        return print_json(&report);
    }
    print_standings(&results, &standings, &tournament.kinds);
    ExitCode::SUCCESS
}

fn chosen_cells(arguments: &TournamentArgs) -> Vec<Cell> {
    let loads = arguments.load.iter().map(|load| f64::from(*load) / 100.0);
    let loads: Vec<f64> = loads.collect();
    let mut cells = match arguments.drawn {
        Some(count) => Cell::drawn(count, &loads),
        None => Cell::all(&loads),
    };
    let parts = &arguments.setups;
    if !parts.is_empty() {
        cells.retain(|cell| parts.iter().any(|part| cell.name().contains(part)));
    }
    cells
}

#[expect(
    clippy::print_stdout,
    reason = "standard output is the result of the command"
)]
fn print_standings(results: &[CellResult], standings: &[Standing], kinds: &[RouterKind]) {
    let first = kinds.first().map_or("", |kind| kind.name());
    println!(
        "{} setups; regret in points of goodput against the best policy of a setup",
        results.len()
    );
    println!();
    println!(
        "{:<18} {:>8} {:>8} {:>9} {:>9} {:>7} {:>24} {:>9} {:>7} {:>8}",
        "policy",
        "goodput",
        "regret",
        "within 1",
        "within 3",
        "worst",
        format!("{first} ahead by"),
        "TTFT p99",
        "wasted",
        "fairness"
    );
    for standing in standings {
        let [ahead, low, high] = standing.behind_first;
        println!(
            "{:<18} {:>6.1} % {:>8.2} {:>7.1} % {:>7.1} % {:>7.1} {:>24} {:>7.2} s {:>5.1} % {:>8.3}",
            standing.router,
            standing.goodput * 1e2,
            standing.regret,
            standing.within_one * 1e2,
            standing.within_three * 1e2,
            standing.worst,
            format!("{ahead:+.1} [{low:+.1}, {high:+.1}]"),
            standing.ttft_p99,
            standing.wasted * 1e2,
            standing.fairness,
        );
    }
    println!("\nregrets of {first}");
    for result in results {
        let regret = result.regret(first).unwrap_or(f64::NAN);
        println!("{regret:>6.1} {}", result.cell.name());
    }
}
