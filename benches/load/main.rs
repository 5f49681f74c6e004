//! `cargo bench --bench load`: measures the number of concurrent streams and their cost.
//!
//! ```text
//! this process                          a child                       a child
//! streams over HTTP/1.1 and HTTP/2 ───► gateway, the real program ──► backend with scripted streams
//! readers of one byte per second,
//! paused uploads, normal clients
//! ```
//!
//! Every chunk carries the number of its stream and its own number: no chunk may be lost,
//! duplicated, out of order or in another stream. `LOAD_STREAMS` sets the number of HTTP/1.1
//! streams, `LOAD_STREAMS_HTTP2` that of HTTP/2 streams, 100 per connection, `LOAD_CHUNKS` the
//! number of chunks per stream, one every two seconds, and `LOAD_SLOW` the numbers of slow readers
//! and of slow uploads. The bench fails if a stream is incomplete, if the gateway uses more memory
//! than its limit, or if normal clients wait much longer.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the results are printed")]

#[path = "../passthrough/backend.rs"]
mod backend;
#[path = "../passthrough/clients.rs"]
#[expect(dead_code, reason = "another bench uses all of it")]
mod clients;
#[path = "../passthrough/cpu.rs"]
mod cpu;
#[path = "../support/engine.rs"]
mod engine;
#[path = "../accuracy/gateway.rs"]
mod gateway;
#[path = "../accuracy/limits.rs"]
mod limits;
#[path = "../accuracy/noise.rs"]
mod noise;
#[path = "../../tests/suite/support/request_reader.rs"]
mod request_reader;
#[path = "../passthrough/scripts.rs"]
mod scripts;
mod slow;
mod streams;

use gateway::{Gateway, Process, is_at_rest, sum};
use limits::{bar, env_number};
use noise::Noise;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_protocol::histogram::sample_quantile;
use tokio::runtime;

/// The environment variable that makes this program the backend.
const BACKEND: &str = "LOAD_BACKEND";
/// Default number of HTTP/1.1 streams. Each needs two open files of the gateway, and the reference machine
/// allows 20,000.
const STREAMS: usize = 9_500;
/// Default number of HTTP/2 streams. Each needs 1.01 open files, because 100 streams share a client
/// connection.
const STREAMS_HTTP2: usize = 10_000;
const CHUNKS: usize = 15;
const SLOW: usize = 5_000;
pub(crate) const STREAMS_PER_HTTP2_CONNECTION: usize = 100;
/// Maximum memory of the gateway for each stream, in KiB.
const MAX_KIB_PER_STREAM: f64 = 80.0;
/// Maximum memory of the gateway for each slow client, in KiB: the mean of the slow readers, whose buffers
/// are full, and of the slow uploads.
const MAX_KIB_PER_SLOW_CLIENT: f64 = 256.0;
/// The time after a load until the memory of the idle gateway is printed.
const REST: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let files = tokenweir::commands::raise_file_limit().unwrap();
    let runtime = runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    if std::env::var(BACKEND).is_ok() {
        println!("{}", runtime.block_on(backend::start(1))[0]);
        // Runs until it is killed.
        loop {
            std::thread::park();
        }
    }
    println!("{files} files may be open in a process\n");
    limits::exit_code(&runtime.block_on(run()))
}

/// The backend of the bench, in a process of its own.
struct Backend {
    _process: Process,
    address: SocketAddr,
}

impl Backend {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .arg("--bench")
            .env(BACKEND, "1")
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Self {
            _process: Process(child),
            address: line.trim().parse().unwrap(),
        }
    }
}

fn start(backend: SocketAddr) -> Gateway {
    let config = format!(
        "backends: [{{ url: \"http://{backend}\" }}]\nadmission: {{ enabled: false }}\n\
         log: {{ access_per_second: 0 }}\n"
    );
    Gateway::start("load", &config, Stdio::null())
}

