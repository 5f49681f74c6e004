//! Admission by live sessions over real sockets: which requests wait while sessions in progress fill the KV
//! caches, and that no state remains afterwards.

use crate::admission::{NO_SECOND_SCRAPE, assert_no_state_left, assert_shed, until_waiting};
use crate::support::scripted_backend::{Page, ScriptedBackend, Step, json};
use crate::support::test_gateway::{
    CHAT, Running, Setup, admission_settings, post, read_rest, start_with, status,
};
use std::time::Duration;
use tokenweir::config::AdmissionConfig;
use tokenweir_gateway::proxy::admission::AdmissionSettings;
use tokenweir_request::slo::Objective;
use tokenweir_sessions::SessionSettings;
use tokio::net::TcpStream;

/// The metrics page of an engine with a KV cache for 1,600 tokens.
const SMALL_CACHE: &str = "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n\
                           vllm:kv_cache_usage_perc 0.1\n\
                           vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1.0\n";

/// A response whose prompt was not in a cache.
const EVICTED: &str = r#"{"usage":{"prompt_tokens":1000,"completion_tokens":1,
                          "prompt_tokens_details":{"cached_tokens":0}}}"#;
/// Number of turns that show evictions.
const EVICTED_TURNS: usize = 30;

async fn gateway(metrics: &str, admission: AdmissionConfig) -> (ScriptedBackend, Running) {
    gateway_with(metrics, admission_settings(&admission)).await
}

async fn gateway_with(metrics: &str, admission: AdmissionSettings) -> (ScriptedBackend, Running) {
    let steps = [Step::Wait, Step::Send(json("200 OK", EVICTED))];
    let fake = ScriptedBackend::following(steps).await;
    fake.set_metrics(Some(Page::of(metrics)));
    let setup = Setup {
        admission: Some(admission),
        scrape_interval: NO_SECOND_SCRAPE,
        sessions: SessionSettings {
            enabled: true,
            gateways: None,
        },
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    for turn in 0..EVICTED_TURNS {
        let client = send(&gateway, "evicted", turn).await;
        fake.until_received(turn + 1).await;
        fake.go();
        served(&gateway, client).await;
    }
    fake.take_received();
    (fake, gateway)
}

/// Sends a turn of a session whose prompt has about 1,000 tokens, and 10 more with each turn.
async fn send(gateway: &Running, session: &str, turn: usize) -> TcpStream {
    let text = session.repeat(4_000 / session.len()) + &"next turn ".repeat(4 * turn);
    let messages = format!(r#"[{{"role":"user","content":"{text}"}}]"#);
    gateway
        .begin(
            CHAT,
            &format!(r#"{{"model":"tiny","messages":{messages}}}"#),
        )
        .await
}

/// Waits for the response and returns the reason of the admission.
async fn served(gateway: &Running, client: TcpStream) -> Option<&'static str> {
    assert_eq!(status(&read_rest(client).await), 200);
    gateway.record().await.admission
}

#[tokio::test]
async fn new_sessions_wait_and_turns_pass() {
    let (fake, gateway) = gateway(SMALL_CACHE, AdmissionConfig::default()).await;
    let first = send(&gateway, "first", 0).await;
    fake.until_received(1).await;
    let second = send(&gateway, "second", 0).await;
    until_waiting(&gateway, 1).await;
    wait_until!(gateway.document("/status").await["sessions"]["live_sessions"] == 1);
    let sessions = &gateway.document("/status").await["sessions"];
    let fitting = &sessions["fitting_sessions"];
    assert_eq!(
        sessions["summary"],
        format!("{fitting} of 2 sessions fit into the KV caches")
    );
    let live = gateway.document("/streams").await;
    assert_eq!(live["held_because"], sessions["summary"]);
    assert_eq!(
        (&sessions["held_requests"], &sessions["capacity_tokens"]),
        (&1.into(), &1_600.into())
    );
    fake.go();
    assert_eq!(served(&gateway, first).await, Some("session_fits"));
    fake.until_received(2).await;
    let next = send(&gateway, "first", 1).await;
    fake.until_received(3).await;
    fake.go();
    fake.go();
    let mut reasons = [served(&gateway, second).await, served(&gateway, next).await];
    reasons.sort_unstable();
    assert_eq!(reasons, [Some("live_session"), Some("session_waited")]);
    gateway
        .assert_value(
            "tokenweir_session_turns_total{reason=\"live_session\"}",
            EVICTED_TURNS as f64,
        )
        .await;
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn a_client_that_leaves_gives_up_its_wait() {
    let (fake, gateway) = gateway(SMALL_CACHE, AdmissionConfig::default()).await;
    let first = send(&gateway, "first", 0).await;
    fake.until_received(1).await;
    let second = send(&gateway, "second", 0).await;
    until_waiting(&gateway, 1).await;
    drop(second);
    until_waiting(&gateway, 0).await;
    assert_eq!(gateway.record().await.admission, None);
    fake.go();
    assert_eq!(served(&gateway, first).await, Some("session_fits"));
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn after_its_longest_wait_a_session_goes_on() {
    let max_wait = Duration::from_secs(2);
    let admission = AdmissionConfig {
        max_wait,
        ..AdmissionConfig::default()
    };
    let (fake, gateway) = gateway(SMALL_CACHE, admission).await;
    let first = send(&gateway, "first", 0).await;
    fake.until_received(1).await;
    let second = send(&gateway, "second", 0).await;
    fake.until_received(2).await;
    fake.go();
    fake.go();
    let mut reasons = [
        served(&gateway, first).await,
        served(&gateway, second).await,
    ];
    reasons.sort_unstable();
    assert_eq!(reasons, [Some("session_fits"), Some("session_overdue")]);
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn a_held_stream_is_refused_as_late() {
    let max_wait = Duration::from_secs(1);
    let mut admission = admission_settings(&AdmissionConfig {
        max_wait,
        ..AdmissionConfig::default()
    });
    let objective = serde_json::json!({ "name": "fast", "objective": "ttft < 40ms for 99 %" });
    admission.objectives = vec![serde_json::from_value::<Objective>(objective).unwrap()];
    let (fake, gateway) = gateway_with(SMALL_CACHE, admission).await;
    let first = send(&gateway, "first", 0).await;
    fake.until_received(1).await;
    let text = "second".repeat(700);
    let messages = format!(r#"[{{"role":"user","content":"{text}"}}]"#);
    let body = format!(r#"{{"model":"tiny","stream":true,"messages":{messages}}}"#);
    assert_shed(&gateway.raw(&post(CHAT, &body)).await, "late");
    let record = gateway.record().await;
    assert_eq!(record.refusal, Some("late"));
    assert!(record.gateway_queue_wait() >= Some(max_wait), "it waits");
    fake.go();
    assert_eq!(served(&gateway, first).await, Some("session_fits"));
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn with_an_unknown_capacity_no_session_waits() {
    let page = SMALL_CACHE
        .split_inclusive('\n')
        .take(3)
        .collect::<String>();
    let (fake, gateway) = gateway(&page, AdmissionConfig::default()).await;
    let clients = [
        send(&gateway, "first", 0).await,
        send(&gateway, "second", 0).await,
    ];
    fake.until_received(2).await;
    fake.go();
    fake.go();
    for client in clients {
        assert_eq!(served(&gateway, client).await, Some("unknown_capacity"));
    }
    assert_no_state_left(&gateway).await;
}
