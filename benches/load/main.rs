//! `cargo bench --bench load`: how many streams can be held at once, and at what cost?
//!
//! ```text
//! this process                          a child                       a child
//! streams over HTTP/1.1 and HTTP/2 ───► gateway, the real program ──► backend with scripted streams
//! readers of a byte a second, uploads
//! that stand still, honest clients
//! ```
//!
//! Every chunk carries the number of its stream and its own: none may be lost, sent twice, out of
//! order or in another stream. `LOAD_STREAMS` sets how many streams there are in HTTP/1.1,
//! `LOAD_STREAMS_HTTP2` how many in HTTP/2, in hundreds, `LOAD_CHUNKS` how many chunks each has, one
//! every two seconds, and `LOAD_SLOW` how many slow readers and slow uploads. It fails if a stream is
//! not whole, if the gateway uses more memory than its bar, or if honest clients wait much longer.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the numbers are for people")]

#[path = "../passthrough/backend.rs"]
mod backend;
#[path = "../passthrough/clients.rs"]
#[expect(dead_code, reason = "another bench uses all of it")]
mod clients;
#[path = "../passthrough/cpu.rs"]
mod cpu;
#[path = "../accuracy/gateway.rs"]
#[expect(dead_code, reason = "other benches use all of it")]
mod gateway;
#[path = "../accuracy/noise.rs"]
mod noise;
mod slow;
mod streams;

use gateway::{Gateway, sum};
use noise::Noise;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use tokenweir_core::clock;
use tokio::runtime;

/// The variable that makes this program the backend.
const BACKEND: &str = "LOAD_BACKEND";
/// The system's limit of open files is 20,000 on the machine that this is for, and a stream over
/// HTTP/1.1 takes two.
const STREAMS: usize = 9_500;
/// Over HTTP/2 it takes one, and a hundredth.
const STREAMS_HTTP2: usize = 10_000;
const CHUNKS: usize = 15;
const SLOW: usize = 5_000;
/// Requests over one connection of HTTP/2.
pub(crate) const OVER_ONE: usize = 100;
/// Most memory for a stream, in KiB.
const MOST_KIB: f64 = 80.0;
/// The gateway's memory is looked at again after this time.
const REST: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap();
    if std::env::var(BACKEND).is_ok() {
        println!("{}", backend::start(1)[0]);
        // Until it is killed.
        loop {
            std::thread::park();
        }
    }
    println!("{files} files may be open in a process\n");
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

/// The backend, until it is dropped.
struct Backend {
    child: Child,
    address: SocketAddr,
}

impl Backend {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("--bench").env(BACKEND, "1").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, address: line.trim().parse().unwrap() }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(backend: SocketAddr) -> Gateway {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("load.yaml");
    let text = format!(
        "backends: [{{ url: \"http://{backend}\" }}]\nadmission: {{ enabled: false }}\n\
         log: {{ access_per_second: 0 }}\n"
    );
    fs::write(&file, text).unwrap();
    Gateway::start_with(&["--config", &file.display().to_string()], &[], Stdio::null())
}

async fn run() -> Vec<String> {
    let mut missed = Vec::new();
    let chunks = given("LOAD_CHUNKS", CHUNKS);
    let backend = Backend::start();
    let over_http2 = given("LOAD_STREAMS_HTTP2", STREAMS_HTTP2).div_ceil(OVER_ONE) * OVER_ONE;
    for (kind, count) in
        [(streams::Kind::Http1, given("LOAD_STREAMS", STREAMS)), (streams::Kind::Http2, over_http2)]
    {
        let gateway = start(backend.address);
        held(&gateway, kind, count, chunks, &mut missed).await;
        gateway.stop();
    }
    let gateway = start(backend.address);
    slow(&gateway, given("LOAD_SLOW", SLOW), &mut missed).await;
    gateway.stop();
    missed
}

