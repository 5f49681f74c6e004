//! What is counted: the parts, and requests and streams through a gateway whose clients and replica
//! are in the same thread. What those take themselves is taken off: they are counted without it, too.

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

/// How often each part is worked on before it is counted; items and pieces of work that are counted
/// at least.
const WARM: u64 = 3;
const ITEMS: u64 = 200;
const PIECES: u64 = 5;
/// Small requests, and streams.
const REQUESTS: usize = 400;
const STREAMS: usize = 5;
/// Events that come together: one, or sixteen. As powers of two.
const TOGETHER: [(&str, u32); 2] = [("a chunk, alone", 0), ("a chunk of 16 at once", 4)];
/// Longer than records and lines wait to be told together.
const TOLD: Duration = Duration::from_millis(300);

/// Runs all of it.
pub(crate) fn run(folder: &Path) {
    // Whatever is drawn is the same each time.
    fastrand::seed(7);
    let mut laps = Laps::default();
    for mut part in work::all(&[16]) {
        (0..WARM).for_each(|_| (part.work)());
        Laps::begin();
        let pieces = ITEMS.div_ceil(part.items).max(PIECES);
        (0..pieces).for_each(|_| (part.work)());
        laps.end(&part.name, (pieces * part.items) as f64);
    }
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        for is_on in [false, true] {
            traffic(folder, is_on, &mut laps).await;
        }
    }));
    laps.write(folder);
}

/// Requests and streams through a gateway with all telemetry or none, and without one.
async fn traffic(folder: &Path, is_on: bool, laps: &mut Laps) {
    let peers = Peers::new();
    let replica = peers.start().await;
    let gateway = free_address();
    let file = folder.join("gateway.yaml");
    fs::write(&file, configuration(gateway, replica, is_on)).unwrap();
    let cli = cli::parse(
        ["tokenweir", "serve", "--config"].map(Into::into).into_iter().chain([file.into()]),
    );
    let cli::Command::Serve(serve) = cli.unwrap().command else { unreachable!("it serves") };
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = spawn_local(serve_until(*serve, async { drop(stopped.await) }));
    let telemetry = if is_on { "all telemetry" } else { "none" };
    for (to, sign) in [(replica, -1.0), (gateway, 1.0)] {
        let mut client = connect(to).await;
        client.requests(REQUESTS / 10).await;
        client.stream(&peers, 0).await;
        sleep(TOLD).await;
        Laps::begin();
        client.requests(REQUESTS).await;
        sleep(TOLD).await;
        laps.end(&format!("a small request, {telemetry}"), sign * REQUESTS as f64);
        for (name, together) in TOGETHER {
            Laps::begin();
            for _ in 0..STREAMS {
                client.stream(&peers, together).await;
            }
            sleep(TOLD).await;
            let chunks = STREAMS * peers.events();
            laps.end(&format!("{name}, {telemetry}"), sign * chunks as f64);
        }
    }
    stop.send(()).unwrap();
    serving.await.unwrap();
}

/// An address that nobody has just now.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Connects once somebody listens there.
async fn connect(to: SocketAddr) -> Client {
    loop {
        match Client::connect(to).await {
            Ok(client) => return client,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Replicas are not looked at meanwhile, and no trace is sampled: both come by time or by luck.
fn configuration(listen: SocketAddr, replica: SocketAddr, is_on: bool) -> String {
    let collector = if is_on {
        "tracing: { endpoint: \"http://127.0.0.1:9\", ratio: 0.0, tail: false }\n"
    } else {
        ""
    };
    format!(
        "listen: {listen}\nadmin: 127.0.0.1:0\nbackends: [{{ url: \"http://{replica}\" }}]\n\
         usage: passive\nmetrics: {{ enabled: {is_on} }}\nlog: {{ access: {is_on}, format: json, level: error }}\n\
         watch: {{ min_interval: 1m, max_interval: 1m }}\n{collector}"
    )
}
