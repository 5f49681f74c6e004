//! The run itself. A thread of its own prepares each request and sleeps until it is due, because the
//! runtime's timers are a millisecond coarse; nothing that is slow can hold it up.

use crate::commands::progress::Bar;
use bytes::Bytes;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokenweir_bench::histogram::Histogram;
use tokenweir_bench::measure::Measured;
use tokenweir_bench::plan::{Plan, Planned};
use tokenweir_bench::report::{End, Ending, Run};
use tokenweir_bench::send::Sender;
use tokenweir_bench::tally::Tally;
use tokenweir_core::clock;
use tokenweir_lab::score::Objectives;
use tokenweir_lab::synthesis::Synthesis;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

/// What is to be done.
pub(crate) struct Drive {
    pub(super) sender: Sender,
    pub(super) plan: Plan,
    pub(super) synthesis: Synthesis,
    /// Most requests at the same time; in a closed loop, users.
    pub(super) places: usize,
    /// When a closed loop ends. An open one ends with its plan.
    pub(super) until: Option<Duration>,
    pub(super) salt: u64,
}

/// A request that only has to be sent.
struct Prepared {
    planned: Planned,
    body: Bytes,
}

/// What is known while it runs.
struct Course {
    begin: Instant,
    tally: Tally,
    requests: JoinSet<Measured>,
    /// Until then there was no place.
    full_until: Instant,
    expected: Option<u64>,
    until: Option<Duration>,
}

/// Requests that are prepared before they are due. Prompts may be long.
const AHEAD: usize = 32;
/// From the start to the first request: it is prepared meanwhile.
const HEAD_START: Duration = Duration::from_millis(50);
/// Time between two looks at the clock, by which it is seen whether this process gets its share.
const TICK: Duration = Duration::from_millis(50);
/// A server that fails so many requests in a row, and as many as there are places, is gone.
const GONE: u64 = 50;

impl Drive {
    /// Until all have ended, or `stop`.
    pub(super) async fn run(
        self,
        objectives: Objectives,
        stop: impl Future<Output = ()>,
        bar: &Bar,
    ) -> (End, Tally) {
        let is_closed = self.plan.clone().next().is_some_and(|planned| planned.at.is_none());
        let (places, until) = (self.places, self.until);
        let begin = clock::now() + HEAD_START;
        let mut course = Course {
            begin,
            tally: Tally::new(objectives),
            requests: JoinSet::new(),
            full_until: begin,
            expected: self.plan.expected(),
            until,
        };
        let gone = if is_closed { GONE.max(2 * places as u64) } else { GONE };
        let (sender, salt) = (Arc::new(self.sender), self.salt);
        let mut prepared = Some(prepare(sender.clone(), self.plan, self.synthesis, begin));
        let closing = until.filter(|_| is_closed).map(|until| begin + until);
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut stop = pin!(stop);
        let mut ending = Ending::Complete;
        while prepared.is_some() || !course.requests.is_empty() {
            let has_place = course.requests.len() < places;
            tokio::select! {
                biased;
                () = &mut stop => {
                    ending = Ending::Interrupted;
                    break;
                }
                at = tick.tick() => course.look(at.into_std(), bar),
                Some(ended) = course.requests.join_next() => {
                    course.end(ended, has_place);
                    if course.tally.failed_in_a_row() >= gone {
                        ending = Ending::GaveUp;
                        break;
                    }
                }
                () = sleep_until(closing.unwrap_or(begin).into()), if closing.is_some() && prepared.is_some() => {
                    prepared = None;
                }
                next = next(&mut prepared), if has_place && prepared.is_some() => match next {
                    Some(next) => course.send(next, sender.clone(), salt),
                    None => prepared = None,
                },
            }
        }
        course
            .over(ending, prepared.map_or(0, |prepared| if is_closed { 0 } else { prepared.len() }))
    }
}

async fn next(prepared: &mut Option<mpsc::Receiver<Prepared>>) -> Option<Prepared> {
    prepared.as_mut()?.recv().await
}

/// Prepares the requests of a plan, and gives each when it is due. Ends when nobody takes them.
fn prepare(
    sender: Arc<Sender>,
    plan: Plan,
    synthesis: Synthesis,
    begin: Instant,
) -> mpsc::Receiver<Prepared> {
    let (to, prepared) = mpsc::channel(AHEAD);
    thread::spawn(move || {
        for planned in plan {
            let prompt = synthesis.prompt(&planned.job, planned.number);
            let body = sender.body(&prompt, &planned.job);
            let due = begin.checked_add(planned.at.unwrap_or_default());
            let Some(due) = due else { return };
            thread::sleep(due.saturating_duration_since(clock::now()));
            if to.blocking_send(Prepared { planned, body }).is_err() {
                return;
            }
        }
    });
    prepared
}

// === impl Course ===

impl Course {
    fn send(&mut self, prepared: Prepared, sender: Arc<Sender>, salt: u64) {
        let Prepared { planned, body } = prepared;
        let (begin, now) = (self.begin, clock::now());
        // A user sends when the last answer has ended.
        let due = planned.at.map_or(now, |at| begin + at);
        let has_waited = planned.at.is_some() && due < self.full_until;
        self.requests.spawn(async move {
            let id = Run::request_id(salt, planned.number);
            let sent = clock::now();
            let result = sender.answer(&planned.job, body, Some(&id)).await;
            let since = |at: Instant| at.saturating_duration_since(begin);
            let (due, sent, ended) = (since(due), since(sent), since(clock::now()));
            Measured { number: planned.number, due, sent, ended, has_waited, result }
        });
    }

    fn end(&mut self, ended: Result<Measured, JoinError>, had_place: bool) {
        if !had_place {
            self.full_until = clock::now();
        }
        match ended {
            Ok(measured) => self.tally.add(&measured),
            Err(_) => self.tally.add_defect(),
        }
    }

    fn look(&mut self, at: Instant, bar: &Bar) {
        let now = clock::now();
        self.tally.wakes.add(now.saturating_duration_since(at).as_secs_f64());
        let counts = &self.tally.counts;
        let ended = counts.served + counts.failed;
        let took = now.saturating_duration_since(self.begin).as_secs_f64();
        let by_count = self.expected.map(|all| ended as f64 / all.max(1) as f64);
        let by_time = self.until.map(|until| took / until.as_secs_f64().max(1e-9));
        let median = |histogram: &Histogram| histogram.quantile(0.5) * 1e3;
        bar.show(by_count.or(by_time), || {
            format!(
                "{took:.0} s, {} served, {} failed, {} running, TTFT p50 {:.0} ms",
                counts.served,
                counts.failed,
                self.requests.len(),
                median(&self.tally.ttft)
            )
        });
    }

    fn over(mut self, ending: Ending, unsent: usize) -> (End, Tally) {
        self.tally.counts.unfinished = (self.requests.len() + unsent) as u64;
        let seconds = clock::now().saturating_duration_since(self.begin).as_secs_f64();
        (End { seconds, ending }, self.tally)
    }
}
