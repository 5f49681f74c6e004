//! The report of a replay in real time: the figures of a simulated replay, and failures, delays and
//! unfinished requests.

use super::request::ReplayedRequest;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;
use tokenweir::commands::report_error;
use tokenweir_replay::results::{LatencyObjectives, RunMetrics, RunResults};

/// The parameters of the replay.
#[derive(Debug, Serialize)]
pub(super) struct ReplayPlan {
    pub(super) trace: String,
    pub(super) target: String,
    pub(super) model: String,
    pub(super) requests: usize,
    pub(super) speed: f64,
    pub(super) objectives: LatencyObjectives,
}

/// Counters of the requests that have ended so far.
#[derive(Debug, Default)]
pub(super) struct LiveReplayCounters {
    results: RunResults,
    /// Served requests whose client disconnected before the end, as recorded in the trace.
    client_disconnects: usize,
    /// Whether any response reported cached tokens.
    reports_cached_tokens: bool,
    /// Number of requests that waited for a permit when they were due.
    delayed: usize,
    /// Time from the due time to the sending of each request that did not wait for a permit.
    send_delays: Vec<Duration>,
    /// Number of failed requests, by the kind of the failure.
    failures: BTreeMap<Cow<'static, str>, usize>,
    /// Requests that were not sent or had not ended when the replay was stopped.
    pub(super) unfinished: usize,
    /// Duration of the replay, in seconds.
    pub(super) seconds: f64,
}

/// The results of the replay.
#[derive(Debug, Serialize)]
pub(super) struct LiveReplayReport {
    #[serde(flatten)]
    plan: ReplayPlan,
    seconds: f64,
    served: usize,
    /// Served requests whose client disconnected before the end, as recorded in the trace.
    client_disconnects: usize,
    failed: usize,
    failures: BTreeMap<Cow<'static, str>, usize>,
    unfinished: usize,
    /// Requests that were sent late because `--concurrency` requests were in flight.
    delayed: usize,
    /// The p99 of the time from due to sent, in seconds. Delayed requests are left out.
    send_delay_p99: f64,
    /// Share of the ended requests that met both objectives.
    goodput: f64,
    ttft_p50: f64,
    ttft_p99: f64,
    tpot_p50: f64,
    tpot_p99: f64,
    tokens_per_second: f64,
    /// Share of prompt tokens from a prefix cache. `None`: no response reported cached tokens.
    cached: Option<f64>,
}

// === impl LiveReplayCounters ===

impl LiveReplayCounters {
    /// Counts a request that has ended.
    pub(super) fn add(&mut self, ended: ReplayedRequest) {
        self.results.requests += 1;
        self.delayed += usize::from(ended.has_waited);
        if !ended.has_waited {
            self.send_delays.push(ended.send_delay);
        }
        match ended.result {
            Ok(response) => {
                self.results.served.push(response.served);
                self.client_disconnects += usize::from(response.is_client_disconnect);
                self.reports_cached_tokens |= response.reports_cached_tokens;
            }
            Err(kind) => *self.failures.entry(kind).or_default() += 1,
        }
    }
}

// === impl LiveReplayReport ===

impl LiveReplayReport {
    /// Computes the figures of all ended requests.
    pub(super) fn from_counters(plan: ReplayPlan, mut counters: LiveReplayCounters) -> Self {
        counters.results.seconds = counters.seconds;
        counters.send_delays.sort_unstable();
        let delays = &counters.send_delays;
        let send_delay_p99 = delays.get(delays.len().saturating_sub(1) * 99 / 100);
        let figures: RunMetrics = counters.results.figures(&plan.objectives);
        Self {
            seconds: counters.seconds,
            served: counters.results.served.len(),
            client_disconnects: counters.client_disconnects,
            failed: counters.failures.values().sum(),
            failures: counters.failures,
            unfinished: counters.unfinished,
            delayed: counters.delayed,
            send_delay_p99: send_delay_p99.copied().unwrap_or_default().as_secs_f64(),
            goodput: figures.goodput,
            ttft_p50: figures.ttft_p50,
            ttft_p99: figures.ttft_p99,
            tpot_p50: figures.tpot_p50,
            tpot_p99: figures.tpot_p99,
            tokens_per_second: figures.tokens_per_second,
            cached: Some(figures.cached).filter(|_| counters.reports_cached_tokens),
            plan,
        }
    }
}

/// Prints the report to standard output, as text or as one JSON object. The exit code is a failure
/// if no request was served.
#[expect(clippy::print_stdout, reason = "standard output is the result of the command")]
pub(super) fn show(report: &LiveReplayReport, is_json: bool) -> ExitCode {
    if is_json {
        match serde_json::to_string_pretty(report) {
            Ok(json) => println!("{json}"),
            Err(error) => return report_error(&error),
        }
    } else {
        println!("{}", render_text(report));
    }
    if report.served > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn render_text(report: &LiveReplayReport) -> String {
    let ReplayPlan { target, model, requests, speed, objectives, .. } = &report.plan;
    let failures = report.failures.iter().map(|(kind, count)| format!("{count} {kind}"));
    let failures = match failures.collect::<Vec<_>>().join(", ") {
        list if list.is_empty() => list,
        list => format!(" ({list})"),
    };
    let cached =
        report.cached.map_or("not reported".into(), |cached| format!("{:.1} %", cached * 1e2));
    format!(
        "{requests} requests to {target} for {model}, {speed:.2} times as fast as recorded, in \
         {:.1} s\n\
         served {} (client disconnected: {}), failed {}{failures}, unfinished {}\n\
         {} delayed by --concurrency; the others were sent {:.1} ms late at p99\n\n\
         goodput   {:.1} %   with TTFT ≤ {} s and TPOT ≤ {} ms, from the due time\n\
         TTFT      p50 {:.3} s    p99 {:.3} s\n\
         TPOT      p50 {:.1} ms   p99 {:.1} ms\n\
         tokens/s  {:.0}\n\
         cached    {cached}",
        report.seconds,
        report.served,
        report.client_disconnects,
        report.failed,
        report.unfinished,
        report.delayed,
        report.send_delay_p99 * 1e3,
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
