//! Engines without progress, and metrics pages that do not show progress. The gateway takes a backend out of
//! service as stuck only if two valid metrics pages prove that the engine makes no progress.

use crate::support::scripted_backend::{
    Page, ScriptedBackend, Step, WHOLE_STREAM, json, response, stream_of,
};
use crate::support::test_gateway::{
    ASK_STREAM, CHAT, Running, Setup, read_until, start_with, status,
};
use futures_util::future::join_all;
use std::time::Duration;
use tokenweir_gateway::backend::Health;
use tokenweir_request::record::Outcome;
use tokenweir_routing::resilience::CircuitBreakerSettings;

const BODY: &str = r#"{"model":"tiny"}"#;
const STUCK_AFTER: Duration = Duration::from_millis(100);
/// Number of scrapes that together take longer than `STUCK_AFTER`: two scrapes are at least 20 ms apart.
const SCRAPE_COUNT: usize = 12;

/// Builds the metrics page of an engine that runs a request and has generated `tokens` tokens.
fn running(tokens: u32) -> Page {
    Page::of(&format!(
        "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n\
         vllm:prompt_tokens_total 40\nvllm:generation_tokens_total {tokens}\n"
    ))
}

fn answer(status: &str) -> Page {
    Page::Whole(response(status, "", ""))
}

/// Builds the settings of a gateway that takes a backend out of service if its engine makes no progress for
/// this time.
fn stuck_after(time: Duration) -> Setup {
    let health = CircuitBreakerSettings {
        stuck_after: Some(time),
        ..Setup::default().health
    };
    Setup {
        health,
        ..Setup::default()
    }
}

/// Starts a backend whose metrics page shows a running request without progress, and a gateway with
/// [`STUCK_AFTER`].
async fn start() -> (ScriptedBackend, Running) {
    let fake = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    fake.set_metrics(Some(running(7)));
    let gateway = start_with(&[fake.addr], stuck_after(STUCK_AFTER)).await;
    (fake, gateway)
}

fn health(gateway: &Running) -> Health {
    gateway.pool.backends()[0].health.state().health
}

fn reason(gateway: &Running) -> String {
    gateway.pool.backends()[0]
        .health
        .state()
        .reason
        .as_deref()
        .unwrap_or_default()
        .to_owned()
}

/// Waits until the gateway has sent the backend `times` more scrapes or health checks.
async fn wait_for_probes(fake: &ScriptedBackend, times: usize) {
    let count = || fake.looks().iter().sum::<usize>();
    let before = count();
    wait_until!(count() >= before + times);
}

#[tokio::test]
async fn a_working_backend_survives_its_failing_page() {
    let half = "vllm:num_requests_running 1\nvllm:num_requests_wai";
    let length =
        |length: u64| format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{half}").into();
    let failures = [
        ("500", answer("500 Internal Server Error"), SCRAPE_COUNT),
        ("404", answer("404 Not Found"), SCRAPE_COUNT),
        ("timeout", Page::Drip(length(400)), 4),
        ("too long", Page::Cut(length(50 << 20)), SCRAPE_COUNT),
        (
            "not understood",
            Page::of("<html>Log in</html>"),
            SCRAPE_COUNT,
        ),
        ("cut", Page::Cut(length(400)), SCRAPE_COUNT),
    ];
    let each = failures
        .into_iter()
        .map(|(name, page, scrapes)| async move {
            let (fake, gateway) = start().await;
            let last = gateway.pool.backends()[0]
                .health
                .state()
                .sample
                .unwrap()
                .load
                .running;
            assert!(
                last.is_some_and(|running| running >= 1.0),
                "{name}: the last valid page"
            );
            fake.set_metrics(Some(page));
            wait_until!(
                gateway.pool.backends()[0]
                    .health
                    .state()
                    .metrics_error
                    .is_some()
            );
            // Earlier valid pages may have shown that the engine is stuck. The backend must first count as up
            // again.
            wait_until!(health(&gateway) == Health::Up);
            for _ in 0..scrapes {
                wait_for_probes(&fake, 1).await;
                assert_eq!(health(&gateway), Health::Up, "{name}: {}", reason(&gateway));
            }
            assert_eq!(status(&gateway.post(CHAT, BODY).await), 200, "{name}");
        });
    join_all(each).await;
}

