//! The waiting room in front of simulated engines: bursts and storms, of which nothing may be lost
//! and nothing left.

use super::{CHAT, answer, assert_nothing_is_left, header, until_waiting};
use crate::support::gateway::{Setup, post, start_with, status, waiting_room};
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir::config;
use tokenweir_core::record::Outcome;
use tokenweir_sim::Sim;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A chat that a simulated engine answers with so many tokens.
fn chat(model: &str, tokens: usize) -> String {
    let body = format!(
        r#"{{"model":"{model}","stream":true,"max_tokens":{tokens},"ignore_eos":true,"messages":[{{"role":"user","content":"go on"}}]}}"#
    );
    post(CHAT, &body)
}

/// Small engines: four sequences and 1,024 tokens of cache each.
async fn engines(models: &[&str]) -> Vec<SocketAddr> {
    let mut addrs = Vec::new();
    for model in models {
        let settings = tokenweir_sim::Settings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            replicas: 1,
            models: vec![(*model).to_owned()],
            max_num_seqs: 4,
            blocks: 64,
            block_size: 16,
            ..tokenweir_sim::Settings::default()
        };
        let sim = Sim::bind(&settings).await.unwrap();
        addrs.extend_from_slice(sim.addrs());
        tokio::spawn(sim.run(std::future::pending()));
    }
    addrs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burst_of_500_clients_is_served_whole_by_two_small_engines() {
    let gateway = start_with(&engines(&["sim", "sim"]).await, Setup::default()).await;
    let ask = chat("sim", 4);
    let burst = (0..500).map(|_| gateway.raw(&ask));
    for answer in futures_util::future::join_all(burst).await {
        assert_eq!(status(&answer), 200);
        assert!(String::from_utf8_lossy(&answer).contains("data: [DONE]"));
    }
    let mut waited = 0;
    for _ in 0..500 {
        let record = gateway.record().await;
        assert_eq!((record.outcome, record.observed.usage.output), (Outcome::Ok, None));
        waited += usize::from(record.queue_wait().is_some());
    }
    assert!(waited > 300, "{waited} have waited");
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_of_clients_that_leave_or_find_no_room_leaves_nothing_behind() {
    let room = config::Admission {
        room: 50,
        max_wait: Duration::from_millis(300),
        ..config::Admission::default()
    };
    let setup = Setup { admission: Some(waiting_room(&room)), ..Setup::default() };
    let gateway = start_with(&engines(&["sim", "sim"]).await, setup).await;
    let ask = chat("sim", 20);
    let storm = (0..200).map(|number| {
        let (gateway, ask) = (&gateway, &ask);
        async move {
            // The gateway has read the head when it asks for the body: from then on there is a
            // record. Every other client leaves: some in the room, some in their answer.
            let (head, body) = ask.split_once("\r\n\r\n").unwrap();
            let head = format!("{head}\r\nexpect: 100-continue\r\n\r\n");
            let mut client = gateway.connect().await;
            client.write_all(head.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
            }
            assert_eq!(status(&answer), 100);
            answer.clear();
            client.write_all(body.as_bytes()).await.unwrap();
            let patience = Duration::from_millis(if number % 2 == 0 { number } else { 60_000 });
            let whole = tokio::time::timeout(patience, client.read_to_end(&mut answer)).await;
            (whole.is_ok().then(|| status(&answer)), header(&answer, "x-gateway-error"))
        }
    });
    for (status, reason) in futures_util::future::join_all(storm).await {
        let is_lawful = match status {
            None => true,
            Some(200) => reason.is_none(),
            Some(429) => matches!(reason.as_deref(), Some("saturated" | "queue_timeout")),
            Some(_) => false,
        };
        assert!(is_lawful, "{status:?} {reason:?}");
    }
    for _ in 0..200 {
        let outcome = gateway.record().await.outcome;
        let is_lawful = matches!(outcome, Outcome::Ok | Outcome::Cancelled | Outcome::Rejected);
        assert!(is_lawful, "{outcome:?}");
    }
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test]
async fn a_model_whose_replica_is_full_does_not_hold_up_another() {
    let room =
        config::Admission { room: 1, max_in_flight: Some(1), ..config::Admission::default() };
    let setup = Setup { admission: Some(waiting_room(&room)), ..Setup::default() };
    let gateway = start_with(&engines(&["full", "free"]).await, setup).await;
    let mut first = gateway.connect().await;
    first.write_all(chat("full", 900).as_bytes()).await.unwrap();
    assert_ne!(first.read_buf(&mut Vec::new()).await.unwrap(), 0, "it has begun");
    let mut waits = gateway.connect().await;
    waits.write_all(chat("full", 4).as_bytes()).await.unwrap();
    until_waiting(&gateway, 1).await;
    assert_eq!(status(&gateway.raw(chat("free", 4)).await), 200);
    drop(first);
    assert_eq!(status(&answer(waits).await), 200);
    for _ in 0..3 {
        gateway.record().await;
    }
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a test: cargo test -- --ignored --nocapture overload"]
async fn what_an_overload_of_three_times_the_capacity_does() {
    let admissions = [
        ("off", None),
        ("on", Some(config::Admission { room: 100, ..config::Admission::default() })),
        // The queue of an engine as short as it can be: the latest binding.
        (
            "on, max_waiting 1",
            Some(config::Admission {
                room: 100,
                max_waiting: Some(1),
                ..config::Admission::default()
            }),
        ),
    ];
    for (name, admission) in admissions {
        let admission = admission.map(|configured| waiting_room(&configured));
        let look_every = Duration::from_millis(250);
        let setup = Setup { admission, look_every, ..Setup::default() };
        let gateway = start_with(&engines(&["sim", "sim"]).await, setup).await;
        let ask = chat("sim", 20);
        let begun = tokio::time::Instant::now();
        let storm = (0..1_200).map(|number| {
            let (gateway, ask) = (&gateway, &ask);
            async move {
                tokio::time::sleep_until(begun + Duration::from_secs(10) * number / 1_200).await;
                gateway.raw(ask).await;
            }
        });
        futures_util::future::join_all(storm).await;
        let took = begun.elapsed();
        let (mut queues, mut ttfts, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..1_200 {
            let record = gateway.record().await;
            match (record.upstream_ttft(), record.refusal) {
                (Some(engine), _) => {
                    queues.push(engine);
                    ttfts.push(record.ttft().unwrap());
                }
                (None, Some("saturated")) => refusals.push(record.duration()),
                (_, other) => println!("  {other:?} after {:?}", record.duration()),
            }
        }
        let rate = ttfts.len() as f64 / took.as_secs_f64();
        println!("{name}: {} served in {took:?}, {rate:.0} a second", ttfts.len());
        for (what, mut times) in [("ttft", ttfts), ("in the replica", queues), ("429", refusals)] {
            times.sort_unstable();
            let at = |share: usize| times.get(times.len() * share / 100);
            println!("  {what}: {} times, p50 {:?}, p99 {:?}", times.len(), at(50), at(99));
        }
    }
}
