//! `cargo bench --bench soak`: does the gateway stay as it was, after all that a day brings?
//!
//! ```text
//! clients: chats, one in five leaves ──► gateway, the real program ──┬─► two simulated replicas
//! one in a hundred meets a fault             │                       └─► one that fails as it is told
//! malformed requests, reloads                ▼
//!                                        collector
//! ```
//!
//! Once a second the gateway is asked for its memory and its open files. At the end every request must
//! be in exactly one outcome, every span exported or counted as dropped, nothing open and nothing
//! grown. `SOAK_SECONDS` sets how long it takes, `SOAK_REQUESTS` after how many it ends in any case,
//! `SOAK_RELOAD` after how many seconds the gateway is sent a SIGHUP, again and again (never).
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the numbers are for people")]

mod clients;
#[path = "../exporter/collector.rs"]
#[expect(dead_code, reason = "another bench makes it ill")]
mod collector;
mod faulty;
#[path = "../accuracy/gateway.rs"]
#[expect(dead_code, reason = "other benches use all of it")]
mod gateway;
mod trend;

use clients::{Clients, Sent};
use collector::Collector;
use gateway::{Gateway, IN_FLIGHT, sum};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use tokenweir_core::clock;
use tokio::runtime;
use tokio::time::MissedTickBehavior;
use trend::Trend;

const SECONDS: usize = 600;
/// Most growth of memory in a million requests, as a share of the mean; and after the drain, in MiB.
const MOST_GROWTH: f64 = 0.01;
const MOST_LEFT_MIB: f64 = 16.0;
/// Runs that are shorter see the gateway warm up, and nothing else.
const LONG_ENOUGH: usize = 590;
/// Most open files after the drain beyond those at the start: kept connections to replicas.
const MOST_FILES: f64 = 16.0;
/// The gateway's memory at rest is looked at after this time.
const REST: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let runtime = runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let missed = runtime.block_on(run());
    for missed in &missed {
        println!("MISSED {missed}");
    }
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A number that a variable sets.
fn given(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |number| number.parse().unwrap())
}

/// Simulated replicas, until they are dropped.
struct Simulator {
    child: Child,
    addresses: Vec<SocketAddr>,
}

