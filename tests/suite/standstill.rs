//! Engines that make no progress, and pages that cannot tell whether they do: a backend is out of
//! service for a standstill only if two good pages prove it.

use crate::support::fake::{Fake, Page};
use crate::support::gateway::{Running, Setup, start_with, status};
use futures_util::future::join_all;
use std::time::Duration;
use tokenweir::backend::Health;
use tokenweir_core::resilience;

const CHAT: &str = "/v1/chat/completions";
const BODY: &str = r#"{"model":"tiny"}"#;
const STUCK_AFTER: Duration = Duration::from_millis(100);
/// Looks that take longer than that: they are at least 20 ms apart.
const LOOKS: usize = 12;

/// A page of an engine that runs a request and has made so many tokens.
fn running(tokens: u32) -> Page {
    Page::of(&format!(
        "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n\
         vllm:prompt_tokens_total 40\nvllm:generation_tokens_total {tokens}\n"
    ))
}

fn answer(status: &str) -> Page {
    Page::Whole(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").into())
}

async fn start(fake: &Fake) -> Running {
    let health = resilience::Settings { stuck_after: Some(STUCK_AFTER), ..Setup::default().health };
    start_with(&[fake.addr], Setup { health, ..Setup::default() }).await
}

fn health(gateway: &Running) -> Health {
    gateway.pool.backends()[0].state().health
}

fn reason(gateway: &Running) -> String {
    gateway.pool.backends()[0].state().reason.as_deref().unwrap_or_default().to_owned()
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::task::yield_now().await;
    }
}

/// Waits until the backend was asked so many times for its metrics and its health together.
async fn looked(fake: &Fake, times: usize) {
    let count = || fake.looks().iter().sum::<usize>();
    let before = count();
    until(|| count() >= before + times).await;
}

#[tokio::test]
async fn a_backend_whose_metrics_fail_while_it_runs_requests_stays_in_service() {
    let half = "vllm:num_requests_running 1\nvllm:num_requests_wai";
    let length =
        |length: u64| format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{half}").into();
    let failures = [
        ("500", answer("500 Internal Server Error"), LOOKS),
        ("404", answer("404 Not Found"), LOOKS),
        ("timeout", Page::Drip(length(400)), 4),
        ("too long", Page::Cut(length(50 << 20)), LOOKS),
        ("not understood", Page::of("<html>Log in</html>"), LOOKS),
        ("cut", Page::Cut(length(400)), LOOKS),
    ];
    let each = failures.into_iter().map(|(name, page, looks)| async move {
        let fake = Fake::answering(crate::support::fake::json("200 OK", "{}")).await;
        fake.set_metrics(Some(running(7)));
        let gateway = start(&fake).await;
        let last = gateway.pool.backends()[0].state().sample.unwrap().load.running;
        assert!(last.is_some_and(|running| running >= 1.0), "{name}: the last good page");
        fake.set_metrics(Some(page));
        until(|| gateway.pool.backends()[0].state().metrics_error.is_some()).await;
        // A standstill that the good pages had proved meanwhile is over.
        until(|| health(&gateway) == Health::Up).await;
        for _ in 0..looks {
            looked(&fake, 1).await;
            assert_eq!(health(&gateway), Health::Up, "{name}: {}", reason(&gateway));
        }
        assert_eq!(status(&gateway.post(CHAT, BODY).await), 200, "{name}");
    });
    join_all(each).await;
}

#[tokio::test]
async fn a_backend_that_restarts_without_metrics_returns() {
    let fake = Fake::answering(crate::support::fake::json("200 OK", "{}")).await;
    fake.set_metrics(Some(running(7)));
    let gateway = start(&fake).await;
    fake.set_healthy(false);
    fake.set_metrics(Some(answer("404 Not Found")));
    // A request met the end of the process; its health check follows.
    gateway.pool.backends()[0].suspect("refused");
    looked(&fake, LOOKS).await;
    assert_eq!(health(&gateway), Health::Down);
    fake.set_healthy(true);
    until(|| health(&gateway) == Health::Up).await;
    for _ in 0..LOOKS {
        looked(&fake, 1).await;
        assert_eq!(health(&gateway), Health::Up, "{}", reason(&gateway));
    }
}

#[tokio::test]
async fn an_engine_that_makes_no_token_is_out_of_service_until_it_makes_one() {
    let fake = Fake::answering(crate::support::fake::json("200 OK", "{}")).await;
    fake.set_metrics(Some(running(7)));
    let gateway = start(&fake).await;
    until(|| health(&gateway) == Health::Down).await;
    assert!(reason(&gateway).contains("made no token"), "{}", reason(&gateway));
    for _ in 0..LOOKS {
        looked(&fake, 1).await;
        assert_eq!(health(&gateway), Health::Down, "its health check passes, and proves nothing");
    }
    assert_eq!(status(&gateway.post(CHAT, BODY).await), 503);
    fake.set_metrics(Some(running(8)));
    until(|| health(&gateway) == Health::Up).await;
    assert_eq!(status(&gateway.post(CHAT, BODY).await), 200);
}
