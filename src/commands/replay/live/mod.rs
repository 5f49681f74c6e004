//! Sends a trace to a real server in real time: each request when it is due, whether or not those
//! before it have been answered. All times count from when a request was due, so that a server
//! that is slow cannot slow down what it is measured with.

mod report;
mod request;

use crate::app::ports::raise_file_limit;
use crate::app::signals;
use crate::commands::progress::Progress;
use crate::commands::replay::args::Replay;
use crate::commands::replay::run as replay;
use crate::commands::{failed, variable};
use crate::config::{Secret, SecretError, SecretValue};
use report::{Plan, Report, Tally};
use request::{Ended, Requester};
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_bench::send::{AskError, Asker, Sender, Shape};
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_core::units;
use tokenweir_lab::score::Objectives;
use tokenweir_lab::synthesis::Synthesis;
use tokenweir_lab::trace::Job;
use tokenweir_net::client::{Client, Limits};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// When a request is sent, from the beginning of the replay, and its place in the trace.
type Due = (Duration, usize);

/// Makes the same arrivals each time.
const SEED: u64 = 1;

pub(super) async fn run(replay: &Replay, target: &Address) -> ExitCode {
    raise_file_limit();
    let jobs: Arc<[Job]> = match replay::jobs(replay) {
        Ok(jobs) => jobs.into(),
        Err(error) => return failed(&error),
    };
    let key = match key() {
        Ok(key) => key,
        Err(error) => return failed(&error),
    };
    let asker = Asker::new(
        Client::new(Limits::default()),
        target.clone(),
        key.map(|key| key.bearer().clone()),
    );
    let model = match &replay.real.model {
        Some(model) => model.clone(),
        None => match first_model(&asker).await {
            Ok(model) => model,
            Err(error) => return failed(&error),
        },
    };
    let schedule =
        schedule(&jobs, replay.speed, replay::spread(replay, &jobs), replay.real.duration);
    let synthesis = Synthesis::of(&jobs, replay.real.bytes_per_token, replay.real.salt);
    let plan = Plan {
        trace: replay.trace.display().to_string(),
        target: target.to_string(),
        model: model.clone(),
        requests: schedule.len(),
        speed: replay.speed,
        objectives: Objectives { ttft: replay.ttft.as_secs_f64(), tpot: replay.tpot.as_secs_f64() },
    };
    let shape = Shape::Completions;
    let sender = Sender { asker, model, shape, timeout: units::duration::MAX };
    let requester = Arc::new(Requester { sender, jobs, synthesis });
    let progress = Progress::new("requests", Some(schedule.len()));
    let places = replay.real.concurrency as usize;
    let tally = send(&requester, &schedule, places, signals::stop(), &progress).await;
    drop(progress);
    report::show(&Report::of(plan, tally), replay.json)
}

/// The token that OpenAI's clients send, if there is one.
fn key() -> Result<Option<SecretValue>, SecretError> {
    match Secret::Env("OPENAI_API_KEY".to_owned()).resolve(variable) {
        Err(SecretError::Unset(_)) => Ok(None),
        key => key.map(Some),
    }
}

/// Why a server's model is not known.
#[derive(Debug, thiserror::Error)]
enum ModelError {
    #[error("the server cannot be asked for its models; give --model")]
    Ask(#[from] AskError),
    #[error("the server tells no model at /v1/models; give --model")]
    None,
}

/// The first model of a server.
async fn first_model(asker: &Asker) -> Result<String, ModelError> {
    asker.models().await?.into_iter().next().ok_or(ModelError::None)
}

/// When each request is due, the first one first.
fn schedule(jobs: &[Job], speed: f64, spread: Duration, until: Option<Duration>) -> Vec<Due> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let due = |job: &Job| (job.at + spread.mul_f64(random.f64())).div_f64(speed);
    let mut schedule: Vec<Due> = jobs.iter().map(due).zip(0..).collect();
    schedule.sort_unstable();
    schedule.retain(|(due, _)| until.is_none_or(|until| *due <= until));
    schedule
}

/// Sends what is due when it is due, `places` requests at the same time at most, until all have
/// ended or `stop`.
async fn send(
    requester: &Arc<Requester>,
    schedule: &[Due],
    places: usize,
    stop: impl Future<Output = ()>,
    progress: &Progress,
) -> Tally {
    let mut stop = std::pin::pin!(stop);
    let places = Arc::new(Semaphore::new(places));
    let mut requests: JoinSet<Ended> = JoinSet::new();
    let mut tally = Tally::default();
    let begin = clock::now();
    let mut upcoming = schedule.iter().peekable();
    while upcoming.peek().is_some() || !requests.is_empty() {
        let next = upcoming.peek().map(|(after, number)| (begin + *after, *number));
        let (due, number) = next.unwrap_or((begin, 0));
        tokio::select! {
            biased;
            () = &mut stop => break,
            () = tokio::time::sleep_until(due.into()), if next.is_some() => {
                upcoming.next();
                requests.spawn(requester.clone().ended(number, due, places.clone()));
            }
            Some(ended) = requests.join_next() => {
                progress.step();
                // A request that panics is a defect of ours, and counts as one that failed.
                tally.add(ended.unwrap_or_else(|_| Ended::failed("defect")));
            }
        }
    }
    tally.seconds = clock::now().saturating_duration_since(begin).as_secs_f64();
    tally.unfinished = requests.len() + upcoming.count();
    tally
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_lab::trace;

    #[test]
    fn a_schedule_is_as_fast_as_it_is_asked_to_be_and_ends_in_time() {
        let line = |at| format!("{{\"timestamp\":{at},\"input_length\":1,\"output_length\":1}}\n");
        let jobs = trace::read([0, 4_000, 2_000].map(line).concat().as_bytes()).unwrap();
        let at = |schedule: Vec<Due>| -> Vec<u128> {
            schedule.iter().map(|(due, _)| due.as_millis()).collect()
        };
        assert_eq!(at(schedule(&jobs, 2.0, Duration::ZERO, None)), [0, 1_000, 2_000]);
        let until = Some(Duration::from_millis(1_500));
        assert_eq!(at(schedule(&jobs, 2.0, Duration::ZERO, until)), [0, 1_000]);
        let spread = schedule(&jobs, 1.0, Duration::from_secs(3), None);
        assert!(spread.is_sorted() && at(spread)[0] > 0);
    }
}