#[tokio::test]
async fn a_restarted_backend_without_a_page_is_up() {
    let (fake, gateway) = start().await;
    fake.set_healthy(false);
    fake.set_metrics(Some(answer("404 Not Found")));
    // A request failed because the engine process has ended. The gateway notices that before its next health
    // check.
    gateway.pool.backends()[0].mark_down("refused");
    wait_for_probes(&fake, SCRAPE_COUNT).await;
    assert_eq!(health(&gateway), Health::Down);
    fake.set_healthy(true);
    wait_until!(health(&gateway) == Health::Up);
    for _ in 0..SCRAPE_COUNT {
        wait_for_probes(&fake, 1).await;
        assert_eq!(health(&gateway), Health::Up, "{}", reason(&gateway));
    }
}

#[tokio::test]
async fn a_stuck_engine_is_down_until_progress() {
    let (fake, gateway) = start().await;
    wait_until!(health(&gateway) == Health::Down);
    assert!(
        reason(&gateway).contains("showed no progress"),
        "{}",
        reason(&gateway)
    );
    for _ in 0..SCRAPE_COUNT {
        wait_for_probes(&fake, 1).await;
        assert_eq!(
            health(&gateway),
            Health::Down,
            "a passing health check does not prove progress"
        );
    }
    assert!(
        gateway.admin("/readyz").await.contains("ok"),
        "the last backend is not taken away"
    );
    fake.set_metrics(Some(running(8)));
    wait_until!(health(&gateway) == Health::Up);
    fake.set_metrics(Some(running(8)));
    wait_until!(health(&gateway) == Health::Down);
    assert_eq!(status(&gateway.post(CHAT, BODY).await), 200);
    // The gateway takes the successful response as progress of the engine.
    wait_until!(health(&gateway) == Health::Up);
}

#[tokio::test]
async fn a_request_stays_at_a_seemingly_stuck_engine() {
    let steps = [Step::Wait, Step::Send(stream_of(&WHOLE_STREAM))];
    let slow = ScriptedBackend::following(steps).await;
    slow.set_metrics(Some(running(7)));
    let other = ScriptedBackend::start(|_| vec![Step::AwaitClose]).await;
    let setup = stuck_after(Duration::from_secs(1));
    let gateway = start_with(&[slow.addr, other.addr], setup).await;
    other.set_healthy(false);
    wait_until!(gateway.pool.backends()[1].health.state().health == Health::Down);
    let mut client = gateway.begin(CHAT, ASK_STREAM).await;
    slow.until_received(1).await;
    other.set_healthy(true);
    wait_until!(health(&gateway) == Health::Down);
    wait_until!(gateway.pool.backends()[1].health.state().health == Health::Up);
    slow.go();
    read_until(&mut client, "[DONE]").await;
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.attempts.len()), (Outcome::Ok, 1));
}

#[tokio::test]
async fn a_backend_that_answers_503_is_down() {
    let (fake, gateway) = start().await;
    fake.set_metrics(Some(answer("503 Service Unavailable")));
    for _ in 0..SCRAPE_COUNT {
        wait_for_probes(&fake, 1).await;
        assert_eq!(
            health(&gateway),
            Health::Up,
            "a backend with a readable model list is up"
        );
    }
    fake.refuse_models("503 Service Unavailable");
    wait_until!(health(&gateway) == Health::Down);
    assert!(
        reason(&gateway).contains("503 to all requests"),
        "{}",
        reason(&gateway)
    );
    fake.set_models(&["tiny"]);
    fake.set_metrics(Some(running(8)));
    wait_until!(health(&gateway) == Health::Up);
}
