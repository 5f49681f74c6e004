//! The gateway in front of simulated backends: the behaviour of real engines without a GPU.

use crate::support::simulated_fleet::Fleet;
use crate::support::test_gateway::{CHAT, post};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::time::{Duration, Instant};
use tokenweir_core::record::Outcome;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LONG: &str = r#"{"model":"sim-model","stream":true,"max_tokens":1000,"ignore_eos":true,"messages":[{"role":"user","content":"go on"}]}"#;

/// A client that reads the beginning of a response and disconnects. Returns the delay until the
/// engine aborts the request.
async fn leave_mid_stream(fleet: &Fleet) -> Duration {
    let mut client = fleet.gateway.connect().await;
    client.write_all(post(CHAT, LONG).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while String::from_utf8_lossy(&answer).matches("data: ").count() < 3 {
        client.read_buf(&mut answer).await.unwrap();
    }
    let before = fleet.aborts();
    let left = Instant::now();
    drop(client);
    wait_until!(fleet.aborts() != before);
    left.elapsed()
}

#[tokio::test]
async fn a_client_disconnect_aborts_the_request_in_the_engine_and_its_tokens_are_recorded() {
    let fleet = Fleet::start(2).await;
    leave_mid_stream(&fleet).await;
    let record = fleet.gateway.record().await;
    assert_eq!((record.outcome, record.phase()), (Outcome::Cancelled, "decode"));
    assert!(record.output_tokens().is_some_and(|tokens| tokens > 0));
}

#[tokio::test]
#[ignore = "a measurement, not a test: cargo test --release -- --ignored --nocapture abort"]
async fn measure_the_delay_of_an_abort() {
    let fleet = Fleet::start(1).await;
    let mut took = Vec::new();
    for _ in 0..200 {
        took.push(leave_mid_stream(&fleet).await);
        fleet.gateway.record().await;
    }
    took.sort_unstable();
    println!(
        "client disconnect to engine abort: p50 {:?}, p99 {:?}, max {:?}",
        took[100], took[198], took[199]
    );
}

#[tokio::test]
async fn recorded_tokens_and_finish_reasons_equal_those_of_the_engine() {
    let fleet = Fleet::start(2).await;
    let asks = [
        (
            CHAT,
            r#"{"model":"sim-model","stream":true,"max_tokens":20,"ignore_eos":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"a"}]}"#,
        ),
        (
            CHAT,
            r#"{"model":"sim-model","max_tokens":20,"ignore_eos":true,"messages":[{"role":"user","content":"a"}]}"#,
        ),
        (
            "/v1/completions",
            r#"{"model":"sim-model","prompt":"a","max_tokens":20,"ignore_eos":true}"#,
        ),
        (
            "/v1/responses",
            r#"{"model":"sim-model","input":"a","stream":true,"max_output_tokens":20,"ignore_eos":true}"#,
        ),
        (
            "/v1/messages",
            r#"{"model":"sim-model","stream":true,"max_tokens":20,"ignore_eos":true,"messages":[{"role":"user","content":"a"}]}"#,
        ),
    ];
    let mut generated = 0;
    for (path, ask) in asks {
        fleet.gateway.post(path, ask).await;
        let record = fleet.gateway.record().await;
        assert_eq!(record.outcome, Outcome::Ok, "{path}");
        assert_eq!(record.observed.usage.output, Some(20), "{path}");
        assert_eq!(record.observed.finish_reasons.len(), 1, "{path}");
        generated += 20;
    }
    let metrics: f64 = fleet
        .backends
        .iter()
        .map(|backend| tokenweir_core::dialect::EngineLoad::read(backend.metrics().as_bytes()))
        .filter_map(|load| load.generation_tokens)
        .sum();
    assert!((metrics - f64::from(generated)).abs() < 1e-9, "{metrics}");
}

#[tokio::test]
async fn http2_clients_share_a_connection_and_stream() {
    let fleet = Fleet::start(2).await;
    let client: Client<_, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let ask = |number: usize| {
        let body = LONG.replace("1000", &format!("{}", 5 + number));
        Request::post(format!("http://{}{CHAT}", fleet.gateway.addr))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap()
    };
    let answers = (0..8).map(|number| client.request(ask(number)));
    for answer in futures_util::future::join_all(answers).await {
        let answer = answer.unwrap();
        assert_eq!(answer.version(), http::Version::HTTP_2);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body.ends_with(b"data: [DONE]\n\n"));
    }
    for _ in 0..8 {
        assert_eq!(fleet.gateway.record().await.outcome, Outcome::Ok);
    }
}

#[tokio::test]
async fn a_stream_reset_of_an_http2_client_aborts_the_request_in_the_engine() {
    let fleet = Fleet::start(1).await;
    let client: Client<_, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let request = Request::post(format!("http://{}{CHAT}", fleet.gateway.addr))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(LONG)))
        .unwrap();
    let mut body = client.request(request).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    wait_until!(fleet.aborts() > 0);
    assert_eq!(fleet.gateway.record().await.outcome, Outcome::Cancelled);
}

#[tokio::test]
async fn mass_disconnects_at_random_times_leave_no_state() {
    let fleet = Fleet::start(2).await;
    let mut random = fastrand::Rng::with_seed(3);
    let count = 60;
    let storm = (0..count).map(|_| {
        let events = random.usize(0..6);
        let gateway = &fleet.gateway;
        async move {
            let mut client = gateway.begin(CHAT, LONG).await;
            let mut answer = Vec::new();
            while String::from_utf8_lossy(&answer).matches("data: ").count() < events {
                client.read_buf(&mut answer).await.unwrap();
            }
        }
    });
    futures_util::future::join_all(storm).await;
    for _ in 0..count {
        assert_eq!(fleet.gateway.record().await.outcome, Outcome::Cancelled);
    }
    fleet.gateway.assert_no_more_records().await;
    for backend in fleet.gateway.pool.backends().iter() {
        wait_until!(backend.load.in_flight() == 0);
        assert_eq!(backend.load.estimator.local_load().tokens, 0);
    }
    assert!(fleet.gateway.admin("/metrics").await.contains("tokenweir_requests_in_flight 0\n"));
}
