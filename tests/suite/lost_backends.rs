//! Backends that answer requests but no health checks, and backends that are down while requests and streams
//! wait for them.

use crate::support::scripted_backend::{
    FINISH, Page, ROLE, ScriptedBackend, Step, WHOLE_STREAM, WORD, begin, json, paused, stream_of,
};
use crate::support::test_gateway::{
    ASK, ASK_STREAM, CHAT, Running, Setup, WHOLE, advance_time, body, read_rest, read_until, start,
    start_before, status,
};
use futures_util::future::join_all;
use serde_json::json;
use std::time::Duration;
use tokenweir_gateway::backend::Health;
use tokenweir_request::record::{Outcome, Termination};
use tokenweir_routing::{Policy, PolicyKind};

/// Time after which a silent stream of a backend that is down ends.
const LOST_SILENCE: Duration = Duration::from_secs(15);

fn health(gateway: &Running) -> Health {
    gateway.pool.backends()[0].health.state().health
}

/// Makes the backend leave requests for these paths unanswered.
fn silence(fake: &ScriptedBackend, paths: &[&'static str]) {
    for path in paths {
        fake.set_raw_page(path, Page::Drip(Vec::new()));
    }
}

/// Waits until the gateway has sent the backend `times` more scrapes or health checks.
async fn wait_for_probes(fake: &ScriptedBackend, times: usize) {
    let count = || fake.looks().iter().sum::<usize>();
    let before = count();
    wait_until!(count() >= before + times);
}

#[tokio::test]
async fn the_last_backend_serves_without_probes() {
    let fake = ScriptedBackend::answering(json("200 OK", WHOLE)).await;
    let gateway = start(&[fake.addr]).await;
    silence(&fake, &["/health", "/metrics", "/v1/models", "/version"]);
    for _ in 0..2 {
        wait_until!(health(&gateway) == Health::Down);
        assert!(
            gateway.admin("/readyz").await.contains("ok"),
            "it is not taken away"
        );
        assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
        wait_until!(health(&gateway) == Health::Up);
    }
}

#[tokio::test]
async fn late_health_checks_take_no_backend_away() {
    let pages = [
        ("late", Page::Drip(Vec::new()), 5),
        ("404", Page::Whole(json("404 Not Found", "")), 20),
        ("401", Page::Whole(json("401 Unauthorized", "")), 20),
        ("429", Page::Whole(json("429 Too Many Requests", "")), 20),
        (
            "cut",
            Page::Cut(b"HTTP/1.1 200 OK\r\ncontent-len".to_vec()),
            20,
        ),
    ];
    let each = pages.into_iter().map(|(name, page, probes)| async move {
        let fake = ScriptedBackend::answering(json("200 OK", WHOLE)).await;
        let gateway = start(&[fake.addr]).await;
        fake.set_raw_page("/health", page);
        for _ in 0..probes {
            gateway.pool.backends()[0].health.mark_models_stale();
            wait_for_probes(&fake, 1).await;
            assert_eq!(health(&gateway), Health::Up, "{name}");
        }
    });
    join_all(each).await;
}

#[tokio::test]
async fn a_lost_silent_stream_ends_visibly() {
    let fake = ScriptedBackend::start(|_| vec![begin(&[ROLE, WORD]), Step::AwaitClose]).await;
    let gateway = start(&[fake.addr]).await;
    let mut client = gateway.begin(CHAT, ASK_STREAM).await;
    let mut received = read_until(&mut client, WORD).await;
    fake.set_healthy(false);
    gateway.pool.backends()[0].health.wait_declared_down().await;
    advance_time(LOST_SILENCE).await;
    received.extend(read_rest(client).await);
    assert!(!body(&received).1, "cut");
    fake.closed().await;
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.end),
        (Outcome::Truncated, Termination::UpstreamReset)
    );
}

#[tokio::test]
async fn a_stream_with_output_stays() {
    let fake = ScriptedBackend::start(|_| paused(&[ROLE, WORD], &[FINISH, "[DONE]"])).await;
    let gateway = start(&[fake.addr]).await;
    let mut client = gateway.begin(CHAT, ASK_STREAM).await;
    let mut received = read_until(&mut client, WORD).await;
    fake.set_healthy(false);
    gateway.pool.backends()[0].health.wait_declared_down().await;
    fake.go();
    received.extend(read_rest(client).await);
    assert!(body(&received).1);
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn equal_requests_survive_the_death_of_one_backend() {
    let dying = ScriptedBackend::start(|_| vec![Step::Wait, Step::Reset]).await;
    let well = ScriptedBackend::answering(json("200 OK", WHOLE)).await;
    let policy = Policy {
        kind: PolicyKind::RoundRobin,
        ..Policy::default()
    };
    let gateway = start_before(
        &[&dying, &well],
        Setup {
            policy,
            ..Setup::default()
        },
    )
    .await;
    let clients = async { join_all((0..8).map(|_| gateway.post(CHAT, ASK))).await };
    let (answers, ()) = tokio::join!(clients, async {
        dying.until_received(4).await;
        (0..4).for_each(|_| dying.go());
    });
    assert!(answers.iter().all(|answer| status(answer) == 200));
}

#[tokio::test]
async fn a_repetition_avoids_the_backend_that_cut() {
    let fakes = ScriptedBackend::two(|number, _, _| match number {
        2 => vec![begin(&WHOLE_STREAM[..2]), Step::Reset],
        _ => vec![Step::Send(stream_of(&WHOLE_STREAM))],
    })
    .await;
    let policy = Policy {
        kind: PolicyKind::PrefixAffinity,
        ..Policy::default()
    };
    let gateway = start_before(
        &fakes,
        Setup {
            policy,
            ..Setup::default()
        },
    )
    .await;
    let prompt = "a long prompt ".repeat(1_000);
    let request = json!({"model": "tiny", "stream": true,
        "messages": [{"role": "user", "content": prompt}]});
    let mut used = Vec::new();
    for is_whole in [true, true, false, true] {
        let received = gateway.post(CHAT, &request.to_string()).await;
        assert_eq!(body(&received).1, is_whole);
        used.push(gateway.record().await.backend().unwrap().clone());
    }
    assert_eq!(used[0], used[1], "its prompt is cached there");
    assert_eq!(used[1], used[2]);
    assert_ne!(used[2], used[3]);
}
