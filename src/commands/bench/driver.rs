//! The load driver: sends the requests of a plan and counts their results. A separate thread
//! prepares each request and sleeps until it is due, because the timers of tokio have a resolution
//! of one millisecond, and because a busy runtime must not delay the schedule.

use crate::commands::progress::ProgressBar;
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
use tokenweir_core::clock;
use tokenweir_lab::prompt_synthesis::PromptSynthesizer;
use tokenweir_lab::results::LatencyObjectives;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

/// The parameters of a run.
pub(crate) struct LoadDriver {
    pub(super) sender: BenchRequestSender,
    pub(super) plan: LoadPlan,
    pub(super) synthesis: PromptSynthesizer,
    /// Maximum number of concurrent requests; in a closed loop, the number of users.
    pub(super) places: usize,
    /// Duration of a closed loop. An open loop ends with its plan.
    pub(super) until: Option<Duration>,
    pub(super) salt: u64,
}

/// A request with its body, ready to be sent.
struct ReadyRequest {
    planned: PlannedRequest,
    body: Bytes,
}

/// The state of a run.
struct DriverState {
    begin: Instant,
    tally: RunStatistics,
    requests: JoinSet<RequestMeasurement>,
    /// The last time at which all permitted requests were in flight.
    saturated_until: Instant,
    expected: Option<u64>,
    run_duration: Option<Duration>,
}

/// Maximum number of requests that are prepared before they are due. Preparing a long prompt takes
/// time.
const PREPARED_QUEUE_LEN: usize = 32;
/// Time from the start to the first request, in which it is prepared.
const START_DELAY: Duration = Duration::from_millis(50);
/// Interval of the progress updates. The lateness of these ticks is recorded: it shows whether the
/// process gets enough CPU.
const TICK_INTERVAL: Duration = Duration::from_millis(50);
/// The run is aborted after this many failures in a row; in a closed loop after at least two per
/// user.
const ABORT_AFTER_FAILURES: u64 = 50;

impl LoadDriver {
    /// Runs until all requests have ended, too many have failed in a row, or `stop` completes.
    pub(super) async fn run(
        self,
        objectives: LatencyObjectives,
        stop: impl Future<Output = ()>,
        bar: &ProgressBar,
    ) -> (RunEnd, RunStatistics) {
        let is_closed = self.plan.clone().next().is_some_and(|planned| planned.at.is_none());
        let (max_in_flight, run_duration) = (self.places, self.until);
        let begin = clock::now() + START_DELAY;
        let mut state = DriverState {
            begin,
            tally: RunStatistics::new(objectives),
            requests: JoinSet::new(),
            saturated_until: begin,
            expected: self.plan.expected(),
            run_duration,
        };
        let max_failures = if is_closed {
            ABORT_AFTER_FAILURES.max(2 * max_in_flight as u64)
        } else {
            ABORT_AFTER_FAILURES
        };
        let (sender, salt) = (Arc::new(self.sender), self.salt);
        let mut prepared = Some(spawn_preparer(sender.clone(), self.plan, self.synthesis, begin));
        let closing_time = run_duration.filter(|_| is_closed).map(|duration| begin + duration);
        let mut tick = interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut stop = pin!(stop);
        let mut ending = RunTermination::Complete;
        while prepared.is_some() || !state.requests.is_empty() {
            let has_permit = state.requests.len() < max_in_flight;
            tokio::select! {
                biased;
                () = &mut stop => {
                    ending = RunTermination::Interrupted;
                    break;
                }
                at = tick.tick() => state.on_tick(at.into_std(), bar),
                Some(ended) = state.requests.join_next() => {
                    state.on_end(ended, has_permit);
                    if state.tally.failed_in_a_row() >= max_failures {
                        ending = RunTermination::OnlyFailures;
                        break;
                    }
                }
                () = sleep_until(closing_time.unwrap_or(begin).into()),
                    if closing_time.is_some() && prepared.is_some() =>
                {
                    prepared = None;
                }
                ready = recv_prepared(&mut prepared), if has_permit && prepared.is_some() => {
                    match ready {
                        Some(request) => state.send(request, sender.clone(), salt),
                        None => prepared = None,
                    }
                }
            }
        }
        let unsent = prepared.map_or(0, |prepared| if is_closed { 0 } else { prepared.len() });
        state.finish(ending, unsent)
    }
}

