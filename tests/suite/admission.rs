//! Admission over real sockets while every backend is at capacity: which requests wait, in which order they
//! are sent, what the rejections contain, and that no state remains.

use crate::restart::start_simulator;
use crate::support::recording;
use crate::support::scripted_backend::{Page, ScriptedBackend, Step, json};
use crate::support::test_gateway::{
    CHAT, Running, Setup, admission_settings, body_json, post, read_rest, start_with, status, tiers,
};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir::config::AdmissionConfig;
use tokenweir_request::record::Outcome;
use tokenweir_sim::SimulatorSettings;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

/// The metrics page of a backend with a long queue.
const BUSY: &str = "vllm:num_requests_running 8.0\nvllm:num_requests_waiting 60.0\n\
                    vllm:kv_cache_usage_perc 0.5\n";
/// The metrics page of the same backend with an empty queue.
const CALM: &str = "vllm:num_requests_running 8.0\nvllm:num_requests_waiting 0.0\n\
                    vllm:kv_cache_usage_perc 0.5\n";

/// A scrape interval so long that the test sees only the first scrape. So only the end of a request frees
/// capacity.
pub(crate) const NO_SECOND_SCRAPE: Duration = Duration::from_hours(1);
/// A scrape interval so short that the gateway notices changes of a backend soon.
pub(crate) const SHORT_SCRAPE_INTERVAL: Duration = Duration::from_millis(20);

/// Starts a gateway with this admission configuration in front of these backends. Each backend may have at
/// most one request in flight.
pub(crate) async fn one_at_each(
    fakes: &[&ScriptedBackend],
    admission: AdmissionConfig,
    scrape_interval: Duration,
) -> Running {
    let addrs: Vec<SocketAddr> = fakes.iter().map(|fake| fake.addr).collect();
    let admission = AdmissionConfig {
        max_in_flight: Some(1),
        ..admission
    };
    let tiers = tiers(&["gold", "batch"]);
    let admission = Some(admission_settings(&admission));
    start_with(
        &addrs,
        Setup {
            admission,
            tiers,
            scrape_interval,
            ..Setup::default()
        },
    )
    .await
}