async fn run() -> Vec<String> {
    let mut limit_violations = Vec::new();
    let chunks = env_number("LOAD_CHUNKS", CHUNKS);
    let backend = Backend::start();
    let over_http2 = env_number("LOAD_STREAMS_HTTP2", STREAMS_HTTP2)
        .div_ceil(STREAMS_PER_HTTP2_CONNECTION)
        * STREAMS_PER_HTTP2_CONNECTION;
    for (kind, count) in [
        (streams::Kind::Http1, env_number("LOAD_STREAMS", STREAMS)),
        (streams::Kind::Http2, over_http2),
    ] {
        let gateway = start(backend.address);
        held(&gateway, kind, count, chunks, &mut limit_violations).await;
        gateway.stop();
    }
    let gateway = start(backend.address);
    slow(
        &gateway,
        env_number("LOAD_SLOW", SLOW),
        &mut limit_violations,
    )
    .await;
    gateway.stop();
    limit_violations
}

/// Opens `count` streams that are all open at the same time and reads them to their end. Adds each missed
/// limit to `limit_violations`.
async fn held(
    gateway: &Gateway,
    kind: streams::Kind,
    count: usize,
    chunks: usize,
    limit_violations: &mut Vec<String>,
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
    bar(limit_violations, held.whole == count, || {
        format!(
            "{kind:?}: only {} of {count} streams are complete",
            held.whole
        )
    });
    bar(limit_violations, held.open == count, || {
        format!("{kind:?}: {} open at once", held.open)
    });
    bar(limit_violations, each <= MAX_KIB_PER_STREAM, || {
        format!("{kind:?}: {each:.1} KiB each")
    });
    at_rest(gateway, limit_violations);
}

/// Measures normal clients first alone and then beside slow clients. Adds each missed limit to
/// `limit_violations`.
async fn slow(gateway: &Gateway, count: usize, limit_violations: &mut Vec<String>) {
    let before = resident(gateway);
    // Warm-up: the first requests after the start of the gateway take longer.
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
    let each = (held - before) / (2 * count) as f64;
    println!(
        "{count} readers of a byte a second and {count} uploads that stand still, {open} requests \
         open at once, {left} connections still open at the end: {:.0} MiB before, {:.0} MiB with \
         them, {:.1} KiB each",
        before / 1_024.0,
        held / 1_024.0,
        each
    );
    let [calm_p50, disturbed_p50] = [&calm, &disturbed].map(|all| quantile(all.clone(), 0.5));
    let [calm, disturbed] = [calm, disturbed].map(|all| (all.len(), quantile(all, 0.99)));
    println!(
        "  normal clients' time to first chunk: p50 {calm_p50:.2} and {disturbed_p50:.2} ms, p99 {:.2} \
         ms of {} before, {:.2} ms of {} with them: {:.2} times; a thread that only sleeps was \
         {calm_noise:.2} and {disturbed_noise:.2} ms late at p99",
        calm.1,
        calm.0,
        disturbed.1,
        disturbed.0,
        disturbed.1 / calm.1
    );
    bar(limit_violations, each <= MAX_KIB_PER_SLOW_CLIENT, || {
        format!("{each:.1} KiB per client")
    });
    bar(
        limit_violations,
        disturbed.1 <= 1.2 * calm.1 + (disturbed_noise - calm_noise).max(0.0),
        || {
            format!(
                "normal clients wait {:.2} times as long",
                disturbed.1 / calm.1
            )
        },
    );
    tokio::time::sleep(REST).await;
    println!(
        "  memory {REST:?} after: {:.0} MiB",
        resident(gateway) / 1_024.0
    );
    at_rest(gateway, limit_violations);
}

fn at_rest(gateway: &Gateway, limit_violations: &mut Vec<String>) {
    bar(
        limit_violations,
        is_at_rest(&gateway.metrics_at_rest()),
        || "requests are in flight at the end".to_owned(),
    );
}

/// Returns the resident memory of the gateway in KiB.
pub(crate) fn resident(gateway: &Gateway) -> f64 {
    sum(&gateway.metrics(), "process_resident_memory_bytes", "").unwrap() / 1_024.0
}

/// Returns the milliseconds since `moment`.
pub(crate) fn since(moment: std::time::Instant) -> f64 {
    clock::now().saturating_duration_since(moment).as_secs_f64() * 1e3
}

/// The quantile `share` of the values, from 0 to 1. NaN if there are no values.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    sample_quantile(&mut values, share).unwrap_or(f64::NAN)
}
