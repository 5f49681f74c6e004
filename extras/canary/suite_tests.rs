//! Tests of canary requests: which backends get them, and what their results show.

use crate::support::scripted_backend::{self, ScriptedBackend, Seen, Step};
use crate::support::test_gateway::{
    ASK, CHAT, Running, Setup, WHOLE, read_rest, start_with, status,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir::app::options::start_context;
use tokenweir::config::Config;
use tokenweir_canary::{CanaryRequests, CanarySettings};
use tokenweir_diagnose::{
    Diagnoser, Diagnosis, DiagnosisSample, EVERY, GatewayObservations, VerdictSeverity,
};
use tokenweir_engine::address::BackendAddress;
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_gateway::backend::health_checker::{ScrapeObserver, ScrapeSettings};
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::backend::{Backend, HealthCheckSupervisor, PoolSettings};
use tokenweir_net::client::{HttpClient, HttpClientTimeouts};
use tokenweir_option::{DiagnosisHooks, GatewayOption, OptionParts};
use tokenweir_protocol::clock;
use tokenweir_routing::resilience::Availability;

const CANARY: &str = "POST /v1/completions ";
const COMPLETION: &str = r#"{"choices":[{"index":0,"text":"","finish_reason":"length"}]}"#;
const ON: CanarySettings = CanarySettings {
    enabled: true,
    interval: Duration::from_millis(60),
    timeout: Duration::from_millis(60),
};
/// Number of scrapes, which take more than twice the interval of canary requests.
const SCRAPES: usize = 10;

/// Starts a backend that answers canary requests with `answer`, and requests of clients with `client_steps`.
async fn backend(answer: Step, client_steps: &[Step]) -> ScriptedBackend {
    let client_steps = client_steps.to_vec();
    ScriptedBackend::start(move |seen| {
        if is_canary(seen) {
            vec![answer.clone()]
        } else {
            client_steps.clone()
        }
    })
    .await
}

fn ok(body: &str) -> Step {
    Step::Send(scripted_backend::json("200 OK", body))
}

fn is_canary(seen: &Seen) -> bool {
    seen.head.starts_with(CANARY)
}

fn canaries(backend: &ScriptedBackend) -> usize {
    backend.seen().iter().filter(|seen| is_canary(seen)).count()
}

async fn gateway(backend: &ScriptedBackend) -> Running {
    let setup = Setup {
        options: Box::new(|config| config.canary = ON),
        backend_key: Some("Bearer engine-key"),
        ..Setup::default()
    };
    start_with(&[backend.addr], setup).await
}

async fn scrapes(backend: &ScriptedBackend, count: usize) {
    let [_, before] = backend.looks();
    wait_until!(backend.looks()[1] >= before + count);
}

/// Waits until the last canary request has ended, and asserts that no further one follows.
async fn assert_not_asked(backend: &ScriptedBackend) {
    scrapes(backend, SCRAPES).await;
    let before = canaries(backend);
    scrapes(backend, SCRAPES).await;
    assert_eq!(canaries(backend), before);
}

#[tokio::test]
async fn a_silent_backend_is_asked() {
    let backend = backend(ok(COMPLETION), &[ok(WHOLE)]).await;
    let gateway = gateway(&backend).await;
    wait_until!(canaries(&backend) >= 2);
    let canary = backend.seen().swap_remove(0);
    assert!(
        canary.head.contains("authorization: Bearer engine-key\r\n"),
        "{}",
        canary.head
    );
    let body: serde_json::Value = serde_json::from_slice(&canary.body).unwrap();
    let expected = serde_json::json!({
        "model": "tiny", "prompt": "1", "max_tokens": 1, "temperature": 0, "stream": false,
    });
    assert_eq!(body, expected);
    let answered = format!(
        "tokenweir_canary_requests_total{{backend=\"{}\",result=\"answered\"}} ",
        backend.addr
    );
    wait_until!(gateway.admin("/metrics").await.contains(&answered));
    let document = gateway.document("/status").await;
    let shown = &document["backends"][0]["canary"];
    assert_eq!(shown["result"], "answered", "{document}");
    assert!(shown["seconds"].as_f64().unwrap() > 0.0);
    assert!(shown["age_seconds"].is_f64());
    gateway.assert_no_more_records().await;
    assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
    gateway.record().await;
    gateway.assert_no_more_records().await;
}

#[tokio::test]
async fn a_backend_with_traffic_is_not_asked() {
    let backend = backend(ok(COMPLETION), &[Step::Wait, ok(WHOLE)]).await;
    let gateway = gateway(&backend).await;
    let client = gateway.begin(CHAT, ASK).await;
    wait_until!(backend.seen().iter().any(|seen| !is_canary(seen)));
    assert_not_asked(&backend).await;
    let before = canaries(&backend);
    backend.go();
    assert_eq!(status(&read_rest(client).await), 200);
    wait_until!(canaries(&backend) > before);
}

#[tokio::test]
async fn a_drained_backend_is_not_asked() {
    let backend = backend(ok(COMPLETION), &[]).await;
    let gateway = gateway(&backend).await;
    wait_until!(canaries(&backend) >= 1);
    gateway
        .change(&format!("/-/drain?backend={}", backend.addr))
        .await;
    wait_until!(gateway.pool.backends()[0].health.is_drained());
    assert_not_asked(&backend).await;
}

#[tokio::test]
async fn a_hung_backend_is_named_and_serves() {
    let backend = backend(Step::AwaitClose, &[ok(WHOLE)]).await;
    let gateway = gateway(&backend).await;
    backend.closed().await;
    let backends = gateway.pool.backends();
    wait_until!(canary_seconds(&backends, clock::now()) > 0.0);
    let document = gateway.document("/status").await;
    assert_eq!(
        document["backends"][0]["canary"]["result"], "timeout",
        "{document}"
    );
    let diagnosis = diagnosis(&backends);
    let mut verdicts = diagnosis.verdicts.iter();
    let verdict = verdicts.find(|it| it.verdict == "stalls").unwrap();
    assert_eq!(verdict.severity, VerdictSeverity::Warning);
    assert!(
        verdict.cause.as_ref().unwrap().contains("canary"),
        "{verdict:?}"
    );
    assert_eq!(
        backends[0].availability(clock::now()),
        Availability::Available
    );
    let asked_at = clock::now();
    assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
    let now = clock::now();
    let latest = now.saturating_duration_since(asked_at).as_secs_f64();
    assert!(
        canary_seconds(&backends, now) <= latest,
        "the output of a client ends the silence"
    );
}

/// Returns what the option tells the diagnosis about the first backend.
fn canary_seconds(backends: &[Arc<Backend>], now: Instant) -> f64 {
    sample(backends, now).gateway.unwrap().canary_seconds
}

fn sample(backends: &[Arc<Backend>], now: Instant) -> DiagnosisSample {
    let sample = DiagnosisSample {
        is_up: true,
        gateway: Some(GatewayObservations {
            weight: 1,
            ..GatewayObservations::default()
        }),
        ..DiagnosisSample::at(now)
    };
    let mut samples = [(backends[0].identity.id.clone(), sample)];
    CanaryRequests::default().complete_samples(backends, &mut samples, now);
    samples[0].1
}

/// Diagnoses the first backend for a minute of samples.
fn diagnosis(backends: &[Arc<Backend>]) -> Diagnosis {
    let mut diagnoser = Diagnoser::default();
    let mut now = clock::now();
    let mut latest = Diagnosis::default();
    for _ in 0..12 {
        now += EVERY;
        let samples = vec![(backends[0].identity.id.clone(), sample(backends, now))];
        latest = diagnoser.diagnose(samples, now);
    }
    latest
}

/// Ignores the results of scrapes.
struct Unobserved;

impl ScrapeObserver for Unobserved {
    fn on_scrape(&self, _: &Backend, _: Duration, _: Option<ScrapeError>) {}
}

#[tokio::test]
async fn a_reload_switches_canary_requests_off() {
    let scripted = backend(ok(COMPLETION), &[]).await;
    let no_env = |_: &str| None;
    let context = start_context(&Config::default(), &no_env);
    let option = Arc::<CanaryRequests>::default();
    let mut parts = OptionParts::default();
    option.start(ON, &context, &mut parts).unwrap();
    let address = BackendAddress::parse(&format!("http://{}", scripted.addr)).unwrap();
    let mut backend = Backend::new(address.default_id(), address, None);
    backend.facets.options = option.facet().into_iter().collect();
    let pool = BackendPool::with_settings(vec![backend], &PoolSettings::default());
    let settings = ScrapeSettings {
        min_interval: Duration::from_millis(20),
        max_interval: Duration::from_millis(20),
        ..ScrapeSettings::default()
    };
    let client = HttpClient::new(HttpClientTimeouts::default());
    let drivers = parts.drivers;
    let _checks = HealthCheckSupervisor::new(
        Arc::new(pool),
        client,
        settings,
        Arc::new(Unobserved),
        drivers,
    );
    wait_until!(canaries(&scripted) >= 1);
    option.configure(CanarySettings::default());
    assert_not_asked(&scripted).await;
    let before = canaries(&scripted);
    option.configure(ON);
    wait_until!(canaries(&scripted) > before);
}
