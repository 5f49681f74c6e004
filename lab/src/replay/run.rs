//! Simulates routing policies on a trace and prints their latencies and goodput.

use super::args::ReplayArgs;
use super::requests;
use crate::admission;
use crate::output::print_json;
use crate::progress::ProgressLine;
use serde::Serialize;
use std::process::ExitCode;
use tokenweir::commands::{report_config_error, report_error};
use tokenweir::config::{Config, Overrides};
use tokenweir_protocol::clock;
use tokenweir_replay::cache_view::{CacheView, ExchangeSettings};
use tokenweir_replay::experiment::{Experiment, PolicyOutcome};
use tokenweir_replay::results::LatencyObjectives;
use tokenweir_replay::routers::RouterKind;
use tokenweir_replay::sessions::LATE_TURN;
use tokenweir_replay::simulation::{RestartSettings, SimulationSetup};
use tokenweir_replay::trace::TraceRequest;

/// The JSON document that the command prints with `--json`: the results of all policies.
#[derive(Debug, Serialize)]
struct ReplayReport<'a> {
    trace: String,
    requests: usize,
    backends: usize,
    speed: f64,
    seeds: u64,
    objectives: LatencyObjectives,
    outcomes: &'a [ReplayOutcome],
}

/// The results of one policy with one number of gateways and one kind of knowledge about the caches.
#[derive(Debug, Serialize)]
struct ReplayOutcome {
    gateways: usize,
    cache_view: CacheView,
    #[serde(flatten)]
    outcome: PolicyOutcome,
}

pub(crate) fn run(replay: &ReplayArgs) -> ExitCode {
    let loaded = match Config::load(replay.config.as_deref(), Overrides::default()) {
        Ok(loaded) => loaded,
        Err(error) => return report_config_error(&error),
    };
    // With a trace, the requests are the same for each seed.
    let last_seed = if replay.workload.is_some() {
        replay.seeds
    } else {
        1
    };
    let jobs: Result<Vec<_>, _> = (1..=last_seed)
        .map(|seed| requests::read(replay, seed))
        .collect();
    let jobs = match jobs {
        Ok(jobs) => jobs,
        Err(error) => return report_error(&error),
    };
    let first_jobs = jobs.first().map_or(&[][..], Vec::as_slice);
    let mut experiment = Experiment {
        setup: build_setup(replay, first_jobs, &loaded.config),
        jobs: &jobs,
        objectives: LatencyObjectives::new(replay.ttft.as_secs_f64(), replay.tpot.as_secs_f64()),
        seeds: replay.seeds,
    };
    if let Some(goodput) = replay.target_goodput {
        let progress = ProgressLine::new("searching for the load", None);
        experiment.setup.speed = experiment.calibrate(goodput, &|| progress.step());
    }
    let kinds = if replay.policy.is_empty() {
        RouterKind::all()
    } else {
        replay.policy.clone()
    };
    let outcomes = run_groups(replay, &mut experiment, &kinds, first_jobs.len());
    let report = ReplayReport {
        trace: replay.trace_name(),
        requests: first_jobs.len(),
        backends: experiment.setup.specs.len(),
        speed: experiment.setup.speed,
        seeds: replay.seeds,
        objectives: experiment.objectives,
        outcomes: &outcomes,
    };
    print_report(&report, replay.json)
}

/// Runs the experiment with each number of gateways and each kind of knowledge about the caches.
fn run_groups(
    replay: &ReplayArgs,
    experiment: &mut Experiment<'_>,
    kinds: &[RouterKind],
    requests: usize,
) -> Vec<ReplayOutcome> {
    let groups = replay.gateways.len() * replay.cache_view.len();
    let total = requests * kinds.len() * replay.seeds as usize * groups;
    let progress = ProgressLine::new("requests", Some(total));
    let mut outcomes = Vec::new();
    for gateways in replay
        .gateways
        .iter()
        .map(|gateways| usize::from(*gateways))
    {
        for cache_view in replay.cache_view.iter().copied() {
            experiment.setup.gateways = gateways;
            experiment.setup.cache_view = cache_view;
            let results = experiment.run(kinds, &|| progress.step()).into_iter();
            let outcome = |outcome| ReplayOutcome {
                gateways,
                cache_view,
                outcome,
            };
            outcomes.extend(results.map(outcome));
        }
    }
    outcomes
}

