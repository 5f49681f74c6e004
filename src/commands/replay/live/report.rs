//! What came of a replay in real time: the figures of a virtual one, and what can only go wrong in
//! reality.

use super::request::Ended;
use crate::commands::failed;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;
use tokenweir_lab::score::{Figures, Objectives, Score};

/// What was to be done.
#[derive(Debug, Serialize)]
pub(super) struct Plan {
    pub(super) trace: String,
    pub(super) target: String,
    pub(super) model: String,
    pub(super) requests: usize,
    pub(super) speed: f64,
    pub(super) objectives: Objectives,
}

/// What happened so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    score: Score,
    left: usize,
    tells_cached: bool,
    waited: usize,
    late: Vec<Duration>,
    failures: BTreeMap<Cow<'static, str>, usize>,
    /// Requests that were not sent or had not ended when it was stopped.
    pub(super) unfinished: usize,
    /// From its beginning to its end.
    pub(super) seconds: f64,
}

/// What is shown.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    plan: Plan,
    seconds: f64,
    served: usize,
    /// Of those, by clients that left as the trace says.
    left: usize,
    failed: usize,
    failures: BTreeMap<Cow<'static, str>, usize>,
    unfinished: usize,
    /// Requests for which there was no place when they were due.
    waited: usize,
    /// The p99 of how long after they were due the others were sent, in seconds.
    late_p99: f64,
    /// Share of those that ended which met both objectives.
    goodput: f64,
    ttft_p50: f64,
    ttft_p99: f64,
    tpot_p50: f64,
    tpot_p99: f64,
    tokens_per_second: f64,
    /// Share of prompt tokens that came from a prefix cache. `None`: no answer told.
    cached: Option<f64>,
}

// === impl Tally ===

impl Tally {
    /// A request has ended.
    pub(super) fn add(&mut self, ended: Ended) {
        self.score.requests += 1;
        self.waited += usize::from(ended.has_waited);
        if !ended.has_waited {
            self.late.push(ended.late);
        }
        match ended.result {
            Ok(answered) => {
                self.score.served.push(answered.served);
                self.left += usize::from(answered.has_left);
                self.tells_cached |= answered.tells_cached;
            }
            Err(kind) => *self.failures.entry(kind).or_default() += 1,
        }
    }
}

// === impl Report ===

impl Report {
    /// Of what has ended.
    pub(super) fn of(plan: Plan, mut tally: Tally) -> Self {
        tally.score.seconds = tally.seconds;
        tally.late.sort_unstable();
        let late = tally.late.get(tally.late.len().saturating_sub(1) * 99 / 100);
        let figures: Figures = tally.score.figures(&plan.objectives);
        Self {
            seconds: tally.seconds,
            served: tally.score.served.len(),
            left: tally.left,
            failed: tally.failures.values().sum(),
            failures: tally.failures,
            unfinished: tally.unfinished,
            waited: tally.waited,
            late_p99: late.copied().unwrap_or_default().as_secs_f64(),
            goodput: figures.goodput,
            ttft_p50: figures.ttft_p50,
            ttft_p99: figures.ttft_p99,
            tpot_p50: figures.tpot_p50,
            tpot_p99: figures.tpot_p99,
            tokens_per_second: figures.tokens_per_second,
            cached: Some(figures.cached).filter(|_| tally.tells_cached),
            plan,
        }
    }
}

/// On standard output, for people or as one JSON object. Fails if nothing was served.
#[expect(clippy::print_stdout, reason = "it is what was asked for")]
pub(super) fn show(report: &Report, as_json: bool) -> ExitCode {
    if as_json {
        match serde_json::to_string_pretty(report) {
            Ok(json) => println!("{json}"),
            Err(error) => return failed(&error),
        }
    } else {
        println!("{}", text(report));
    }
    if report.served > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn text(report: &Report) -> String {
    let Plan { target, model, requests, speed, objectives, .. } = &report.plan;
    let failures = report.failures.iter().map(|(kind, count)| format!("{count} {kind}"));
    let failures = match failures.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        some => format!(" ({some})"),
    };
    let cached = report.cached.map_or("not told".into(), |cached| format!("{:.1} %", cached * 1e2));
    format!(
        "{requests} requests to {target} for {model}, {speed:.2} times as fast as recorded, in \
         {:.1} s\n\
         served {} (of whose clients {} left), failed {}{failures}, unfinished {}\n\
         {} waited for a place; the others were sent {:.1} ms late at p99\n\n\
         goodput   {:.1} %   with TTFT ≤ {} s and TPOT ≤ {} ms, from when each was due\n\
         TTFT      p50 {:.3} s    p99 {:.3} s\n\
         TPOT      p50 {:.1} ms   p99 {:.1} ms\n\
         tokens/s  {:.0}\n\
         cached    {cached}",
        report.seconds,
        report.served,
        report.left,
        report.failed,
        report.unfinished,
        report.waited,
        report.late_p99 * 1e3,
        report.goodput * 1e2,
        objectives.ttft,
        objectives.tpot * 1e3,
        report.ttft_p50,
        report.ttft_p99,
        report.tpot_p50 * 1e3,
        report.tpot_p99 * 1e3,
        report.tokens_per_second,
    )
}
