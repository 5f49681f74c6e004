//! `cargo bench --bench soak`: tests whether the gateway stays stable under a mixed load over
//! hours.
//!
//! ```text
//! clients: chats, 1 of 5 disconnects ──► gateway, the real program ──┬─► two simulated backends
//! 1 of 100 requests meets a fault            │                       └─► one with injected faults
//! malformed requests, reloads                ▼
//!                                        collector
//! ```
//!
//! Memory and open files of the gateway are sampled once per second. At the end, every request must
//! be counted in exactly one outcome, every span must be exported or counted as dropped, no
//! connection may be open, and no resource may have grown. `SOAK_SECONDS` sets the duration,
//! `SOAK_REQUESTS` the maximum number of requests, and `SOAK_RELOAD` the interval in seconds at
//! which the gateway gets a SIGHUP (default: never).
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the results are printed")]

mod clients;
#[path = "../../tests/suite/support/collector.rs"]
mod collector;
#[path = "../support/engine.rs"]
#[expect(dead_code, reason = "another bench uses the complete response")]
mod engine;
mod faulty;
#[path = "../accuracy/gateway.rs"]
mod gateway;
#[path = "../accuracy/limits.rs"]
mod limits;
#[path = "../../tests/suite/support/request_reader.rs"]
mod request_reader;
mod trend;

use clients::{Clients, Sent};
use collector::Collector;
use gateway::{Gateway, Process, is_at_rest, sum};
use limits::{bar, env_number};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokio::runtime;
use tokio::time::MissedTickBehavior;
use trend::Trend;

const SECONDS: usize = 600;
/// Two limits of memory: the maximum growth per million requests as a share of the mean, and the maximum
/// growth in MiB from the end of the warm-up to the idle gateway after the load.
const MAX_GROWTH: f64 = 0.01;
const MAX_GROWTH_AFTER_DRAIN_MIB: f64 = 16.0;
/// Minimum duration in seconds of a run whose trend is judged. In shorter runs, the warm-up dominates.
const MIN_TREND_SECONDS: usize = 590;
/// How many more files the idle gateway may have open after the load than before it. They are pooled
/// connections to backends.
const MAX_ADDITIONAL_FILES: f64 = 16.0;
/// The time after the load until the memory of the idle gateway is measured.
const REST: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let runtime = runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    limits::exit_code(&runtime.block_on(run()))
}

/// The process that runs the two simulated backends.
struct Simulator {
    _process: Process,
    addresses: Vec<SocketAddr>,
}

impl Simulator {
    /// Starts two simulated backends whose clock runs 20 times as fast.
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir"));
        command.args([
            "sim",
            "--listen",
            "127.0.0.1:0",
            "--backends",
            "2",
            "--time-scale",
            "20",
        ]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let address = |line: String| {
            let (_, rest) = line.split_once("http://")?;
            rest.split(',').next()?.parse().ok()
        };
        let addresses = lines.filter_map(address).take(2).collect();
        Self {
            _process: Process(child),
            addresses,
        }
    }
}

fn start(backends: &[SocketAddr], collector: SocketAddr) -> Gateway {
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soak-access.log");
    let url = |backend: &SocketAddr| format!("  - {{ url: \"http://{backend}\" }}\n");
    let backends: String = backends.iter().map(url).collect();
    let config = format!(
        "backends:\n{backends}log: {{ access_per_second: null }}\n\
         tracing: {{ endpoint: \"http://{collector}\", ratio: 1.0 }}\n"
    );
    Gateway::start("soak", &config, File::create(log).unwrap())
}

