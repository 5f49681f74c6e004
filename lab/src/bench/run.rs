//! Runs a benchmark or compares two reports, and prints and saves the results.

use super::args::BenchArgs;
use super::setup::{BenchError, BenchSetup};
use crate::progress::ProgressBar;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokenweir::commands::{
    EXIT_USAGE, block_on, raise_file_limit, report_error, wait_for_shutdown,
};
use tokenweir::config::check_appendable;
use tokenweir_bench::comparison::Comparison;
use tokenweir_bench::gateway_metrics::{GatewayComparison, GatewayMetricsPage};
use tokenweir_bench::report::{BenchReport, RunTermination};
use tokenweir_bench::sender::TargetClient;
use tokenweir_bench::statistics::RunStatistics;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::clock;

/// Why a report file cannot be written or read.
#[derive(Debug, thiserror::Error)]
enum ReportFileError {
    #[error("the report {0} cannot be written")]
    Write(PathBuf, #[source] std::io::Error),
    #[error("the report {0} cannot be read")]
    Read(PathBuf, #[source] std::io::Error),
    #[error("{0} is no report of this version of bench; --save and --json write one")]
    Parse(PathBuf, #[source] serde_json::Error),
    #[error("the report has numbers that JSON cannot represent")]
    Json(#[from] serde_json::Error),
}

/// Exit code if the compared reports have different loads. It is the same as for other invalid arguments.
const EXIT_NOT_COMPARABLE: u8 = 2;

/// Maximum time that the command waits until the metrics of the gateway include the last requests.
const FINAL_METRICS_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two scrapes of the gateway while the command waits.
const METRICS_POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(bench: &BenchArgs) -> ExitCode {
    match (&bench.target, &*bench.compare) {
        (Some(target), _) => block_on(run_benchmark(bench, target.clone())),
        (None, [before, after]) => compare_reports(bench, before, after),
        (None, _) => ExitCode::from(EXIT_USAGE),
    }
}

fn compare_reports(bench: &BenchArgs, before: &Path, after: &Path) -> ExitCode {
    match (read_report(before), read_report(after)) {
        (Ok(before), Ok(after)) => print_comparison(bench, &before, &after),
        (Err(error), _) | (_, Err(error)) => report_error(&error),
    }
}

async fn run_benchmark(bench: &BenchArgs, target: BackendAddress) -> ExitCode {
    raise_file_limit();
    let before = match bench.shown.baseline.as_deref().map(read_report).transpose() {
        Ok(before) => before,
        Err(error) => return report_error(&error),
    };
    for file in [&bench.shown.save, &bench.shown.html].into_iter().flatten() {
        if let Err(error) = check_appendable(file) {
            return report_error(&ReportFileError::Write(file.clone(), error));
        }
    }
    let report = match build_report(bench, target, before.as_ref()).await {
        Ok(report) => report,
        Err(error) => {
            let is_other_load = matches!(error, BenchError::OtherLoad { .. });
            let exit_code = report_error(&error);
            return if is_other_load {
                ExitCode::from(EXIT_NOT_COMPARABLE)
            } else {
                exit_code
            };
        }
    };
    if let Err(error) = print_report(bench, &report) {
        return report_error(&error);
    }
    let comparison_exit_code = before.map(|before| print_comparison(bench, &before, &report));
    if !report.is_valid() || report.termination == RunTermination::OnlyFailures {
        return ExitCode::FAILURE;
    }
    comparison_exit_code.unwrap_or(ExitCode::SUCCESS)
}

async fn build_report(
    bench: &BenchArgs,
    target: BackendAddress,
    baseline: Option<&BenchReport>,
) -> Result<BenchReport, BenchError> {
    let BenchSetup { run, driver, admin } = BenchSetup::prepare(bench, target).await?;
    let load = &run.scenario;
    if let Some(other) = baseline.map(|report| &report.run.scenario)
        && !other.is_same_load(load)
    {
        return Err(BenchError::OtherLoad {
            baseline: other.to_string(),
            run: load.to_string(),
        });
    }
    let before = match &admin {
        Some(admin) => Some(fetch_page(admin, &run.model).await?),
        None => None,
    };
    let bar = ProgressBar::new();
    let (end, statistics) = driver.run(run.objectives, wait_for_shutdown(), &bar).await;
    drop(bar);
    let gateway = match admin.zip(before) {
        Some((admin, before)) => {
            fetch_gateway_measurements(&admin, &run.model, &before, &statistics).await
        }
        None => None,
    };
    Ok(BenchReport::new(run, &end, statistics, gateway))
}

async fn fetch_page(admin: &TargetClient, model: &str) -> Result<GatewayMetricsPage, BenchError> {
    let page = admin.metrics().await?;
    GatewayMetricsPage::read(&page, model)
        .ok_or_else(|| BenchError::NotAGateway(admin.target().to_string()))
}

/// Fetches the gateway's own measurements of the run as soon as the gateway has counted all ended requests,
/// at the latest after [`FINAL_METRICS_TIMEOUT`]. `None`: the metrics of the gateway cannot be read.
async fn fetch_gateway_measurements(
    admin: &TargetClient,
    model: &str,
    before: &GatewayMetricsPage,
    statistics: &RunStatistics,
) -> Option<GatewayComparison> {
    let ended = statistics.counts.served + statistics.counts.failed;
    let start = clock::now();
    loop {
        let after = match fetch_page(admin, model).await {
            Ok(after) => after,
            Err(error) => {
                eprintln!("warning: the report lacks the gateway's own measurements: {error}");
                return None;
            }
        };
        let is_timed_out = clock::now().saturating_duration_since(start) >= FINAL_METRICS_TIMEOUT;
        if after.finished_requests_since(before) >= ended || is_timed_out {
            return Some(after.beside(before, statistics));
        }
        tokio::time::sleep(METRICS_POLL_INTERVAL).await;
    }
}

#[expect(
    clippy::print_stdout,
    reason = "standard output is the result of the command"
)]
fn print_report(bench: &BenchArgs, report: &BenchReport) -> Result<(), ReportFileError> {
    let json = serde_json::to_string(report)?;
    if bench.shown.json {
        println!("{json}");
    } else {
        print!("{report}");
    }
    if let Some(file) = &bench.shown.save {
        write_report(file, &json)?;
    }
    match &bench.shown.html {
        Some(file) => write_report(file, &report.html()),
        None => Ok(()),
    }
}

/// Prints a comparison of two reports. After a run with `--json` the comparison is printed to standard error,
/// because standard output is one JSON object. The exit code is a failure if a quantity got worse, and
/// [`EXIT_NOT_COMPARABLE`] if the runs had different loads.
#[expect(
    clippy::print_stdout,
    reason = "standard output is the result of the command"
)]
fn print_comparison(bench: &BenchArgs, before: &BenchReport, after: &BenchReport) -> ExitCode {
    let comparison = Comparison::new(before, after, bench.shown.regression_threshold);
    if bench.target.is_some() && bench.shown.json {
        eprint!("{comparison}");
    } else if bench.shown.json {
        match serde_json::to_string(&comparison) {
            Ok(json) => println!("{json}"),
            Err(error) => return report_error(&error),
        }
    } else {
        print!("\n{comparison}");
    }
    if !comparison.is_comparable {
        return ExitCode::from(EXIT_NOT_COMPARABLE);
    }
    if comparison.regressions.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn write_report(file: &Path, text: &str) -> Result<(), ReportFileError> {
    fs::write(file, text).map_err(|error| ReportFileError::Write(file.to_owned(), error))
}

fn read_report(file: &Path) -> Result<BenchReport, ReportFileError> {
    let text = fs::read(file).map_err(|error| ReportFileError::Read(file.to_owned(), error))?;
    serde_json::from_slice(&text).map_err(|error| ReportFileError::Parse(file.to_owned(), error))
}
