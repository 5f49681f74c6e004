//! `cargo bench --bench exporter`: what does a collector that is ill cost the requests?
//!
//! ```text
//! 500 clients ──────► gateway, the real program ──────► backend, 20 events a second each
//! read the time in          │ every span, one worker     writes the time into each event
//! each event                ▼
//!                     collector: takes, or is down, hangs, answers 503, closes
//! ```
//!
//! A healthy time and an ill one take turns, so that both have the same machine. It fails if the
//! p99 of an ill time is more than 1.05 of that of the healthy ones, if spans are lost without
//! being counted, if memory grows, or if the gateway takes more than 6 s to end while the collector
//! hangs. `EXPORTER_ROUNDS` sets how often each illness has its turn.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the numbers are for people")]

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
use tokio::net::TcpListener;
use tokio::runtime;

const ROUNDS: usize = 12;
/// The begin of each time, which is not counted, and the rest.
const SETTLING: Duration = Duration::from_millis(300);
const TURN: Duration = Duration::from_millis(1_700);
/// How long the collector hangs before the gateway is told to end: its queue is full then.
const LAST: Duration = Duration::from_secs(20);

/// The bars.
const MOST_RATIO: f64 = 1.05;
const MOST_GROWTH_MIB: f64 = 64.0;
const MOST_SHUTDOWN: Duration = Duration::from_secs(6);

const ILLNESSES: [Health; 4] = [Health::Down, Health::Hangs, Health::Refuses, Health::Closes];

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let rounds = std::env::var("EXPORTER_ROUNDS").ok().map(|count| count.parse().unwrap());
    let runtime = runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let missed = runtime.block_on(run(rounds.unwrap_or(ROUNDS)));
    for missed in &missed {
        println!("MISSED {missed}");
    }
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays all of it, prints what was measured, and returns which bars were missed.
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
    let mut missed = Vec::new();

    tokio::time::sleep(TURN).await;
    let memory = resident_mib(&gateway);
    let mut times = Times::default();
    let noise = Noise::listen();
    for _ in 0..rounds {
        for illness in ILLNESSES {
            for health in [Health::Takes, illness] {
                collector.set(health);
                tokio::time::sleep(SETTLING).await;
                let _ = clients.take();
                tokio::time::sleep(TURN).await;
                times.add(health, clients.take());
            }
        }
    }
    let late = quantile(&mut noise.end(), 0.99);
    println!("a thread that only sleeps was late by {late:.2} ms at p99: the machine's own noise");
    times.tell(&mut missed);

    collector.set(Health::Hangs);
    tokio::time::sleep(LAST).await;
    let growth = resident_mib(&gateway) - memory;
    println!("memory: {memory:.0} MiB at the begin, {growth:.0} MiB more with a full queue");
    bar(&mut missed, growth <= MOST_GROWTH_MIB, || format!("{growth:.0} MiB more"));
    let requests = clients.stop().await;
    finish(gateway, &collector, requests, &mut missed).await;
    missed
}

/// Ends the gateway while the collector hangs, and holds what it counted against the collector.
async fn finish(gateway: Gateway, collector: &Collector, requests: u64, missed: &mut Vec<String>) {
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
    println!(
        "shut down in {:.2} s, with one worker and a collector that hangs",
        took.as_secs_f64()
    );
    let at_rest = IN_FLIGHT.iter().all(|gauge| sum(&page, gauge, "") == Some(0.0));
    bar(missed, at_rest, || "requests are in flight at the end".to_owned());
    bar(missed, lines.len() as u64 == requests, || "not one line for each request".to_owned());
    bar(missed, queued == 3 * requests, || "not three spans for each request".to_owned());
    bar(missed, exported == received, || "exported is not what was received".to_owned());
    bar(missed, took <= MOST_SHUTDOWN, || format!("the shutdown took {took:?}"));
}

/// The memory of the gateway.
fn resident_mib(gateway: &Gateway) -> f64 {
    sum(&gateway.metrics(), "process_resident_memory_bytes", "").unwrap() / f64::from(1 << 20)
}

fn bar(missed: &mut Vec<String>, holds: bool, why: impl FnOnce() -> String) {
    if !holds {
        missed.push(why());
    }
}

/// The p99 of each turn, in milliseconds: the healthy one, and the ill one that followed it.
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
            illness => self.pairs.push((illness, self.healthy, p99)),
        }
    }

    /// A row for each illness, with medians: a few turns may meet a busy machine. The ratio is of
    /// turns that followed each other.
    fn tell(&self, missed: &mut Vec<String>) {
        println!("{} events\n\ncollector | healthy p99 | ill p99 | ratio", self.events);
        for illness in ILLNESSES {
            let pairs = self.pairs.iter().filter(|(health, ..)| *health == illness);
            let columns = pairs.map(|(_, healthy, ill)| [*healthy, *ill, ill / healthy]);
            let columns: Vec<_> = columns.collect();
            let median = |column: usize| {
                quantile(&mut columns.iter().map(|row| row[column]).collect::<Vec<_>>(), 0.5)
            };
            let [healthy, ill, ratio] = [0, 1, 2].map(median);
            println!("{illness:?} | {healthy:.3} ms | {ill:.3} ms | {ratio:.3}");
            bar(missed, ratio <= MOST_RATIO, || format!("{illness:?}: {ratio:.3}"));
        }
    }
}

/// The value that this share of all does not exceed.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * share) as usize;
    values.get(index.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}
