//! `cargo bench --bench exporter`: measures the effect of a faulty collector on requests.
//!
//! ```text
//! 500 clients ──────► gateway, the real program ──────► backend, 20 events a second each
//! read the time in          │ every span, one worker     writes the time into each event
//! each event                ▼
//!                     collector: takes, or is down, hangs, answers 503, closes
//! ```
//!
//! Healthy and faulty periods alternate, so that both run under the same conditions. The bench
//! fails if the p99 of a faulty period is more than 1.05 times that of the healthy periods, if
//! spans are dropped without being counted, if memory grows, or if the gateway takes more than 6 s
//! to shut down while the collector hangs. `EXPORTER_ROUNDS` sets the number of rounds per fault.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the results are printed")]

mod backend;
mod clients;
mod collector;
#[path = "../accuracy/gateway.rs"]
mod gateway;
#[path = "../accuracy/noise.rs"]
mod noise;

use clients::Clients;
use collector::{Collector, Health};
use gateway::{Gateway, IN_FLIGHT, sum};
use noise::Noise;
use std::process::ExitCode;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::histogram::sample_quantile;
use tokio::net::TcpListener;
use tokio::runtime;

const ROUNDS: usize = 12;
/// The beginning of each period, which is not measured, and the measured rest.
const SETTLING: Duration = Duration::from_millis(300);
const PERIOD: Duration = Duration::from_millis(1_700);
/// Time for which the collector hangs before the shutdown: the span queue is full then.
const HANG_BEFORE_SHUTDOWN: Duration = Duration::from_secs(20);

/// The limits.
const MAX_RATIO: f64 = 1.05;
const MAX_GROWTH_MIB: f64 = 64.0;
const MAX_SHUTDOWN: Duration = Duration::from_secs(6);

const FAULTS: [Health; 4] = [Health::Down, Health::Hangs, Health::Refuses, Health::Closes];

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let rounds = std::env::var("EXPORTER_ROUNDS").ok().map(|count| count.parse().unwrap());
    let runtime = runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let limit_violations = runtime.block_on(run(rounds.unwrap_or(ROUNDS)));
    for violation in &limit_violations {
        println!("MISSED {violation}");
    }
    if limit_violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the bench, prints the results, and returns the missed limits.
async fn run(rounds: usize) -> Vec<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = listener.local_addr().unwrap();
    tokio::spawn(backend::serve(listener));
    let collector = Collector::start().await;
    let endpoint = format!("http://{}", collector.address);
    let start = move || {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint[..]),
            ("OTEL_TRACES_SAMPLER", "always_on"),
            ("TOKIO_WORKER_THREADS", "1"),
        ];
        Gateway::start(backend, &variables)
    };
    let gateway = tokio::task::spawn_blocking(start).await.unwrap();
    let clients = Clients::start(gateway.clients);
    let mut limit_violations = Vec::new();

    tokio::time::sleep(PERIOD).await;
    let memory = resident_mib(&gateway);
    let mut times = Times::default();
    let noise = Noise::listen();
    for _ in 0..rounds {
        for fault in FAULTS {
            for health in [Health::Takes, fault] {
                collector.set(health);
                tokio::time::sleep(SETTLING).await;
                let _ = clients.take();
                tokio::time::sleep(PERIOD).await;
                times.add(health, clients.take());
            }
        }
    }
    let late = quantile(&mut noise.end(), 0.99);
    println!("noise of the machine: wake-up delay of a sleeping thread {late:.2} ms at p99");
    times.print(&mut limit_violations);

    collector.set(Health::Hangs);
    tokio::time::sleep(HANG_BEFORE_SHUTDOWN).await;
    let growth = resident_mib(&gateway) - memory;
    println!("memory: {memory:.0} MiB at the start, {growth:.0} MiB more with a full queue");
    bar(&mut limit_violations, growth <= MAX_GROWTH_MIB, || format!("{growth:.0} MiB more"));
    let requests = clients.stop().await;
    finish(gateway, &collector, requests, &mut limit_violations).await;
    limit_violations
}

