//! A fleet of backends that die at random while clients read streams.

use super::engine::Asked;
use super::network::World;
use super::{Gateway, Received, Terms, check, client, run, sweep};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_request::continuation::{ContinuationMode, Continuations};
use tokenweir_request::record::Outcome;

const BACKENDS: usize = 100;
const CLIENTS: usize = 60;
/// Longest pause between two parts of an answer. On average, a pause takes 200 ms.
const PART_TIME: Duration = Duration::from_millis(1_300);

/// Returns for how long backends die at random. The environment variable `FLEET_SECONDS` sets this time.
fn duration() -> Duration {
    let given = std::env::var("FLEET_SECONDS").map(|seconds| seconds.parse().unwrap());
    Duration::from_secs(given.unwrap_or(60))
}

/// Sends one request for a stream after another. Returns each request with what its client received.
async fn reader(
    gateway: Arc<Gateway>,
    world: Arc<World>,
    sent: Arc<AtomicUsize>,
) -> Vec<(Asked, Vec<Received>)> {
    let (mut all, ends) = (Vec::new(), clock::now() + duration());
    while clock::now() < ends {
        let asked = Asked {
            number: sent.fetch_add(1, Ordering::Relaxed),
            is_chat: world.chance(0.7),
            is_stream: true,
            shows_usage: world.chance(0.6),
            is_greedy: world.chance(0.7),
        };
        all.push((
            asked,
            vec![client(&gateway, &world, asked, None, false).await],
        ));
        world.pause(Duration::from_secs(2)).await;
    }
    all
}

/// Lets a random backend die every 0.5 s. A dead backend comes back after 5 to 20 s.
async fn kill(world: Arc<World>) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (backend, world) = (world.below(BACKENDS), world.clone());
        world.die(backend);
        tokio::spawn(async move {
            let seconds = 5 + world.below(16) as u64;
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            world.come_back(backend);
        });
    }
}

async fn fleet(seed: u64, told: Arc<Mutex<String>>) {
    let world = World::with_faults(seed, BACKENDS, told, 0.0, PART_TIME);
    let mut terms = Terms {
        concurrency: None,
        ..Terms::random(&world)
    };
    terms.config.timeouts.total = None;
    terms.config.limits.continuation_memory = 8 << 20;
    terms.config.streams.continuation = ContinuationMode::Exact;
    terms.config.streams.continuation_greedy_only = false;
    let gateway = Arc::new(Gateway::start(&world, BACKENDS, terms).await);
    tokio::spawn(sweep(gateway.clone()));
    let killing = tokio::spawn(kill(world.clone()));
    let sent = Arc::<AtomicUsize>::default();
    let readers: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::spawn(reader(gateway.clone(), world.clone(), sent.clone())))
        .collect();
    let mut all = Vec::new();
    for reader in readers {
        all.extend(reader.await.unwrap());
    }
    killing.abort();
    world.calm();
    tokio::time::sleep(Duration::from_secs(25)).await;
    check(&gateway, &world, &all);
    let records = gateway.records.0.lock().unwrap();
    let mut counts = BTreeMap::<String, usize>::new();
    for record in records.iter() {
        let continued = Continuations::of(record).begun.len();
        let what = if record.outcome == Outcome::Ok {
            format!("whole after {continued} continuations")
        } else {
            let refused = Continuations::of(record)
                .refusal
                .map(|reason| format!("{reason:?}"));
            let not_retried = record.not_retried.map(|reason| format!("{reason:?}"));
            let reason = refused.or(not_retried);
            format!(
                "refused: {}",
                reason.unwrap_or_else(|| panic!("a reason: {record:?}"))
            )
        };
        *counts.entry(what).or_default() += 1;
    }
    world.log(format_args!("{} streams: {counts:?}", records.len()));
    assert!(
        counts.contains_key("whole after 1 continuations"),
        "{counts:?}"
    );
}

#[test]
fn each_stream_is_complete_or_says_why_not() {
    let (told, result) = run(1, fleet);
    println!("{}", told.lines().last().unwrap_or_default());
    if let Err(panic) = result {
        println!("{}", &told[told.len().saturating_sub(20_000)..]);
        std::panic::resume_unwind(panic);
    }
}