/// Builds the parameters of the simulation. Each router that can use objectives gets `--ttft` and `--tpot`,
/// as the admission control of a real gateway gets the objectives of `slos`.
fn build_setup(replay: &ReplayArgs, jobs: &[TraceRequest], config: &Config) -> SimulationSetup {
    let policy = config.routing.policy();
    let objectives = LatencyObjectives::new(replay.ttft.as_secs_f64(), replay.tpot.as_secs_f64());
    SimulationSetup {
        speed: replay.speed,
        spread: requests::arrival_jitter(replay.jitter, jobs),
        scrape: replay.scrape,
        // If several numbers of gateways are given, the load is calibrated with the first number.
        gateways: replay.gateways.first().copied().unwrap_or(1).into(),
        exchange: ExchangeSettings {
            delay: replay.exchange_delay,
            loss: replay.exchange_loss,
        },
        restarts: replay.restart_every.map(|interval| RestartSettings {
            interval,
            downtime: replay.restart_downtime,
        }),
        known_objectives: objectives,
        admission: admission::simulated(config, objectives),
        policy,
        ..SimulationSetup::new(replay.specs(), clock::now())
    }
}

#[expect(
    clippy::print_stdout,
    reason = "standard output is the result of the command"
)]
fn print_report(report: &ReplayReport<'_>, is_json: bool) -> ExitCode {
    if is_json {
        return print_json(report);
    }
    let LatencyObjectives { ttft, tpot } = report.objectives;
    println!(
        "{} requests over {} backends, {:.2} times as fast as recorded, {} seeds",
        report.requests, report.backends, report.speed, report.seeds
    );
    println!(
        "goodput: share with TTFT ≤ {ttft} s and TPOT ≤ {} ms",
        tpot * 1e3
    );
    let same_group = |a: &ReplayOutcome, b: &ReplayOutcome| {
        (a.gateways, a.cache_view) == (b.gateways, b.cache_view)
    };
    let has_groups = !report
        .outcomes
        .windows(2)
        .all(|pair| same_group(&pair[0], &pair[1]));
    for group in report.outcomes.chunk_by(same_group) {
        println!();
        if has_groups
            && let Some(ReplayOutcome {
                gateways,
                cache_view,
                ..
            }) = group.first()
        {
            println!("gateways: {gateways}, cache view: {}", cache_view.as_str());
        }
        print_table(group);
        print_sessions(group);
    }
    ExitCode::SUCCESS
}

#[expect(
    clippy::print_stdout,
    reason = "standard output is the result of the command"
)]
fn print_table(outcomes: &[ReplayOutcome]) {
    println!(
        "{:<18} {:>14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9}",
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
    for ReplayOutcome { outcome, .. } in outcomes {
        let PolicyOutcome {
            policy,
            mean,
            goodput_spread,
            ..
        } = outcome;
        println!(
            "{policy:<18} {:>6.1} ± {:>3.1} % {:>7.2} s {:>7.2} s {:>6.1} ms {:>6.1} ms {:>9.0} \
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
}

/// Prints the metrics of closed-loop sessions, if the traffic has such sessions.
#[expect(
    clippy::print_stdout,
    reason = "standard output is the result of the command"
)]
fn print_sessions(outcomes: &[ReplayOutcome]) {
    let with_sessions =
        |outcome: &ReplayOutcome| Some((outcome.outcome.policy, outcome.outcome.sessions?));
    let rows: Vec<_> = outcomes.iter().filter_map(with_sessions).collect();
    if rows.is_empty() {
        return;
    }
    println!("\nsessions (late: from turn {LATE_TURN} on)");
    println!(
        "{:<18} {:>9} {:>14} {:>14} {:>12} {:>14} {:>9}",
        "policy",
        "all good",
        "late TTFT p50",
        "late TTFT p99",
        "late cached",
        "total wait p99",
        "fairness"
    );
    for (policy, sessions) in rows {
        println!(
            "{policy:<18} {:>7.1} % {:>12.2} s {:>12.2} s {:>10.1} % {:>12.2} s {:>9.3}",
            sessions.goodput * 1e2,
            sessions.late_ttft_p50,
            sessions.late_ttft_p99,
            sessions.late_cached * 1e2,
            sessions.wait_p99,
            sessions.fairness,
        );
    }
}