/// Shuts the gateway down while the collector hangs, and compares its counts with those of the
/// collector.
async fn finish(
    gateway: Gateway,
    collector: &Collector,
    requests: u64,
    limit_violations: &mut Vec<String>,
) {
    let stop = move || {
        let page = gateway.metrics_at_rest();
        let begun = clock::now();
        let lines = gateway.stop();
        (page, lines, clock::now().saturating_duration_since(begun))
    };
    let (page, lines, took) = tokio::task::spawn_blocking(stop).await.unwrap();
    let count = |result: &str| {
        let label = format!("result=\"{result}\"");
        sum(&page, "tokenweir_otel_spans_total", &label).unwrap_or_default() as u64
    };
    let [queued, exported, failed] = ["queued", "exported", "failed"].map(count);
    let received = collector.spans();
    println!(
        "{requests} requests, {} lines; spans: {queued} queued, {exported} exported, {failed} \
         failed, {} dropped or waiting; the collector got {received}",
        lines.len(),
        queued - exported - failed,
    );
    println!("shutdown in {:.2} s with one worker and a hanging collector", took.as_secs_f64());
    let at_rest = IN_FLIGHT.iter().all(|gauge| sum(&page, gauge, "") == Some(0.0));
    bar(limit_violations, at_rest, || "requests are in flight at the end".to_owned());
    bar(limit_violations, lines.len() as u64 == requests, || {
        "not one log line per request".to_owned()
    });
    bar(limit_violations, queued == 3 * requests, || "not three spans per request".to_owned());
    bar(limit_violations, exported == received, || {
        "the exported spans differ from the received spans".to_owned()
    });
    bar(limit_violations, took <= MAX_SHUTDOWN, || format!("the shutdown took {took:?}"));
}

/// Resident memory of the gateway in MiB.
fn resident_mib(gateway: &Gateway) -> f64 {
    sum(&gateway.metrics(), "process_resident_memory_bytes", "").unwrap() / f64::from(1 << 20)
}

fn bar(limit_violations: &mut Vec<String>, holds: bool, why: impl FnOnce() -> String) {
    if !holds {
        limit_violations.push(why());
    }
}

/// The p99 of each period in milliseconds: the healthy one, and the faulty one that followed it.
#[derive(Default)]
struct Times {
    healthy: f64,
    pairs: Vec<(Health, f64, f64)>,
    events: usize,
}

// === impl Times ===

impl Times {
    fn add(&mut self, health: Health, mut late: Vec<f64>) {
        self.events += late.len();
        let p99 = quantile(&mut late, 0.99);
        match health {
            Health::Takes => self.healthy = p99,
            fault => self.pairs.push((fault, self.healthy, p99)),
        }
    }

    /// Prints a row per fault with medians, because a few periods can meet a busy machine. The
    /// ratio is that of consecutive periods.
    fn print(&self, limit_violations: &mut Vec<String>) {
        println!("{} events\n\ncollector | healthy p99 | ill p99 | ratio", self.events);
        for fault in FAULTS {
            let pairs = self.pairs.iter().filter(|(health, ..)| *health == fault);
            let columns = pairs.map(|(_, healthy, ill)| [*healthy, *ill, ill / healthy]);
            let columns: Vec<_> = columns.collect();
            let median = |column: usize| {
                quantile(&mut columns.iter().map(|row| row[column]).collect::<Vec<_>>(), 0.5)
            };
            let [healthy, ill, ratio] = [0, 1, 2].map(median);
            println!("{fault:?} | {healthy:.3} ms | {ill:.3} ms | {ratio:.3}");
            bar(limit_violations, ratio <= MAX_RATIO, || format!("{fault:?}: {ratio:.3}"));
        }
    }
}

/// NaN without values.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    sample_quantile(values, share).unwrap_or(f64::NAN)
}