/// Streams that are all open at once.
async fn held(
    gateway: &Gateway,
    kind: streams::Kind,
    count: usize,
    chunks: usize,
    missed: &mut Vec<String>,
) {
    let before = resident(gateway);
    let noise = Noise::listen();
    let held = streams::hold(gateway, kind, count, chunks).await;
    let late = quantile(noise.end(), 0.99);
    let each = (held.resident - before) / count as f64;
    println!(
        "{kind:?}: {count} streams of {chunks} chunks: {} whole, {} open at once, {each:.1} KiB each, \
         time to first chunk p50 {:.1} ms, p99 {:.1} ms; a thread that only sleeps was {late:.1} ms \
         late at p99",
        held.whole,
        held.open,
        quantile(held.first.clone(), 0.5),
        quantile(held.first, 0.99),
    );
    for wrong in held.wrong.iter().take(5) {
        println!("  {wrong}");
    }
    tokio::time::sleep(REST).await;
    let after = resident(gateway);
    println!(
        "  memory: {:.0} MiB before, {:.0} MiB held, {:.0} MiB {REST:?} after",
        before / 1_024.0,
        held.resident / 1_024.0,
        after / 1_024.0
    );
    bar(missed, held.whole == count, || format!("{kind:?}: {} of {count} whole", held.whole));
    bar(missed, held.open == count, || format!("{kind:?}: {} open at once", held.open));
    bar(missed, each <= MOST_KIB, || format!("{kind:?}: {each:.1} KiB each"));
    at_rest(gateway, missed);
}

/// Clients that take their time, and what others notice of them.
async fn slow(gateway: &Gateway, count: usize, missed: &mut Vec<String>) {
    let before = resident(gateway);
    // The first clients after the start meet a gateway that has not been used yet.
    slow::honest(gateway, Duration::from_secs(2)).await;
    let noise = Noise::listen();
    let calm = slow::honest(gateway, slow::TURN).await;
    let calm_noise = quantile(noise.end(), 0.99);
    let slow = slow::begin(gateway, count).await;
    let noise = Noise::listen();
    let disturbed = slow::honest(gateway, slow::TURN).await;
    let disturbed_noise = quantile(noise.end(), 0.99);
    let held = resident(gateway);
    let open = sum(&gateway.metrics(), "tokenweir_requests_in_flight", "").unwrap();
    let left = slow.end().await;
    println!(
        "{count} readers of a byte a second and {count} uploads that stand still, {open} requests \
         open at once, {left} connections still open at the end: {:.0} MiB before, {:.0} MiB with \
         them, {:.1} KiB each",
        before / 1_024.0,
        held / 1_024.0,
        (held - before) / (2 * count) as f64
    );
    let [calm_p50, disturbed_p50] = [&calm, &disturbed].map(|all| quantile(all.clone(), 0.5));
    let [calm, disturbed] = [calm, disturbed].map(|all| (all.len(), quantile(all, 0.99)));
    println!(
        "  honest clients' time to first chunk: p50 {calm_p50:.2} and {disturbed_p50:.2} ms, p99 {:.2} \
         ms of {} before, {:.2} ms of {} with them: {:.2} times; a thread that only sleeps was \
         {calm_noise:.2} and {disturbed_noise:.2} ms late at p99",
        calm.1,
        calm.0,
        disturbed.1,
        disturbed.0,
        disturbed.1 / calm.1
    );
    bar(missed, disturbed.1 <= 1.2 * calm.1 + (disturbed_noise - calm_noise).max(0.0), || {
        format!("honest clients wait {:.2} times as long", disturbed.1 / calm.1)
    });
    tokio::time::sleep(REST).await;
    println!("  memory {REST:?} after: {:.0} MiB", resident(gateway) / 1_024.0);
    at_rest(gateway, missed);
}

fn at_rest(gateway: &Gateway, missed: &mut Vec<String>) {
    let page = gateway.metrics_at_rest();
    let is_at_rest = gateway::IN_FLIGHT.iter().all(|gauge| sum(&page, gauge, "") == Some(0.0));
    bar(missed, is_at_rest, || "requests are in flight at the end".to_owned());
}

/// The gateway's memory, in KiB.
pub(crate) fn resident(gateway: &Gateway) -> f64 {
    sum(&gateway.metrics(), "process_resident_memory_bytes", "").unwrap() / 1_024.0
}

/// Milliseconds since a moment.
pub(crate) fn since(moment: std::time::Instant) -> f64 {
    clock::now().saturating_duration_since(moment).as_secs_f64() * 1e3
}

fn bar(missed: &mut Vec<String>, holds: bool, why: impl FnOnce() -> String) {
    if !holds {
        missed.push(why());
    }
}

/// The value that this share of all does not exceed.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * share) as usize;
    values.get(index.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}
