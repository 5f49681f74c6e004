//! Simulated engines on wires where things go wrong at random, and clients that leave at random.
//! Whatever happens, every request ends and is recorded once, no end is made up, and nothing is left
//! behind in the gateway or in the engines.

use crate::support::fleet::Fleet;
use crate::support::gateway::{Running, Setup, body, post, start_with, status};
use crate::support::imp::Imp;
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_core::observe::{self, StallLimits};
use tokenweir_core::record::{Outcome, RequestRecord};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Requests in `cargo test`; the variable CHAOS asks for another number.
const REQUESTS: usize = 600;
const AT_ONCE: usize = 24;

/// What a client saw.
#[derive(Debug, PartialEq)]
enum Sight {
    /// A whole answer of this status.
    Whole(u16),
    /// The beginning of one.
    Cut,
    /// It left.
    Nothing,
}

/// One request. Some clients leave after a while.
async fn ask(gateway: SocketAddr, number: usize, seed: u64) -> Sight {
    let mut random = fastrand::Rng::with_seed(seed ^ number as u64);
    let is_stream = random.bool();
    let ask = serde_json::json!({
        "model": "sim-model", "stream": is_stream, "max_tokens": random.u8(1..60),
        "messages": [{ "role": "user", "content": format!("{number} {}", "x ".repeat(random.usize(..200))) }],
    });
    let mut client = TcpStream::connect(gateway).await.unwrap();
    client.write_all(post("/v1/chat/completions", &ask.to_string()).as_bytes()).await.unwrap();
    let leaves_after = random.usize(..2_000);
    let leaves = random.u8(..10) == 0;
    let mut answer = Vec::new();
    while !leaves || answer.len() < leaves_after {
        match client.read_buf(&mut answer).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return seen(&answer, is_stream),
        }
    }
    Sight::Nothing
}

fn seen(answer: &[u8], is_stream: bool) -> Sight {
    let (bytes, is_whole) = body(answer);
    let (status, text) = (status(answer), String::from_utf8_lossy(&bytes));
    if is_whole && is_stream && status == 200 {
        assert!(text.ends_with("data: [DONE]\n\n"), "an end that no engine sent: {text}");
    }
    if is_whole { Sight::Whole(status) } else { Sight::Cut }
}

/// A fleet of engines, a wire with an imp before each, and a gateway in front of them.
async fn scene(seed: u64) -> (Fleet, Vec<Imp>, Running) {
    let fleet = Fleet::start(3).await;
    let mut imps = Vec::new();
    for (number, addr) in (0..).zip(&fleet.replica_addrs) {
        imps.push(Imp::before(*addr, seed ^ (number << 32)).await);
    }
    let addresses: Vec<_> = imps.iter().map(|imp| imp.addr).collect();
    let second = Duration::from_secs(1);
    let stalls = StallLimits { abort_after: Some(second), floor: second, ..Default::default() };
    let setup = Setup {
        first_output: Some(2 * second),
        header_timeout: 2 * second,
        observation: observe::Settings { stalls, ..Default::default() },
        ..Setup::default()
    };
    let gateway = start_with(&addresses, setup).await;
    (fleet, imps, gateway)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_goes_wrong_every_request_ends_once_and_leaves_nothing_behind() {
    let requests = std::env::var("CHAOS").map_or(REQUESTS, |count| count.parse().unwrap());
    let seed = std::env::var("CHAOS_SEED").map_or(9, |seed| seed.parse().unwrap());
    let (fleet, imps, gateway) = scene(seed).await;
    let (mut open, mut sights) = (JoinSet::new(), Vec::new());
    for number in 0..requests {
        if open.len() >= AT_ONCE {
            sights.push(open.join_next().await.unwrap().unwrap());
        }
        open.spawn(ask(gateway.addr, number, seed));
    }
    sights.extend(open.join_all().await);
    let mut records: Vec<RequestRecord> = Vec::new();
    for _ in 0..requests {
        records.push(gateway.record().await);
    }
    gateway.assert_no_more_records().await;
    let count = |wanted: &dyn Fn(&RequestRecord) -> bool| {
        records.iter().filter(|record| wanted(record)).count()
    };
    let left = sights.iter().filter(|sight| **sight == Sight::Nothing).count();
    let cut = sights.iter().filter(|sight| **sight == Sight::Cut).count();
    assert!(count(&|record| record.outcome == Outcome::Cancelled) <= left);
    assert!(count(&|record| record.outcome == Outcome::Ok) > requests / 2);
    let retried = count(&|record| record.attempts.len() > 1);
    println!("{requests} requests: {left} left, {cut} were cut, {retried} were sent again");
    assert!(retried > 0 && cut > 0);
    nothing_is_left(&fleet, &gateway).await;
    imps.iter().for_each(Imp::tame);
    let healed = ask(gateway.addr, 0, 1).await;
    assert!(matches!(healed, Sight::Whole(200) | Sight::Nothing), "{healed:?}");
}

async fn nothing_is_left(fleet: &Fleet, gateway: &Running) {
    assert!(gateway.pool.backends().iter().all(|backend| backend.in_flight() == 0));
    assert!(gateway.admin("/status").await.contains(r#""in_flight":0"#));
    // Engines hear of clients that left at their next step.
    let is_idle = || fleet.replicas.iter().all(|replica| replica.stats().running == 0);
    while !is_idle() {
        tokio::task::yield_now().await;
    }
}