async fn run() -> Vec<String> {
    let seconds = env_number("SOAK_SECONDS", SECONDS);
    let most = env_number("SOAK_REQUESTS", usize::MAX);
    let simulator = Simulator::start();
    let faulty = faulty::start().await;
    let collector = Collector::start(|router| router).await;
    let backends = [&simulator.addresses[..], &[faulty]].concat();
    let endpoint = collector.address;
    let starting = tokio::task::spawn_blocking(move || start(&backends, endpoint));
    let gateway = starting.await.unwrap();
    until_models_are_known(&gateway).await;
    let (memory, files) = size(&gateway);
    let begun = clock::now();
    let clients = Clients::start(gateway.clients, most);
    let trend = watch(&gateway, &clients, begun, seconds).await;
    let sent = clients.stop().await;
    let mut limit_violations = Vec::new();
    trend.print(
        seconds >= MIN_TREND_SECONDS,
        MAX_GROWTH,
        &mut limit_violations,
    );
    let took = clock::now().saturating_duration_since(begun);
    println!("{sent} in {:.0} s", took.as_secs_f64());
    let _ = gateway.metrics_at_rest();
    tokio::time::sleep(REST).await;
    let (memory_after, files_after) = size(&gateway);
    println!(
        "at rest: {memory:.1} MiB and {files} files before, {memory_after:.1} MiB and {files_after} \
         files after"
    );
    let is_small = memory_after <= trend.warm_mib() + MAX_GROWTH_AFTER_DRAIN_MIB;
    bar(&mut limit_violations, is_small, || {
        format!("{memory_after:.1} MiB after the load")
    });
    bar(
        &mut limit_violations,
        files_after <= files + MAX_ADDITIONAL_FILES,
        || format!("{files_after} open files after the load, {files} before"),
    );
    account(gateway, &collector, &sent, &mut limit_violations).await;
    limit_violations
}

/// Waits until the gateway lists the model of the simulated backends and that of the faulty one.
async fn until_models_are_known(gateway: &Gateway) {
    let deadline = clock::now() + Duration::from_secs(20);
    while !clients::knows_both_models(gateway.clients).await {
        assert!(
            clock::now() < deadline,
            "the gateway does not list the models"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Samples the gateway once per second, until `seconds` are over or the clients have sent all requests.
async fn watch(
    gateway: &Gateway,
    clients: &Clients,
    begun: std::time::Instant,
    seconds: usize,
) -> Trend {
    let reload = env_number("SOAK_RELOAD", usize::MAX);
    let mut trend = Trend::default();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    for second in 1..=seconds {
        ticks.tick().await;
        let (mib, files) = size(gateway);
        trend.add(clients.sent(), mib, files);
        if second.is_multiple_of(60) {
            let minutes = clock::now().saturating_duration_since(begun).as_secs() / 60;
            println!(
                "{minutes} min: {} requests, {mib:.1} MiB, {files} files",
                clients.sent()
            );
        }
        if second.is_multiple_of(reload) {
            gateway.signal("HUP");
        }
        if clients.is_over() {
            break;
        }
    }
    trend
}

/// Compares the counts of the gateway with the number of sent requests and with the spans that the collector
/// received. Adds each difference to `limit_violations`.
async fn account(
    gateway: Gateway,
    collector: &Collector,
    sent: &Sent,
    limit_violations: &mut Vec<String>,
) {
    let stop = move || {
        let page = gateway.metrics_at_rest();
        gateway.stop();
        page
    };
    let page = tokio::task::spawn_blocking(stop).await.unwrap();
    bar(limit_violations, is_at_rest(&page), || {
        "requests are in flight at the end".to_owned()
    });
    let counted = sum(&page, "tokenweir_requests_total", "").unwrap_or_default() as usize;
    bar(limit_violations, counted == sent.all(), || {
        format!(
            "{} requests were sent, but {counted} have an outcome",
            sent.all()
        )
    });
    let panics =
        sum(&page, "tokenweir_requests_rejected_total", "\"internal\"").unwrap_or_default();
    bar(limit_violations, panics < 0.5, || {
        format!("{panics} requests caused a panic")
    });
    let count = |result: &str| {
        let label = format!("result=\"{result}\"");
        sum(&page, "tokenweir_otel_spans_total", &label).unwrap_or_default() as u64
    };
    let [queued, exported, failed, dropped] =
        ["queued", "exported", "failed", "dropped"].map(count);
    let received = collector.spans();
    println!(
        "{counted} requests have an outcome; spans: {queued} queued, {exported} exported, {failed} \
         failed, {dropped} dropped before the last batch; the collector got {received} in all"
    );
    bar(
        limit_violations,
        received + failed + dropped >= queued.saturating_sub(dropped),
        || format!("{queued} spans were queued, but the collector received {received}"),
    );
    bar(limit_violations, sent.wrong == 0, || {
        format!("{} wrong responses", sent.wrong)
    });
}

/// Memory of the gateway in MiB, and the number of its open files.
fn size(gateway: &Gateway) -> (f64, f64) {
    let page = gateway.metrics();
    let bytes = sum(&page, "process_resident_memory_bytes", "").unwrap();
    (
        bytes / f64::from(1 << 20),
        sum(&page, "process_open_fds", "").unwrap(),
    )
}
