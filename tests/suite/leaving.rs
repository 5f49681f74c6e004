//! Clients that leave: in every phase of a request, in every way a connection or a stream can end.
//! The replica must know at once, or never hear of the request.
//!
//! `LEAVING=200 cargo test --release --test suite leaving -- --ignored --nocapture` measures it.

mod clients;

use crate::admission::until_waiting;
use crate::support::fake::{Fake, ROLE, Step, WORD, chunk, stream_head};
use crate::support::gateway::{Running, Setup, post, start, start_with, waiting_room};
use clients::{Client, WAYS, Way};
use std::time::{Duration, Instant};
use tokenweir::config;
use tokenweir_core::record::Outcome;
use tokio::io::AsyncWriteExt;

pub(crate) const CHAT: &str = "/v1/chat/completions";
const ASK: &str =
    r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
const TIMES: usize = 3;
/// The longest time at p99 until the connection to the replica is closed.
const BAR: Duration = Duration::from_millis(10);
/// What takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// How far a request has come when its client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Half of its body is missing.
    Upload,
    /// Every replica is full.
    Queued,
    /// The replica has it, and has not answered.
    Headers,
    /// The answer has begun, and no output has come: the gateway holds it.
    Held,
    /// Two words have come.
    Streaming,
}

const PHASES: [Phase; 5] =
    [Phase::Upload, Phase::Queued, Phase::Headers, Phase::Held, Phase::Streaming];

impl Phase {
    /// As records call it.
    const fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Queued => "queued",
            Self::Headers => "headers",
            Self::Held => "prefill",
            Self::Streaming => "decode",
        }
    }

    /// What the replica does.
    fn script(self) -> Vec<Step> {
        let begun = match self {
            Self::Held => [stream_head(), chunk(ROLE)].concat(),
            Self::Streaming => [stream_head(), chunk(ROLE), chunk(WORD), chunk(WORD)].concat(),
            _ => Vec::new(),
        };
        vec![Step::Send(begun), Step::AwaitClose]
    }

    fn has_replica(self) -> bool {
        !matches!(self, Self::Upload | Self::Queued)
    }
}

/// A gateway and a replica, and what fills it if requests are to wait.
async fn stage(phase: Phase) -> (Fake, Running, Option<tokio::net::TcpStream>) {
    let fake = Fake::start(move |_| phase.script()).await;
    if phase != Phase::Queued {
        let gateway = start(&[fake.addr]).await;
        return (fake, gateway, None);
    }
    let admission = config::Admission { max_in_flight: Some(1), ..config::Admission::default() };
    let admission = Some(waiting_room(&admission));
    let gateway = start_with(&[fake.addr], Setup { admission, ..Setup::default() }).await;
    let mut first = gateway.connect().await;
    first.write_all(post(CHAT, ASK).as_bytes()).await.unwrap();
    until_seen(&fake, 1).await;
    (fake, gateway, Some(first))
}

async fn until_seen(fake: &Fake, count: usize) {
    while fake.seen().len() < count {
        tokio::task::yield_now().await;
    }
}

/// Waits until so many requests are open.
async fn until_open(gateway: &Running, count: usize) {
    let line = format!("\ntokenweir_requests_in_flight {count}\n");
    while !gateway.admin("/metrics").await.contains(&line) {}
}

/// A client that comes so far and leaves: how long until the replica knows, or, where it has never
/// heard of the request, until the request is over.
async fn leave(fake: &Fake, gateway: &Running, phase: Phase, way: Way) -> Duration {
    let earlier = fake.seen().len();
    let length = if phase == Phase::Upload { ASK.len() / 2 } else { ASK.len() };
    let mut client = Client::ask(gateway.addr, way, ASK, length).await;
    match phase {
        Phase::Upload => until_open(gateway, 1).await,
        Phase::Queued => until_waiting(gateway, 1).await,
        Phase::Headers => until_seen(fake, earlier + 1).await,
        Phase::Held => {
            until_seen(fake, earlier + 1).await;
            // The gateway reads what the replica has written before it answers this.
            gateway.admin("/metrics").await;
        }
        Phase::Streaming => client.read_until("Hi", 2).await,
    }
    let left = Instant::now();
    let _half = client.leave(way).await;
    let mut took = None;
    if phase.has_replica() {
        fake.closed().await;
        took = Some(left.elapsed());
    }
    let record = gateway.record().await;
    let took = took.unwrap_or_else(|| left.elapsed());
    assert_eq!((record.outcome, record.phase()), (Outcome::Cancelled, phase.name()), "{way:?}");
    if !phase.has_replica() {
        assert_eq!(fake.seen().len(), earlier, "{phase:?}, {way:?}: no replica heard of it");
    }
    took
}

/// Each phase and each way, so many times.
async fn measure(times: usize) -> Vec<(Phase, Way, Vec<Duration>)> {
    let mut cells = Vec::new();
    for phase in PHASES {
        for way in WAYS {
            let (fake, gateway, _first) = stage(phase).await;
            let mut took = Vec::new();
            for _ in 0..times {
                let leaving = tokio::time::timeout(PATIENCE, leave(&fake, &gateway, phase, way));
                took.push(leaving.await.expect("somebody notices"));
            }
            gateway.assert_no_more_records().await;
            took.sort_unstable();
            cells.push((phase, way, took));
        }
    }
    cells
}

#[tokio::test]
async fn a_client_that_leaves_in_any_phase_and_any_way_is_gone_for_the_replica() {
    assert_eq!(measure(TIMES).await.len(), PHASES.len() * WAYS.len());
}

#[tokio::test]
#[ignore = "a measurement; see the head of this file"]
async fn how_soon_the_replica_knows() {
    let times = std::env::var("LEAVING").map_or(200, |times| times.parse().unwrap());
    let cells = measure(times).await;
    let at = |took: &[Duration], share: f64| took[((took.len() - 1) as f64 * share) as usize];
    let mut all = Vec::new();
    println!("{times} times each; until the replica's connection closes, or the request is over");
    for (phase, way, took) in &cells {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| at(took, share));
        println!("{:9} {way:?}: p50 {p50:?}, p99 {p99:?}, max {max:?}", phase.name());
        all.extend_from_slice(took);
    }
    all.sort_unstable();
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| at(&all, share));
    println!("all {}: p50 {p50:?}, p99 {p99:?}, max {max:?}", all.len());
    assert!(p99 <= BAR, "{p99:?} at p99");
}

/// hyper drops the service's future before it has begun then.
#[tokio::test]
async fn a_client_that_leaves_with_the_last_byte_of_its_request_leaves_a_record() {
    let fake = Fake::start(|_| vec![Step::AwaitClose]).await;
    let gateway = start(&[fake.addr]).await;
    for _ in 0..100 {
        let mut client = gateway.connect().await;
        client.write_all(post(CHAT, ASK).as_bytes()).await.unwrap();
        drop(client);
        let record = tokio::time::timeout(PATIENCE, gateway.record()).await;
        let record = record.expect("a record");
        assert_eq!(record.outcome, Outcome::Cancelled);
    }
    // Few replicas hear of it, if any, and of the end too.
    for _ in fake.seen() {
        fake.closed().await;
    }
    gateway.assert_no_more_records().await;
}