impl Simulator {
    /// Two of them, fast.
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir"));
        command.args(["sim", "--listen", "127.0.0.1:0", "--replicas", "2", "--time-scale", "20"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = |line: String| {
            let (_, rest) = line.split_once("http://")?;
            rest.split(',').next()?.parse().ok()
        };
        let addresses = lines.filter_map(address).take(2).collect();
        Self { child, addresses }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(replicas: &[SocketAddr], collector: SocketAddr) -> Gateway {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (file, log) = (folder.join("soak.yaml"), folder.join("soak-access.log"));
    let url = |replica: &SocketAddr| format!("  - {{ url: \"http://{replica}\" }}\n");
    let backends: String = replicas.iter().map(url).collect();
    let text = format!(
        "backends:\n{backends}log: {{ access_per_second: null }}\n\
         tracing: {{ endpoint: \"http://{collector}\", ratio: 1.0 }}\n"
    );
    fs::write(&file, text).unwrap();
    let log = fs::File::create(log).unwrap();
    Gateway::start_with(&["--config", &file.display().to_string()], &[], log)
}

async fn run() -> Vec<String> {
    let seconds = given("SOAK_SECONDS", SECONDS);
    let most = given("SOAK_REQUESTS", usize::MAX);
    let simulator = Simulator::start();
    let faulty = faulty::start().await;
    let collector = Collector::start().await;
    let replicas = [&simulator.addresses[..], &[faulty]].concat();
    let endpoint = collector.address;
    let starting = tokio::task::spawn_blocking(move || start(&replicas, endpoint));
    let gateway = starting.await.unwrap();
    until_models_are_known(&gateway).await;
    let (memory, files) = (resident_mib(&gateway), open_files(&gateway));
    let begun = clock::now();
    let clients = Clients::start(gateway.clients, most);
    let trend = watch(&gateway, &clients, begun, seconds).await;
    let sent = clients.stop().await;
    let mut missed = Vec::new();
    trend.tell(seconds >= LONG_ENOUGH, MOST_GROWTH, &mut missed);
    let took = clock::now().saturating_duration_since(begun);
    println!("{sent} in {:.0} s", took.as_secs_f64());
    let _ = gateway.metrics_at_rest();
    tokio::time::sleep(REST).await;
    let (memory_after, files_after) = (resident_mib(&gateway), open_files(&gateway));
    println!(
        "at rest: {memory:.1} MiB and {files} files before, {memory_after:.1} MiB and {files_after} \
         files after"
    );
    let is_small = memory_after <= trend.warm_mib() + MOST_LEFT_MIB;
    bar(&mut missed, is_small, || format!("{memory_after:.1} MiB at rest"));
    bar(&mut missed, files_after <= files + MOST_FILES, || format!("{files_after} open files"));
    account(gateway, &collector, &sent, &mut missed).await;
    missed
}

/// Both models are there: that of the simulated replicas, and that of the one that fails.
async fn until_models_are_known(gateway: &Gateway) {
    let deadline = clock::now() + Duration::from_secs(20);
    while !clients::knows_both_models(gateway.clients).await {
        assert!(clock::now() < deadline, "the replicas are not up");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Looks at the gateway once a second until the time is over or all requests are sent.
async fn watch(
    gateway: &Gateway,
    clients: &Clients,
    begun: std::time::Instant,
    seconds: usize,
) -> Trend {
    let reload = given("SOAK_RELOAD", usize::MAX);
    let mut trend = Trend::default();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    for second in 1..=seconds {
        ticks.tick().await;
        let page = gateway.metrics();
        let mib = sum(&page, "process_resident_memory_bytes", "").unwrap() / f64::from(1 << 20);
        let files = sum(&page, "process_open_fds", "").unwrap();
        trend.add(clients.sent(), mib, files);
        if second.is_multiple_of(60) {
            let minutes = clock::now().saturating_duration_since(begun).as_secs() / 60;
            println!("{minutes} min: {} requests, {mib:.1} MiB, {files} files", clients.sent());
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

/// Holds what the gateway counted against what was sent, and what the collector got.
async fn account(gateway: Gateway, collector: &Collector, sent: &Sent, missed: &mut Vec<String>) {
    let stop = move || {
        let page = gateway.metrics_at_rest();
        gateway.stop();
        page
    };
    let page = tokio::task::spawn_blocking(stop).await.unwrap();
    let at_rest = IN_FLIGHT.iter().all(|gauge| sum(&page, gauge, "") == Some(0.0));
    bar(missed, at_rest, || "requests are in flight at the end".to_owned());
    let counted = sum(&page, "tokenweir_requests_total", "").unwrap_or_default() as usize;
    bar(missed, counted == sent.all(), || {
        format!("{} requests were sent, and {counted} have an outcome", sent.all())
    });
    let panics = sum(&page, "tokenweir_refusals_total", "\"internal\"").unwrap_or_default();
    bar(missed, panics < 0.5, || format!("{panics} requests made the gateway panic"));
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
    bar(missed, received + failed + dropped >= queued.saturating_sub(dropped), || {
        format!("{queued} spans were queued, and the collector got {received}")
    });
    bar(missed, sent.wrong == 0, || format!("{} answers were wrong", sent.wrong));
}

fn resident_mib(gateway: &Gateway) -> f64 {
    sum(&gateway.metrics(), "process_resident_memory_bytes", "").unwrap() / f64::from(1 << 20)
}

fn open_files(gateway: &Gateway) -> f64 {
    sum(&gateway.metrics(), "process_open_fds", "").unwrap()
}

fn bar(missed: &mut Vec<String>, holds: bool, why: impl FnOnce() -> String) {
    if !holds {
        missed.push(why());
    }
}
