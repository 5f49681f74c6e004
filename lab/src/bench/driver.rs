//! The load driver: sends the requests of a plan and counts their results. A separate thread prepares each
//! request and sleeps until the request is due. It is not a tokio task, because tokio's timers have a
//! resolution of only one millisecond, and because a busy runtime must not delay the schedule.

use crate::progress::ProgressBar;
use bytes::Bytes;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokenweir_bench::histogram::LatencyHistogram;
use tokenweir_bench::measurement::RequestMeasurement;
use tokenweir_bench::plan::{LoadPlan, PlannedRequest};
use tokenweir_bench::report::{RunDescription, RunEnd, RunTermination};
use tokenweir_bench::sender::BenchRequestSender;
use tokenweir_bench::statistics::RunStatistics;
use tokenweir_protocol::clock;
use tokenweir_replay::prompt_synthesis::PromptSynthesizer;
use tokenweir_replay::results::LatencyObjectives;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep_until};

/// The load driver of one benchmark run, with the parameters of the run.
pub(crate) struct LoadDriver {
    pub(super) sender: BenchRequestSender,
    pub(super) plan: LoadPlan,
    pub(super) synthesis: PromptSynthesizer,
    /// Maximum number of concurrent requests. In a closed loop, this is the number of simulated users.
    pub(super) max_in_flight: usize,
    /// Duration of the run. A closed loop ends after this time. An open loop ends with its plan, which has
    /// the same limit. `None`: no limit.
    pub(super) run_duration: Option<Duration>,
    pub(super) salt: u64,
    /// Whether the run ends when many successive requests have failed.
    pub(super) aborts: bool,
}

/// A request with its body, ready to be sent.
struct ReadyRequest {
    planned: PlannedRequest,
    body: Bytes,
}

/// The state of a benchmark run.
struct DriverState {
    /// The time at which the run starts. The due times of the plan count from it.
    begin: Instant,
    statistics: RunStatistics,
    /// The tasks of the requests in flight.
    requests: JoinSet<RequestMeasurement>,
    /// The last time at which the maximum number of requests was in flight. A request that was due before
    /// this time had to wait.
    saturated_until: Instant,
    /// Maximum number of requests in the plan. `None`: no limit.
    max_requests: Option<u64>,
    /// Duration of the run. `None`: no limit.
    run_duration: Option<Duration>,
}

/// Maximum number of requests that are prepared before they are due. They are prepared ahead because the text
/// of a long prompt takes time.
const PREPARED_QUEUE_LEN: usize = 32;
/// Time from the start of the run to the first due time, in which the first request is prepared.
const START_DELAY: Duration = Duration::from_millis(50);
/// Interval of the updates of the progress bar. The delay of each update is recorded, because it shows
/// whether the process gets enough CPU time.
const TICK_INTERVAL: Duration = Duration::from_millis(50);
/// Number of successive failures after which a run is aborted. In a closed loop, at least two failures per
/// user are required.
const ABORT_AFTER_FAILURES: u64 = 50;

impl LoadDriver {
    /// Runs until all requests have ended, until too many successive requests have failed, or until `stop`
    /// completes.
    pub(super) async fn run(
        self,
        objectives: LatencyObjectives,
        stop: impl Future<Output = ()>,
        bar: &ProgressBar,
    ) -> (RunEnd, RunStatistics) {
        let is_closed = self
            .plan
            .clone()
            .next()
            .is_some_and(|planned| planned.at.is_none());
        let run_duration = self.run_duration;
        let begin = clock::now() + START_DELAY;
        let mut state = DriverState::new(begin, objectives, &self.plan, run_duration);
        let max_failures = max_failures(is_closed, self.max_in_flight);
        let sender = Arc::new(self.sender);
        let mut prepared = Some(spawn_preparer(
            sender.clone(),
            self.plan,
            self.synthesis,
            begin,
        ));
        let closed_loop_end = match run_duration {
            Some(duration) if is_closed => Some(begin + duration),
            _ => None,
        };
        let mut tick = ticks();
        let mut stop = pin!(stop);
        let mut ending = RunTermination::Complete;
        while prepared.is_some() || !state.requests.is_empty() {
            let has_permit = state.requests.len() < self.max_in_flight;
            tokio::select! {
                biased;
                () = &mut stop => {
                    ending = RunTermination::Interrupted;
                    break;
                }
                at = tick.tick() => state.on_tick(at.into_std(), bar),
                Some(ended) = state.requests.join_next() => {
                    state.on_end(ended, has_permit);
                    if self.aborts && state.statistics.consecutive_failures >= max_failures {
                        ending = RunTermination::OnlyFailures;
                        break;
                    }
                }
                () = sleep_until(closed_loop_end.unwrap_or(begin).into()),
                    if closed_loop_end.is_some() && prepared.is_some() =>
                {
                    prepared = None;
                }
                ready = recv_prepared(&mut prepared), if has_permit && prepared.is_some() => {
                    match ready {
                        Some(request) => state.send(request, sender.clone(), self.salt),
                        None => prepared = None,
                    }
                }
            }
        }
        let unsent = match prepared {
            Some(prepared) if !is_closed => prepared.len(),
            _ => 0,
        };
        state.finish(ending, unsent)
    }
}