async fn recv_prepared(
    prepared: &mut Option<mpsc::Receiver<ReadyRequest>>,
) -> Option<ReadyRequest> {
    prepared.as_mut()?.recv().await
}

/// Prepares the requests of a plan in a thread and sends each to the channel when it is due. The
/// thread ends with the plan, or when the receiver is dropped.
fn spawn_preparer(
    sender: Arc<BenchRequestSender>,
    plan: LoadPlan,
    synthesis: PromptSynthesizer,
    begin: Instant,
) -> mpsc::Receiver<ReadyRequest> {
    let (sender_half, prepared) = mpsc::channel(PREPARED_QUEUE_LEN);
    thread::spawn(move || {
        for planned in plan {
            let prompt = synthesis.prompt(&planned.job, planned.number);
            let body = sender.body(&prompt, &planned.job);
            let due = begin.checked_add(planned.at.unwrap_or_default());
            let Some(due) = due else { return };
            thread::sleep(due.saturating_duration_since(clock::now()));
            if sender_half.blocking_send(ReadyRequest { planned, body }).is_err() {
                return;
            }
        }
    });
    prepared
}

// === impl Course ===

impl DriverState {
    fn send(&mut self, prepared: ReadyRequest, sender: Arc<BenchRequestSender>, salt: u64) {
        let ReadyRequest { planned, body } = prepared;
        let (begin, now) = (self.begin, clock::now());
        // In a closed loop, a request is due when the user's previous response has ended.
        let due = planned.at.map_or(now, |at| begin + at);
        let has_waited = planned.at.is_some() && due < self.saturated_until;
        self.requests.spawn(async move {
            let id = RunDescription::request_id(salt, planned.number);
            let sent = clock::now();
            let result = sender.answer(&planned.job, body, Some(&id)).await;
            let since = |at: Instant| at.saturating_duration_since(begin);
            let (due, sent, ended) = (since(due), since(sent), since(clock::now()));
            RequestMeasurement { number: planned.number, due, sent, ended, has_waited, result }
        });
    }

    fn on_end(&mut self, ended: Result<RequestMeasurement, JoinError>, had_permit: bool) {
        if !had_permit {
            self.saturated_until = clock::now();
        }
        match ended {
            Ok(measured) => self.tally.add(&measured),
            Err(_) => self.tally.record_internal_error(),
        }
    }

    fn on_tick(&mut self, at: Instant, bar: &ProgressBar) {
        let now = clock::now();
        self.tally.timer_delay.record(now.saturating_duration_since(at));
        let counts = &self.tally.counts;
        let ended = counts.served + counts.failed;
        let elapsed = now.saturating_duration_since(self.begin).as_secs_f64();
        let by_count = self.expected.map(|all| ended as f64 / all.max(1) as f64);
        let by_time = self.run_duration.map(|duration| elapsed / duration.as_secs_f64().max(1e-9));
        let median = |histogram: &LatencyHistogram| histogram.quantile(0.5) * 1e3;
        bar.show(by_count.or(by_time), || {
            format!(
                "{elapsed:.0} s, {} served, {} failed, {} running, TTFT p50 {:.0} ms",
                counts.served,
                counts.failed,
                self.requests.len(),
                median(&self.tally.ttft)
            )
        });
    }

    fn finish(mut self, ending: RunTermination, unsent: usize) -> (RunEnd, RunStatistics) {
        self.tally.counts.unfinished = (self.requests.len() + unsent) as u64;
        let seconds = clock::now().saturating_duration_since(self.begin).as_secs_f64();
        (RunEnd { seconds, ending }, self.tally)
    }
}
