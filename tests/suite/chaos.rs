//! Simulated engines behind proxies that inject random faults, and clients that disconnect at random. Every
//! request ends and has one record. The gateway adds no complete end to a truncated response. No state
//! remains in the gateway or in the engines.

use crate::support::fault_injection_proxy::FaultInjectionProxy;
use crate::support::simulated_fleet::Fleet;
use crate::support::test_gateway::{CHAT, Running, Setup, body, post, send_to, start_with, status};
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_request::observe::{self, StallLimits};
use tokenweir_request::record::{Outcome, RequestRecord};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

/// Number of requests. The environment variable `CHAOS` overrides it.
const REQUESTS: usize = 600;
const CONCURRENT_REQUESTS: usize = 24;

/// What a client received as its response.
#[derive(Debug, PartialEq)]
enum ClientOutcome {
    /// A complete response with this status.
    Whole(u16),
    /// A truncated response.
    Cut,
    /// Nothing, because the client disconnected.
    Nothing,
}

/// Sends the request with this number. Depending on the seed, the client disconnects during the request.
async fn send_request(gateway: SocketAddr, number: usize, seed: u64) -> ClientOutcome {
    let mut random = fastrand::Rng::with_seed(seed ^ number as u64);
    let is_stream = random.bool();
    let request_body = serde_json::json!({
        "model": "sim-model", "stream": is_stream, "max_tokens": random.u8(1..60),
        "messages": [{ "role": "user", "content": format!("{number} {}", "x ".repeat(random.usize(..200))) }],
    });
    let mut client = send_to(gateway, post(CHAT, &request_body.to_string())).await;
    let leaves_after = random.usize(..2_000);
    let leaves = random.u8(..10) == 0;
    let mut answer = Vec::new();
    while !leaves || answer.len() < leaves_after {
        match client.read_buf(&mut answer).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return classify(&answer, is_stream),
        }
    }
    ClientOutcome::Nothing
}

fn classify(answer: &[u8], is_stream: bool) -> ClientOutcome {
    let (bytes, is_whole) = body(answer);
    let (status, text) = (status(answer), String::from_utf8_lossy(&bytes));
    if is_whole && is_stream && status == 200 {
        assert!(text.ends_with("data: [DONE]\n\n"), "a stream end that no engine sent: {text}");
    }
    if is_whole { ClientOutcome::Whole(status) } else { ClientOutcome::Cut }
}

/// Three simulated engines, a proxy that injects faults in front of each engine, and a gateway in front of
/// the proxies.
async fn setup(seed: u64) -> (Fleet, Vec<FaultInjectionProxy>, Running) {
    let fleet = Fleet::start(3).await;
    let mut imps = Vec::new();
    for (number, addr) in (0..).zip(&fleet.backend_addrs) {
        imps.push(FaultInjectionProxy::before(*addr, seed ^ (number << 32)).await);
    }
    let addresses: Vec<_> = imps.iter().map(|imp| imp.addr).collect();
    let second = Duration::from_secs(1);
    let stalls = StallLimits { abort_after: Some(second), min_gap: second };
    let setup = Setup {
        first_output: Some(2 * second),
        header_timeout: 2 * second,
        observation: observe::ObservationSettings { stalls, ..Default::default() },
        ..Setup::default()
    };
    let gateway = start_with(&addresses, setup).await;
    (fleet, imps, gateway)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_random_faults_every_request_ends_once_and_leaves_no_state() {
    let requests = std::env::var("CHAOS").map_or(REQUESTS, |count| count.parse().unwrap());
    let seed = std::env::var("CHAOS_SEED").map_or(9, |seed| seed.parse().unwrap());
    let (fleet, imps, gateway) = setup(seed).await;
    let (mut open, mut outcomes) = (JoinSet::new(), Vec::new());
    for number in 0..requests {
        if open.len() >= CONCURRENT_REQUESTS {
            outcomes.push(open.join_next().await.unwrap().unwrap());
        }
        open.spawn(send_request(gateway.addr, number, seed));
    }
    outcomes.extend(open.join_all().await);
    let mut records: Vec<RequestRecord> = Vec::new();
    for _ in 0..requests {
        records.push(gateway.record().await);
    }
    gateway.assert_no_more_records().await;
    let count = |wanted: &dyn Fn(&RequestRecord) -> bool| {
        records.iter().filter(|record| wanted(record)).count()
    };
    let left = outcomes.iter().filter(|outcome| **outcome == ClientOutcome::Nothing).count();
    let cut = outcomes.iter().filter(|outcome| **outcome == ClientOutcome::Cut).count();
    assert!(count(&|record| record.outcome == Outcome::Cancelled) <= left);
    assert!(count(&|record| record.outcome == Outcome::Ok) > requests / 2);
    let retried = count(&|record| record.attempts.len() > 1);
    println!("{requests} requests: {left} disconnected, {cut} truncated, {retried} retried");
    assert!(retried > 0 && cut > 0);
    assert_no_state_left(&fleet, &gateway).await;
    imps.iter().for_each(FaultInjectionProxy::tame);
    let healed = send_request(gateway.addr, 0, 1).await;
    assert!(matches!(healed, ClientOutcome::Whole(200) | ClientOutcome::Nothing), "{healed:?}");
}

async fn assert_no_state_left(fleet: &Fleet, gateway: &Running) {
    assert!(gateway.pool.backends().iter().all(|backend| {
        backend.load.in_flight() == 0 && backend.load.estimator.local_load().tokens == 0
    }));
    assert!(gateway.admin("/status").await.contains(r#""in_flight":0"#));
    // Engines abort requests only at their next step, so wait until no request runs.
    let is_idle = || fleet.backends.iter().all(|backend| backend.stats().load.running == 0);
    wait_until!(is_idle());
}
