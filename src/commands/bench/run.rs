//! `tokenweir bench`: from its arguments to a report.

use super::args::Bench;
use super::drive::Drive;
use super::opening::{BenchError, Opening};
use crate::app::ports::raise_file_limit;
use crate::app::signals;
use crate::commands::progress::Bar;
use crate::commands::{USAGE, block_on, failed};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokenweir_bench::compare::Comparison;
use tokenweir_bench::gateway::{Beheld, Page};
use tokenweir_bench::report::{Ending, Report};
use tokenweir_bench::send::Asker;
use tokenweir_bench::tally::Tally;
use tokenweir_core::address::Address;
use tokenweir_core::clock;

/// A report that cannot be written or read.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("the report {0} cannot be written")]
    Write(PathBuf, #[source] std::io::Error),
    #[error("the report {0} cannot be read")]
    Read(PathBuf, #[source] std::io::Error),
    #[error("{0} is no report of this version of bench; --save and --json write one")]
    Form(PathBuf, #[source] serde_json::Error),
    #[error("the report has numbers that JSON cannot have")]
    Json(#[from] serde_json::Error),
}

/// Longest wait until the gateway has counted the last requests.
const SETTLED: Duration = Duration::from_secs(2);
/// Time between two looks at it.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(bench: &Bench) -> ExitCode {
    match (&bench.target, &*bench.compare) {
        (Some(target), _) => block_on(measure(bench, target.clone())),
        (None, [before, after]) => compare(bench, before, after),
        (None, _) => ExitCode::from(USAGE),
    }
}

fn compare(bench: &Bench, before: &Path, after: &Path) -> ExitCode {
    match (read(before), read(after)) {
        (Ok(before), Ok(after)) => show_comparison(bench, &before, &after),
        (Err(error), _) | (_, Err(error)) => failed(&error),
    }
}

async fn measure(bench: &Bench, target: Address) -> ExitCode {
    raise_file_limit();
    let before = match bench.shown.against.as_deref().map(read).transpose() {
        Ok(before) => before,
        Err(error) => return failed(&error),
    };
    let report = match report(bench, target).await {
        Ok(report) => report,
        Err(error) => return failed(&error),
    };
    if let Err(error) = show(bench, &report) {
        return failed(&error);
    }
    let compared = before.map(|before| show_comparison(bench, &before, &report));
    if !report.is_valid() || report.ending == Ending::GaveUp {
        return ExitCode::FAILURE;
    }
    compared.unwrap_or(ExitCode::SUCCESS)
}

async fn report(bench: &Bench, target: Address) -> Result<Report, BenchError> {
    let opening = Opening::of(bench, target).await?;
    let admin = opening.admin.clone();
    let (run, model) = (opening.run, opening.sender.model.clone());
    let before = match &admin {
        Some(admin) => Some(page(admin, &model).await?),
        None => None,
    };
    let bar = Bar::new();
    let drive = Drive {
        sender: opening.sender,
        plan: opening.plan,
        synthesis: opening.synthesis,
        places: opening.places,
        until: bench.load.duration.or(opening.until),
        salt: run.salt,
    };
    let (end, tally) = drive.run(run.objectives, signals::stop(), &bar).await;
    drop(bar);
    let beheld = match admin.zip(before) {
        Some((admin, before)) => beheld(&admin, &model, &before, &tally).await,
        None => None,
    };
    Ok(Report::of(run, &end, tally, beheld))
}

async fn page(admin: &Asker, model: &str) -> Result<Page, BenchError> {
    let page = admin.metrics().await?;
    Page::read(&page, model).ok_or_else(|| BenchError::NoGateway(admin.target().to_string()))
}

/// The gateway's numbers, when it has counted what ended.
async fn beheld(admin: &Asker, model: &str, before: &Page, tally: &Tally) -> Option<Beheld> {
    let ended = tally.counts.served + tally.counts.failed;
    let begun = clock::now();
    loop {
        let after = match page(admin, model).await {
            Ok(after) => after,
            Err(error) => {
                eprintln!("warning: the gateway's own numbers are missing: {error}");
                return None;
            }
        };
        let is_over = clock::now().saturating_duration_since(begun) >= SETTLED;
        if after.ended_since(before) >= ended || is_over {
            return Some(after.beside(before, tally));
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[expect(clippy::print_stdout, reason = "it is what was asked for")]
fn show(bench: &Bench, report: &Report) -> Result<(), FileError> {
    let json = serde_json::to_string(report)?;
    if bench.shown.json {
        println!("{json}");
    } else {
        print!("{}", report.text());
    }
    if let Some(file) = &bench.shown.save {
        write(file, &json)?;
    }
    match &bench.shown.html {
        Some(file) => write(file, &report.html()),
        None => Ok(()),
    }
}

/// Beside the JSON of a run, on standard error: standard output is one object.
#[expect(clippy::print_stdout, reason = "it is what was asked for")]
fn show_comparison(bench: &Bench, before: &Report, after: &Report) -> ExitCode {
    let comparison = Comparison::of(before, after, bench.shown.fail_over);
    if bench.target.is_some() && bench.shown.json {
        eprint!("{}", comparison.text());
    } else if bench.shown.json {
        match serde_json::to_string(&comparison) {
            Ok(json) => println!("{json}"),
            Err(error) => return failed(&error),
        }
    } else {
        print!("\n{}", comparison.text());
    }
    if comparison.regressions.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write(file: &Path, text: &str) -> Result<(), FileError> {
    fs::write(file, text).map_err(|error| FileError::Write(file.to_owned(), error))
}

fn read(file: &Path) -> Result<Report, FileError> {
    let text = fs::read(file).map_err(|error| FileError::Read(file.to_owned(), error))?;
    serde_json::from_slice(&text).map_err(|error| FileError::Form(file.to_owned(), error))
}
