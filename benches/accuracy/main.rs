//! `cargo bench --bench accuracy`: measures the accuracy of the values that the gateway reports.
//!
//! ```text
//! client ───────► gateway, the real program ───────► backend
//! notes the moment       │ access log, metrics       notes the moment of each write,
//! of each read           ▼                           as its script has it
//! └─────────────► certificate ◄──────────────────────┘
//! ```
//!
//! The backend plays streams of `tests/suite/generated_streams`, whose values are known. The true time
//! of an event is the time before the write that completes it, regardless of later delays in the
//! kernel and the gateway. The true start of a request is the time before its client writes it. So
//! the reported times include the transport delay. `ACCURACY_STREAMS` sets the number of requests.
//! The bench fails if a limit of the certificate is missed.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the certificate is printed")]

mod backend;
mod certificate;
mod client;
#[path = "../support/engine.rs"]
#[expect(dead_code, reason = "other benches use the response and the framing")]
mod engine;
mod gateway;
#[path = "../../tests/suite/generated_streams/mod.rs"]
#[expect(
    dead_code,
    clippy::disallowed_methods,
    reason = "the suite uses all of it, without a paused clock"
)]
mod generated_streams;
mod limits;
mod noise;
mod plan;
#[path = "../../tests/suite/support/request_reader.rs"]
mod request_reader;
mod truth;

use backend::Played;
use certificate::{Certificate, quantile};
use client::Seen;
use gateway::{Gateway, IN_FLIGHT, sum};
use noise::Noise;
use plan::Plan;
use serde_json::Value;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use truth::Exchange;

const STREAMS: usize = 2_000;
const CONCURRENT_REQUESTS: usize = 200;
const SEED: u64 = 1;
const RUN_TIMEOUT: Duration = Duration::from_mins(3);

/// The measurements of the backend, the clients and the gateway in one run of the bench.
struct Run {
    plans: Arc<[Plan]>,
    played: Vec<Played>,
    seen: Vec<Seen>,
    took: Duration,
    /// Wake-up delays in milliseconds of a thread that only sleeps, which show the noise of the machine.
    noise: Vec<f64>,
    metrics: String,
    access_log: Vec<Value>,
}

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let count = limits::env_number("ACCURACY_STREAMS", STREAMS);
    let runtime = runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut run =
        runtime.block_on(async { tokio::time::timeout(RUN_TIMEOUT, run(count)).await.unwrap() });
    let mut certificate = certify(&run);
    println!("{}\n{}", describe(&mut run), certificate.tables());
    limits::exit_code(&certificate.limit_violations())
}

/// Executes `count` plans, [`CONCURRENT_REQUESTS`] at a time.
async fn run(count: usize) -> Run {
    let plans: Arc<[Plan]> = plan::plans(count, SEED).into();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let address = backend::start(plans.clone(), sender).await;
    let gateway = tokio::task::spawn_blocking(move || start(address))
        .await
        .unwrap();
    let next = Arc::new(AtomicUsize::new(0));
    let noise = Noise::listen();
    let begun = clock::now();
    let mut clients = JoinSet::new();
    for _ in 0..CONCURRENT_REQUESTS {
        let (plans, next, address) = (plans.clone(), next.clone(), gateway.clients);
        clients.spawn(async move {
            let mut seen = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(plan) = plans.get(index) else {
                    return seen;
                };
                seen.push(client::ask(address, index, plan).await);
            }
        });
    }
    let seen = clients.join_all().await.into_iter().flatten().collect();
    let took = clock::now().saturating_duration_since(begun);
    let noise = noise.end();
    let mut played = Vec::new();
    while played.len() < count {
        played.push(receiver.recv().await.unwrap());
    }
    let stop = move || {
        let metrics = gateway.metrics_at_rest();
        (metrics, gateway.stop())
    };
    let (metrics, lines) = tokio::task::spawn_blocking(stop).await.unwrap();
    let access_log = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    Run {
        plans,
        played,
        seen,
        took,
        noise,
        metrics,
        access_log,
    }
}

/// Starts the gateway in front of the backend. With `continuous_usage: 0`, the gateway requests usage at the
/// end of each stream, not with each event.
fn start(backend: SocketAddr) -> Gateway {
    let config = format!("backends: [{{ url: \"http://{backend}\" }}]\ncontinuous_usage: 0\n");
    Gateway::start("accuracy", &config, Stdio::piped())
}

/// Compares the access log line of each request with its plan and with the times that client and backend
/// measured.
fn certify(run: &Run) -> Certificate {
    let mut certificate = Certificate::default();
    let mut lines: HashMap<&str, Vec<&Value>> = HashMap::new();
    for line in &run.access_log {
        lines
            .entry(line["request_id"].as_str().unwrap())
            .or_default()
            .push(line);
    }
    let played: HashMap<usize, &Played> = run.played.iter().map(|p| (p.plan, p)).collect();
    for seen in &run.seen {
        let plan = &run.plans[seen.plan];
        let lines = lines.remove(&plan.id[..]).unwrap_or_default();
        certificate.check("one line in the access log", lines.len() == 1, || {
            format!("{}: {} lines", plan.id, lines.len())
        });
        if let ([line], Some(played)) = (&lines[..], played.get(&seen.plan)) {
            certificate.compare(&Exchange { plan, played, seen }, line);
        }
    }
    certificate.check("no line without a request", lines.is_empty(), || {
        format!("{lines:?}")
    });
    certificate.compare_sums(&run.metrics);
    for gauge in IN_FLIGHT {
        let left = sum(&run.metrics, gauge, "");
        certificate.check("gauges at zero at the end", left == Some(0.0), || {
            format!("{gauge} {left:?}")
        });
    }
    certificate
}

/// A text with the setup of the run and the noise of the machine.
fn describe(run: &mut Run) -> String {
    let events: usize = run
        .plans
        .iter()
        .map(|plan| plan.case.stream.events.len())
        .sum();
    let seconds = run.took.as_secs_f64();
    let cores = std::thread::available_parallelism().unwrap();
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|q| quantile(&mut run.noise, q));
    format!(
        "{} requests, {CONCURRENT_REQUESTS} at once, {events} events in {seconds:.1} s: {:.0} a second; \
         backend, gateway and clients on {cores} cores, where a thread that only sleeps was late \
         by {p50:.2} ms at p50, {p99:.2} ms at p99, {max:.1} ms at most.\n",
        run.seen.len(),
        events as f64 / seconds,
    )
}