fn ticks() -> Interval {
    let mut ticks = interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// Number of successive failures after which the run is aborted.
fn max_failures(is_closed: bool, users: usize) -> u64 {
    if is_closed {
        ABORT_AFTER_FAILURES.max(2 * users as u64)
    } else {
        ABORT_AFTER_FAILURES
    }
}

async fn recv_prepared(
    prepared: &mut Option<mpsc::Receiver<ReadyRequest>>,
) -> Option<ReadyRequest> {
    prepared.as_mut()?.recv().await
}

/// Starts a thread that prepares the requests of a plan and sends each of them to the returned channel when
/// it is due. The thread ends with the plan, or when the receiver is dropped.
fn spawn_preparer(
    sender: Arc<BenchRequestSender>,
    plan: LoadPlan,
    synthesis: PromptSynthesizer,
    begin: Instant,
) -> mpsc::Receiver<ReadyRequest> {
    let (ready_sender, prepared) = mpsc::channel(PREPARED_QUEUE_LEN);
    thread::spawn(move || {
        for planned in plan {
            let prompt = synthesis.prompt(&planned.job, planned.number);
            let body = sender.body(&prompt, &planned.job);
            let due = begin.checked_add(planned.at.unwrap_or_default());
            let Some(due) = due else { return };
            thread::sleep(due.saturating_duration_since(clock::now()));
            if ready_sender
                .blocking_send(ReadyRequest { planned, body })
                .is_err()
            {
                return;
            }
        }
    });
    prepared
}

impl DriverState {
    fn new(
        begin: Instant,
        objectives: LatencyObjectives,
        plan: &LoadPlan,
        run_duration: Option<Duration>,
    ) -> Self {
        Self {
            begin,
            statistics: RunStatistics::new(objectives),
            requests: JoinSet::new(),
            saturated_until: begin,
            max_requests: plan.max_requests(),
            run_duration,
        }
    }

    fn send(&mut self, prepared: ReadyRequest, sender: Arc<BenchRequestSender>, salt: u64) {
        let ReadyRequest { planned, body } = prepared;
        let begin = self.begin;
        let now = clock::now();
        // In a closed loop, a request is due when the previous response of the user has ended, which is now.
        let due = planned.at.map_or(now, |at| begin + at);
        let has_waited = planned.at.is_some() && due < self.saturated_until;
        self.statistics
            .on_sent(now.saturating_duration_since(begin).as_secs_f64());
        self.requests.spawn(async move {
            let id = RunDescription::request_id(salt, planned.number);
            let sent = clock::now();
            let result = sender.answer(&planned.job, body, Some(&id)).await;
            let since = |at: Instant| at.saturating_duration_since(begin);
            let due = since(due);
            let sent = since(sent);
            let ended = since(clock::now());
            RequestMeasurement {
                number: planned.number,
                due,
                sent,
                ended,
                has_waited,
                result,
            }
        });
    }

    /// Records the result of a request. `had_permit`: whether fewer than the maximum number of requests were
    /// in flight before this request ended.
    fn on_end(&mut self, ended: Result<RequestMeasurement, JoinError>, had_permit: bool) {
        if !had_permit {
            self.saturated_until = clock::now();
        }
        match ended {
            Ok(measured) => self.statistics.add(&measured),
            Err(_) => self.statistics.record_internal_error(),
        }
    }

    fn on_tick(&mut self, at: Instant, bar: &ProgressBar) {
        let now = clock::now();
        self.statistics
            .timer_delay
            .record(now.saturating_duration_since(at));
        let counts = &self.statistics.counts;
        let ended = counts.served + counts.failed;
        let elapsed = now.saturating_duration_since(self.begin).as_secs_f64();
        let share_by_count = self
            .max_requests
            .map(|all| ended as f64 / all.max(1) as f64);
        let share_by_time = self
            .run_duration
            .map(|duration| elapsed / duration.as_secs_f64().max(1e-9));
        let median = |histogram: &LatencyHistogram| histogram.quantile(0.5) * 1e3;
        // The run ends at the first of both limits.
        bar.show(
            share_by_count
                .into_iter()
                .chain(share_by_time)
                .reduce(f64::max),
            || {
                format!(
                    "{elapsed:.0} s, {} served, {} failed, {} running, TTFT p50 {:.0} ms",
                    counts.served,
                    counts.failed,
                    self.requests.len(),
                    median(&self.statistics.ttft)
                )
            },
        );
    }

    fn finish(mut self, ending: RunTermination, unsent: usize) -> (RunEnd, RunStatistics) {
        self.statistics.counts.unfinished = (self.requests.len() + unsent) as u64;
        let seconds = clock::now()
            .saturating_duration_since(self.begin)
            .as_secs_f64();
        (RunEnd { seconds, ending }, self.statistics)
    }
}
