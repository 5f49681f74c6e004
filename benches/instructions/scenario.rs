//! The measured work: first each part of the hot path alone, then requests and streams through a gateway. The
//! clients and the backend of this gateway run in the same thread. Their instructions are measured in a run
//! without the gateway and subtracted.

use super::laps::Laps;
use super::peers::{Client, Peers};
use super::work;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokenweir::cli;
use tokenweir::commands::serve::run::serve as serve_until;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

/// Warm-up iterations of each part, the minimum number of measured items, and the minimum number of measured
/// iterations.
const WARM_UP_ITERATIONS: u64 = 3;
const MIN_ITEMS: u64 = 200;
const MIN_ITERATIONS: u64 = 5;
/// The number of small requests in a lap, and the number of streams.
const REQUESTS: usize = 400;
const STREAMS: usize = 5;
/// How many events the backend writes at once, as powers of two: 1 event and 16 events.
const EVENT_GROUPS: [(&str, u32); 2] = [("a chunk, alone", 0), ("a chunk of 16 at once", 4)];
/// A pause after which all record batches and log lines have been written.
const BATCH_LINGER: Duration = Duration::from_millis(300);

/// Runs all measurements. The dumps and the list of laps go to `folder`.
pub(crate) fn run(folder: &Path) {
    // A fixed seed gives the same random numbers in every run.
    fastrand::seed(7);
    let mut laps = Laps::default();
    for mut part in work::all(&[16]) {
        (0..WARM_UP_ITERATIONS).for_each(|_| (part.work)());
        Laps::begin();
        let pieces = MIN_ITEMS.div_ceil(part.items).max(MIN_ITERATIONS);
        (0..pieces).for_each(|_| (part.work)());
        laps.end(&part.name, (pieces * part.items) as f64);
    }
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        for is_on in [false, true] {
            traffic(folder, is_on, &mut laps).await;
        }
    }));
    laps.write(folder);
}

/// Measures requests and streams through a gateway, with all telemetry if `is_on` is true and else with none.
/// Measures the same requests without the gateway, for subtraction.
async fn traffic(folder: &Path, is_on: bool, laps: &mut Laps) {
    let peers = Peers::new();
    let backend = peers.start().await;
    let gateway = free_address();
    let file = folder.join("gateway.yaml");
    fs::write(&file, configuration(gateway, backend, is_on)).unwrap();
    let cli = cli::parse(
        ["tokenweir", "serve", "--config"]
            .map(Into::into)
            .into_iter()
            .chain([file.into()]),
    );
    let cli::CliCommand::Serve(serve) = cli.unwrap().command else {
        unreachable!("it serves")
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = spawn_local(serve_until(*serve, async { drop(stopped.await) }));
    let telemetry = if is_on { "all telemetry" } else { "none" };
    for (to, sign) in [(backend, -1.0), (gateway, 1.0)] {
        let mut client = connect(to).await;
        client.requests(REQUESTS / 10).await;
        client.stream(&peers, 0).await;
        sleep(BATCH_LINGER).await;
        Laps::begin();
        client.requests(REQUESTS).await;
        sleep(BATCH_LINGER).await;
        laps.end(
            &format!("a small request, {telemetry}"),
            sign * REQUESTS as f64,
        );
        for (name, together) in EVENT_GROUPS {
            Laps::begin();
            for _ in 0..STREAMS {
                client.stream(&peers, together).await;
            }
            sleep(BATCH_LINGER).await;
            let chunks = STREAMS * peers.events();
            laps.end(&format!("{name}, {telemetry}"), sign * chunks as f64);
        }
    }
    stop.send(()).unwrap();
    serving.await.unwrap();
}

/// Returns an address whose port is free now.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// Connects to the address as soon as it accepts connections.
async fn connect(to: SocketAddr) -> Client {
    loop {
        match Client::connect(to).await {
            Ok(client) => return client,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// The configuration file of the gateway. Scrapes and sampled traces depend on time or on random numbers, so
/// the gateway scrapes no backend during the run and samples no trace.
fn configuration(listen: SocketAddr, backend: SocketAddr, is_on: bool) -> String {
    let collector = if is_on {
        "tracing: { endpoint: \"http://127.0.0.1:9\", ratio: 0.0, sampling: head }\n"
    } else {
        ""
    };
    let level = if is_on { "standard" } else { "null" };
    format!(
        "listen: {listen}\nadmin: 127.0.0.1:0\nbackends: [{{ url: \"http://{backend}\" }}]\n\
         usage: passive\nmetrics: {{ level: {level} }}\nlog: {{ access: {is_on}, format: json, level: error }}\n\
         scrape: {{ min_interval: 1m, max_interval: 1m }}\n{collector}"
    )
}