/// Starts a backend that answers each request only when the test calls `go`.
pub(crate) async fn held() -> ScriptedBackend {
    ScriptedBackend::following([Step::Wait, Step::Send(json("200 OK", r#"{"a":1}"#))]).await
}

/// Starts a backend of [`held`] and its gateway of [`one_at_each`]. The request `first` of the returned
/// client takes all capacity of the backend.
pub(crate) async fn occupied(
    admission: AdmissionConfig,
    scrape_interval: Duration,
) -> (ScriptedBackend, Running, TcpStream) {
    let fake = held().await;
    let gateway = one_at_each(&[&fake], admission, scrape_interval).await;
    let first = send(&gateway, "first", "").await;
    fake.until_received(1).await;
    (fake, gateway, first)
}

/// Lets a backend of [`held`] answer the requests of these clients, one after the other. Waits for the
/// responses and for the records.
pub(crate) async fn serve_all(fake: &ScriptedBackend, gateway: &Running, clients: Vec<TcpStream>) {
    for number in 1..=clients.len() {
        fake.until_received(number).await;
        fake.go();
    }
    for client in clients {
        assert_eq!(status(&read_rest(client).await), 200);
        gateway.record().await;
    }
}

/// Sends a request with `name` in its field `user` and with these header lines. Returns the connection
/// without waiting for the response.
pub(crate) async fn send(gateway: &Running, name: &str, headers: &str) -> TcpStream {
    gateway.send(request(name, headers)).await
}

/// Builds a request with this `name` as its user, and these additional header lines.
fn request(name: &str, headers: &str) -> String {
    let request = post(CHAT, &format!(r#"{{"model":"tiny","user":"{name}"}}"#));
    request.replacen("\r\n", &format!("\r\n{headers}"), 1)
}

/// Waits until this many requests are in the admission queue.
pub(crate) async fn until_waiting(gateway: &Running, count: usize) {
    wait_until!({
        let status = gateway.document("/status").await;
        let classes = status["queue"].as_array().unwrap();
        let waiting: u64 = classes
            .iter()
            .map(|it| it["waiting"].as_u64().unwrap())
            .sum();
        waiting == count as u64
    });
}

/// Returns the names of the requests that a backend has received (their field `user`), in the order of
/// arrival.
pub(crate) fn names(fake: &ScriptedBackend) -> Vec<String> {
    let name = |body: &[u8]| {
        let body: Value = serde_json::from_slice(body).unwrap();
        body["user"].as_str().unwrap().to_owned()
    };
    fake.seen().iter().map(|seen| name(&seen.body)).collect()
}

/// The value of a header in a raw response. The head is read in lower case.
pub(crate) fn header(answer: &[u8], name: &str) -> Option<String> {
    let head = String::from_utf8_lossy(answer).to_ascii_lowercase();
    recording::header(&head, name).map(str::to_owned)
}

/// Asserts that the response is a 429 with this reason in `x-gateway-error` and a `retry-after` of 1 to 60 s, and
/// that its body states the same seconds.
pub(crate) fn assert_shed(answer: &[u8], reason: &str) {
    assert_eq!(status(answer), 429);
    assert_eq!(header(answer, "x-gateway-error").as_deref(), Some(reason));
    let seconds: u32 = header(answer, "retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    let error = &body_json(answer)["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&"TooManyRequestsError".into(), &429.into())
    );
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains(&format!("retry after {seconds} s"))
    );
}

/// Asserts that the queue is empty, that no backend has a request in flight, and that no request counts as
/// open.
pub(crate) async fn assert_no_state_left(gateway: &Running) {
    until_waiting(gateway, 0).await;
    for backend in gateway.pool.backends().iter() {
        wait_until!(backend.load.in_flight() == 0);
        assert_eq!(backend.load.estimator.local_load().tokens, 0);
    }
    let page = gateway.admin("/metrics").await;
    assert!(page.contains("\ntokenweir_requests_in_flight 0\n"));
    let queues = page
        .lines()
        .filter(|line| line.starts_with("tokenweir_queue_requests{"));
    assert!(queues.clone().count() > 0 && queues.clone().all(|line| line.ends_with(" 0")));
    gateway.assert_no_more_records().await;
}

#[tokio::test]
async fn the_first_backend_with_capacity_gets_the_request() {
    let (first_backend, second_backend) = (held().await, held().await);
    let gateway = one_at_each(
        &[&first_backend, &second_backend],
        AdmissionConfig::default(),
        NO_SECOND_SCRAPE,
    )
    .await;
    let first = send(&gateway, "first", "").await;
    let second = send(&gateway, "second", "").await;
    first_backend.until_received(1).await;
    second_backend.until_received(1).await;
    let late = send(&gateway, "late", "").await;
    until_waiting(&gateway, 1).await;
    second_backend.go();
    second_backend.until_received(2).await;
    assert_eq!(names(&second_backend)[1], "late");
    first_backend.go();
    second_backend.go();
    for client in [first, second, late] {
        assert_eq!(status(&read_rest(client).await), 200);
    }
    let records = [
        gateway.record().await,
        gateway.record().await,
        gateway.record().await,
    ];
    let queued: Vec<_> = records
        .iter()
        .filter(|record| record.gateway_queue_wait().is_some())
        .collect();
    assert_eq!(queued.len(), 1, "only one request was queued");
    assert_eq!(
        queued[0].backend().unwrap().as_str(),
        second_backend.addr.to_string()
    );
    let wait = queued[0].gateway_queue_wait().unwrap();
    assert!(wait > Duration::ZERO && queued[0].overhead().unwrap() + wait < queued[0].duration());
    gateway
        .assert_value("tokenweir_queue_wait_seconds_count{tier=\"\"}", 1.0)
        .await;
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn a_full_queue_sheds_with_reason_and_time() {
    let room = AdmissionConfig {
        queue_capacity: 1,
        ..AdmissionConfig::default()
    };
    let (fake, gateway, first) = occupied(room, NO_SECOND_SCRAPE).await;
    let second = send(&gateway, "second", "").await;
    until_waiting(&gateway, 1).await;
    assert_shed(
        &read_rest(send(&gateway, "third", "").await).await,
        "saturated",
    );
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.refusal),
        (Outcome::Rejected, Some("saturated"))
    );
    assert_eq!(record.gateway_queue_wait(), None);
    serve_all(&fake, &gateway, vec![first, second]).await;
    gateway
        .assert_value("tokenweir_requests_shed_total{reason=\"saturated\"}", 1.0)
        .await;
    gateway
        .assert_value(
            "tokenweir_requests_rejected_total{reason=\"saturated\"}",
            1.0,
        )
        .await;
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn a_request_is_shed_after_max_wait() {
    let max_wait = Duration::from_millis(40);
    let room = AdmissionConfig {
        max_wait,
        ..AdmissionConfig::default()
    };
    let (fake, gateway, first) = occupied(room, NO_SECOND_SCRAPE).await;
    assert_shed(
        &read_rest(send(&gateway, "late", "").await).await,
        "queue_timeout",
    );
    let record = gateway.record().await;
    assert_eq!(record.refusal, Some("queue_timeout"));
    assert!(record.gateway_queue_wait().unwrap() >= max_wait);
    serve_all(&fake, &gateway, vec![first]).await;
    assert_eq!(names(&fake), ["first"]);
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn a_higher_class_displaces_a_lower_one() {
    let classes = ["gold", "default", "batch"].map(str::to_owned).to_vec();
    let room = AdmissionConfig {
        queue_capacity: 3,
        classes,
        ..AdmissionConfig::default()
    };
    let (fake, gateway, first) = occupied(room, NO_SECOND_SCRAPE).await;
    let mut clients = vec![first];
    for (waiting, (name, tier)) in [
        ("batch", "x-tier: batch\r\n"),
        ("plain", ""),
        ("gold", "x-tier: gold\r\n"),
    ]
    .into_iter()
    .enumerate()
    {
        clients.push(send(&gateway, name, tier).await);
        until_waiting(&gateway, waiting + 1).await;
    }
    let second = send(&gateway, "gold 2", "x-tier: gold\r\n").await;
    let shed = clients.remove(1);
    assert_shed(&read_rest(shed).await, "shed");
    let record = gateway.record().await;
    assert_eq!(
        (record.tier.as_str(), record.refusal),
        ("batch", Some("shed"))
    );
    assert!(record.gateway_queue_wait().is_some());
    clients.push(second);
    serve_all(&fake, &gateway, clients).await;
    assert_eq!(names(&fake), ["first", "gold", "gold 2", "plain"]);
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn tenants_of_the_header_are_served_in_turn() {
    let room = AdmissionConfig {
        tenant_header: Some("x-tenant".into()),
        ..AdmissionConfig::default()
    };
    let (fake, gateway, first) = occupied(room, NO_SECOND_SCRAPE).await;
    let mut clients = vec![first];
    for (name, tenant) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")] {
        let waiting = clients.len();
        clients.push(send(&gateway, name, &format!("x-tenant: {tenant}\r\n")).await);
        until_waiting(&gateway, waiting).await;
    }
    serve_all(&fake, &gateway, clients).await;
    assert_eq!(names(&fake), ["first", "a1", "b1", "a2", "a3"]);
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn addresses_are_served_in_turn_whatever_their_tokens() {
    let (fake, gateway, first) = occupied(AdmissionConfig::default(), NO_SECOND_SCRAPE).await;
    let mut clients = vec![first];
    for (name, address) in [("a1", 2), ("a2", 2), ("a3", 2), ("b1", 3)] {
        let waiting = clients.len();
        let socket = TcpSocket::new_v4().unwrap();
        socket
            .bind(SocketAddr::from(([127, 0, 0, address], 0)))
            .unwrap();
        let mut client = socket.connect(gateway.addr).await.unwrap();
        let token = format!("authorization: Bearer {name}\r\nx-api-key: {name}\r\n");
        client
            .write_all(request(name, &token).as_bytes())
            .await
            .unwrap();
        clients.push(client);
        until_waiting(&gateway, waiting).await;
    }
    serve_all(&fake, &gateway, clients).await;
    assert_eq!(names(&fake), ["first", "a1", "b1", "a2", "a3"]);
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn a_scrape_with_capacity_releases_requests() {
    let fake = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    fake.set_metrics(Some(Page::of(BUSY)));
    let gateway = start_with(&[fake.addr], Setup::default()).await;
    let client = send(&gateway, "waits", "").await;
    until_waiting(&gateway, 1).await;
    assert_eq!(fake.seen().len(), 0);
    fake.set_metrics(Some(Page::of(CALM)));
    assert_eq!(status(&read_rest(client).await), 200);
    assert!(gateway.record().await.gateway_queue_wait().is_some());
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn requests_fail_when_the_last_backend_is_down() {
    let (fake, gateway, first) = occupied(AdmissionConfig::default(), SHORT_SCRAPE_INTERVAL).await;
    let waits = send(&gateway, "waits", "").await;
    until_waiting(&gateway, 1).await;
    fake.set_healthy(false);
    let refused = read_rest(waits).await;
    assert_eq!(status(&refused), 503);
    assert_eq!(
        header(&refused, "x-gateway-error").as_deref(),
        Some("no_backend")
    );
    assert_eq!(header(&refused, "retry-after").as_deref(), Some("1"));
    gateway.record().await;
    serve_all(&fake, &gateway, vec![first]).await;
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn a_failover_is_not_queued_again() {
    let (full, gone) = (held().await, held().await);
    let gateway = one_at_each(
        &[&full, &gone],
        AdmissionConfig::default(),
        NO_SECOND_SCRAPE,
    )
    .await;
    // The next scrape is an hour away, so the gateway does not notice that the backend has ended.
    drop(gone);
    // With equal loads, the gateway uses the backends in their order.
    let first = send(&gateway, "first", "").await;
    full.until_received(1).await;
    let second = send(&gateway, "second", "").await;
    full.until_received(2).await;
    for client in [first, second] {
        full.go();
        assert_eq!(status(&read_rest(client).await), 200);
    }
    for _ in 0..2 {
        assert_eq!(gateway.record().await.gateway_queue_wait(), None);
    }
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn without_admission_control_nothing_waits() {
    let fake = held().await;
    fake.set_metrics(Some(Page::of(BUSY)));
    let setup = Setup {
        admission: None,
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    let mut clients = Vec::new();
    for number in 1..=3 {
        clients.push(send(&gateway, "now", "").await);
        fake.until_received(number).await;
    }
    for client in clients {
        fake.go();
        drop(client);
        assert_eq!(gateway.record().await.gateway_queue_wait(), None);
    }
    assert!(gateway.admin("/status").await.contains("\"queue\":[]"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burst_of_500_clients_is_served() {
    // Each engine runs four sequences and has a cache of 1,024 tokens.
    let settings = SimulatorSettings {
        backends: 2,
        models: vec!["sim".to_owned()],
        max_num_seqs: 4,
        blocks: 64,
        block_size: 16,
        ..SimulatorSettings::default()
    };
    let gateway = start_with(&start_simulator(settings).await, Setup::default()).await;
    let ask = r#"{"model":"sim","stream":true,"max_tokens":4,"ignore_eos":true,
        "messages":[{"role":"user","content":"go on"}]}"#;
    let ask = post(CHAT, ask);
    let burst = (0..500).map(|_| gateway.raw(&ask));
    for answer in futures_util::future::join_all(burst).await {
        assert_eq!(status(&answer), 200);
        assert!(String::from_utf8_lossy(&answer).contains("data: [DONE]"));
    }
    let mut waited = 0;
    for _ in 0..500 {
        let record = gateway.record().await;
        assert_eq!(
            (record.outcome, record.observed.usage.output),
            (Outcome::Ok, None)
        );
        waited += usize::from(record.gateway_queue_wait().is_some());
    }
    // The number of waiting requests depends on the time of the first scrape.
    assert!(waited > 0);
    assert_no_state_left(&gateway).await;
}
