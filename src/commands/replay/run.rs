//! Tries policies on a trace, and shows what came of it.

use super::args::Replay;
use super::live as real;
use crate::commands::progress::Progress;
use crate::commands::{block_on, failed, wrong};
use crate::config::{Config, Overrides};
use serde::Serialize;
use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::routing::{Policy, PolicyKind};
use tokenweir_lab::experiment::{Experiment, Outcome};
use tokenweir_lab::router::RouterKind;
use tokenweir_lab::score::Objectives;
use tokenweir_lab::trace::{self, Job, TraceError};
use tokenweir_lab::world::Setup;

/// What is shown.
#[derive(Debug, Serialize)]
struct Report<'a> {
    trace: String,
    requests: usize,
    replicas: usize,
    speed: f64,
    seeds: u64,
    objectives: Objectives,
    outcomes: &'a [Outcome],
}

/// Traces that round their time stamps do so to as much.
pub(crate) const ROUNDED_TO: Duration = Duration::from_secs(3);

pub(crate) fn run(replay: &Replay) -> ExitCode {
    if let Some(target) = &replay.real.target {
        return block_on(real::run(replay, target));
    }
    let loaded = match Config::load(replay.config.as_deref(), Overrides::default()) {
        Ok(loaded) => loaded,
        Err(error) => return wrong(&error),
    };
    let jobs = match jobs(replay) {
        Ok(jobs) => jobs,
        Err(error) => return failed(&error),
    };
    let mut experiment = Experiment {
        setup: setup(replay, &jobs, loaded.config.routing.policy()),
        jobs: &jobs,
        objectives: Objectives { ttft: replay.ttft.as_secs_f64(), tpot: replay.tpot.as_secs_f64() },
        seeds: replay.seeds,
    };
    if let Some(goodput) = replay.load_at {
        let kind = RouterKind::Shipped(PolicyKind::RoundRobin);
        let progress = Progress::new("looking for the load", None);
        experiment.setup.speed = experiment.calibrate(kind, goodput, &|| progress.step());
    }
    let kinds = if replay.policy.is_empty() { RouterKind::all() } else { replay.policy.clone() };
    let total = jobs.len() * kinds.len() * replay.seeds as usize;
    let progress = Progress::new("requests", Some(total));
    let outcomes = experiment.run(&kinds, &|| progress.step());
    drop(progress);
    show(
        &Report {
            trace: replay.trace.display().to_string(),
            requests: jobs.len(),
            replicas: experiment.setup.specs.len(),
            speed: experiment.setup.speed,
            seeds: replay.seeds,
            objectives: experiment.objectives,
            outcomes: &outcomes,
        },
        replay.json,
    )
}

/// The requests of the trace.
pub(crate) fn jobs(replay: &Replay) -> Result<Vec<Job>, TraceError> {
    let mut jobs = trace::read(BufReader::new(File::open(&replay.trace)?))?;
    jobs.truncate(replay.max_requests.unwrap_or(usize::MAX));
    Ok(jobs)
}

/// Over which time arrivals are spread.
pub(crate) fn spread(replay: &Replay, jobs: &[Job]) -> Duration {
    let usual = || if trace::is_rounded(jobs) { ROUNDED_TO } else { Duration::ZERO };
    replay.spread.unwrap_or_else(usual)
}

fn setup(replay: &Replay, jobs: &[Job], policy: Policy) -> Setup {
    Setup {
        frozen: None,
        specs: replay.specs(),
        speed: replay.speed,
        spread: spread(replay, jobs),
        scrape: replay.scrape,
        gateways: replay.gateways.into(),
        policy,
        epoch: clock::now(),
    }
}

#[expect(clippy::print_stdout, reason = "it is what was asked for")]
fn show(report: &Report<'_>, as_json: bool) -> ExitCode {
    if as_json {
        match serde_json::to_string_pretty(report) {
            Ok(json) => println!("{json}"),
            Err(error) => return failed(&error),
        }
        return ExitCode::SUCCESS;
    }
    let Objectives { ttft, tpot } = report.objectives;
    println!(
        "{} requests over {} replicas, {:.2} times as fast as recorded, {} seeds",
        report.requests, report.replicas, report.speed, report.seeds
    );
    println!("goodput: share with TTFT ≤ {ttft} s and TPOT ≤ {} ms", tpot * 1e3);
    println!();
    println!(
        "{:<16} {:>14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9}",
        "policy",
        "goodput",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "TPOT p99",
        "tokens/s",
        "cached",
        "preempted",
        "imbalance"
    );
    for Outcome { policy, mean, goodput_spread, .. } in report.outcomes {
        println!(
            "{policy:<16} {:>6.1} ± {:>3.1} % {:>7.2} s {:>7.2} s {:>6.1} ms {:>6.1} ms {:>9.0} \
             {:>5.1} % {:>9.1} {:>9.3}",
            mean.goodput * 1e2,
            goodput_spread * 1e2,
            mean.ttft_p50,
            mean.ttft_p99,
            mean.tpot_p50 * 1e3,
            mean.tpot_p99 * 1e3,
            mean.tokens_per_second,
            mean.cached * 1e2,
            mean.preemptions,
            mean.imbalance,
        );
    }
    ExitCode::SUCCESS
}
