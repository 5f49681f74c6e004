//! Open-loop replay of a trace against a real server: each request is sent when it is due, whether
//! or not earlier responses have arrived. All times count from the due time of a request, so that a
//! slow server cannot reduce the load that it is measured with (no coordinated omission).

mod report;
mod request;

use crate::progress::ProgressLine;
use crate::replay::args::ReplayArgs;
use crate::replay::requests;
use report::{LiveReplayCounters, LiveReplayReport, ReplayPlan};
use request::{ReplayedRequest, RequestSender};
use std::error::Error;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokenweir::commands::{
    raise_file_limit, report_error, resolve_optional_secret, wait_for_shutdown,
};
use tokenweir::config::Secret;
use tokenweir_bench::sender::{BenchRequestSender, RequestShape, TargetClient, TargetError};
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::client::{HttpClient, HttpClientTimeouts};
use tokenweir_protocol::clock;
use tokenweir_protocol::units;
use tokenweir_replay::prompt_synthesis::PromptSynthesizer;
use tokenweir_replay::results::LatencyObjectives;
use tokenweir_replay::trace::TraceRequest;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The due time of a request since the start of the replay, and its index in the trace.
type ScheduledRequest = (Duration, usize);

/// Seed of the random arrival delays. It is constant, so that arrivals are the same in each run.
const ARRIVAL_SEED: u64 = 1;

pub(super) async fn run(replay: &ReplayArgs, target: &BackendAddress) -> ExitCode {
    raise_file_limit();
    let jobs: Arc<[TraceRequest]> = match requests::read(replay, 1) {
        Ok(jobs) => jobs.into(),
        Err(error) => return report_error(&error),
    };
    let (client, model) = match connect(replay, target).await {
        Ok(connected) => connected,
        Err(error) => return report_error(&*error),
    };
    let jitter = requests::arrival_jitter(replay, &jobs);
    let schedule = build_schedule(&jobs, replay.speed, jitter, replay.real.duration);
    let synthesis = PromptSynthesizer::new(&jobs, replay.real.bytes_per_token, replay.real.salt);
    let plan = ReplayPlan {
        trace: replay.trace_name(),
        target: target.to_string(),
        model: model.clone(),
        requests: schedule.len(),
        speed: replay.speed,
        objectives: LatencyObjectives::new(replay.ttft.as_secs_f64(), replay.tpot.as_secs_f64()),
    };
    let shape = RequestShape::Completions;
    let sender =
        BenchRequestSender { asker: client, model, shape, timeout: units::duration::MAX_DURATION };
    let request_sender = Arc::new(RequestSender { sender, jobs, synthesis });
    let progress = ProgressLine::new("requests", Some(schedule.len()));
    let max_in_flight = replay.real.concurrency as usize;
    let counters =
        run_schedule(&request_sender, &schedule, max_in_flight, wait_for_shutdown(), &progress)
            .await;
    drop(progress);
    report::show(&LiveReplayReport::from_counters(plan, counters), replay.json)
}

/// The client of the target, and the model: that of the arguments, or else the first one that the target lists.
async fn connect(
    replay: &ReplayArgs,
    target: &BackendAddress,
) -> Result<(TargetClient, String), Box<dyn Error>> {
    // The client libraries of OpenAI read the same variable.
    let key = resolve_optional_secret(&Secret::Env("OPENAI_API_KEY".to_owned()))?;
    let http = HttpClient::new(HttpClientTimeouts::default());
    let client = TargetClient::new(http, target.clone(), key);
    let model = match &replay.real.model {
        Some(model) => model.clone(),
        None => first_model(&client).await?,
    };
    Ok((client, model))
}

/// Why the model of a server could not be determined.
#[derive(Debug, thiserror::Error)]
enum ModelDiscoveryError {
    #[error("the model list of the server cannot be read; give --model")]
    Request(#[from] TargetError),
    #[error("the server lists no model at /v1/models; give --model")]
    NoModel,
}

/// The name of the first model that the server lists.
async fn first_model(client: &TargetClient) -> Result<String, ModelDiscoveryError> {
    client.models().await?.into_iter().next().ok_or(ModelDiscoveryError::NoModel)
}

/// The due times of the requests, in ascending order. Requests that are due after `end` are left
/// out. Each arrival gets a random delay of up to `jitter`; then all times are divided by `speed`.
fn build_schedule(
    jobs: &[TraceRequest],
    speed: f64,
    jitter: Duration,
    end: Option<Duration>,
) -> Vec<ScheduledRequest> {
    let mut random = fastrand::Rng::with_seed(ARRIVAL_SEED);
    let due = |job: &TraceRequest| (job.at + jitter.mul_f64(random.f64())).div_f64(speed);
    let mut schedule: Vec<ScheduledRequest> = jobs.iter().map(due).zip(0..).collect();
    schedule.sort_unstable();
    schedule.retain(|(due, _)| end.is_none_or(|end| *due <= end));
    schedule
}

/// Sends each request when it is due, with at most `max_in_flight` at the same time, until all have
/// ended or `stop` completes.
async fn run_schedule(
    request_sender: &Arc<RequestSender>,
    schedule: &[ScheduledRequest],
    max_in_flight: usize,
    stop: impl Future<Output = ()>,
    progress: &ProgressLine,
) -> LiveReplayCounters {
    let mut stop = std::pin::pin!(stop);
    let permits = Arc::new(Semaphore::new(max_in_flight));
    let mut requests: JoinSet<ReplayedRequest> = JoinSet::new();
    let mut counters = LiveReplayCounters::default();
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
                let (sender, permits) = (request_sender.clone(), permits.clone());
                requests.spawn(sender.send_when_permitted(number, due, permits));
            }
            Some(ended) = requests.join_next() => {
                progress.step();
                // A request whose task has panicked counts as failed. A panic is a defect of this
                // program.
                counters.add(ended.unwrap_or_else(|_| ReplayedRequest::failed("defect")));
            }
        }
    }
    counters.seconds = clock::now().saturating_duration_since(begin).as_secs_f64();
    counters.unfinished = requests.len() + upcoming.count();
    counters
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_replay::trace;

    #[test]
    fn a_schedule_applies_speed_and_end_time() {
        let line = |at| format!("{{\"timestamp\":{at},\"input_length\":1,\"output_length\":1}}\n");
        let jobs = trace::read([0, 4_000, 2_000].map(line).concat().as_bytes()).unwrap();
        let due_times = |schedule: Vec<ScheduledRequest>| -> Vec<u128> {
            schedule.iter().map(|(due, _)| due.as_millis()).collect()
        };
        assert_eq!(due_times(build_schedule(&jobs, 2.0, Duration::ZERO, None)), [0, 1_000, 2_000]);
        let end = Some(Duration::from_millis(1_500));
        assert_eq!(due_times(build_schedule(&jobs, 2.0, Duration::ZERO, end)), [0, 1_000]);
        let jittered = build_schedule(&jobs, 1.0, Duration::from_secs(3), None);
        assert!(jittered.is_sorted() && due_times(jittered)[0] > 0);
    }
}
