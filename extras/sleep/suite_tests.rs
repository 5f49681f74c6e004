//! Engines in vLLM's sleep mode. A request for a sleeping engine makes the gateway wake the engine, and the
//! gateway puts idle engines to sleep.

use crate::support::process::{GatewayProcess, folder};
use crate::support::scripted_backend::{self, Page, ScriptedBackend, Seen, Step};
use crate::support::test_gateway::{
    ASK, CHAT, Running, Setup, WHOLE, admission_settings, post, read_rest, send_to, start_with,
    status,
};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokenweir::config::AdmissionConfig;
use tokenweir_gateway::backend::Backend;
use tokenweir_routing::resilience::Availability;
use tokenweir_sleep::SleepSettings;

const WAKE: &str = "POST /wake_up ";
const SLEEP: &str = "POST /sleep?level=1 ";

/// A vLLM with sleep mode, as a scripted backend.
struct Engine {
    fake: ScriptedBackend,
    is_awake: Arc<AtomicBool>,
}

impl Engine {
    /// Starts the engine. `answer_to_sleep` returns its steps for a sleep request of the gateway.
    async fn start(is_awake: bool, answer_to_sleep: fn(&AtomicBool) -> Vec<Step>) -> Self {
        let is_awake = Arc::new(AtomicBool::new(is_awake));
        let (on_request, on_scrape) = (is_awake.clone(), is_awake.clone());
        let answer = move |seen: &Seen| {
            if seen.head.starts_with(SLEEP) {
                return answer_to_sleep(&on_request);
            }
            if seen.head.starts_with(WAKE) {
                on_request.store(true, Ordering::SeqCst);
            }
            let status = if on_request.load(Ordering::SeqCst) {
                "200 OK"
            } else {
                "503 Asleep"
            };
            vec![Step::Send(scripted_backend::json(status, WHOLE))]
        };
        let fake = ScriptedBackend::start(answer).await;
        let page = move || {
            let awake = u8::from(on_scrape.load(Ordering::SeqCst));
            format!(
                "vllm:num_requests_running{{engine=\"0\"}} 0\nvllm:num_requests_waiting{{engine=\"0\"}} 0\n\
                 vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {awake}\n"
            )
        };
        fake.set_metrics(Some(Page::Live(Box::new(page))));
        fake.set_page("/is_paused", "200 OK", r#"{"is_paused":false}"#);
        Self { fake, is_awake }
    }

    /// Returns the number of requests to the engine whose text begins with `request`.
    fn count(&self, request: &str) -> usize {
        self.fake
            .seen()
            .iter()
            .filter(|seen| seen.head.starts_with(request))
            .count()
    }
}

fn falls_asleep(is_awake: &AtomicBool) -> Vec<Step> {
    is_awake.store(false, Ordering::SeqCst);
    vec![Step::Send(scripted_backend::json("200 OK", ""))]
}

async fn gateway(engines: &[&Engine], sleep: SleepSettings, max_wait: Duration) -> Running {
    let admission = AdmissionConfig {
        max_backend_wait: Some(max_wait),
        ..AdmissionConfig::default()
    };
    let admission = Some(admission_settings(&admission));
    let addrs: Vec<_> = engines.iter().map(|engine| engine.fake.addr).collect();
    start_with(
        &addrs,
        Setup {
            admission,
            options: Box::new(move |config| config.sleep = sleep),
            ..Setup::default()
        },
    )
    .await
}

#[tokio::test]
async fn a_request_wakes_one_engine() {
    let engines = [
        Engine::start(false, falls_asleep).await,
        Engine::start(false, falls_asleep).await,
    ];
    let wake = SleepSettings {
        wake: true,
        idle: None,
    };
    let gateway = gateway(&engines.each_ref(), wake, Duration::from_mins(1)).await;
    assert!(
        gateway.admin("/readyz").await.starts_with("HTTP/1.1 200"),
        "it can serve requests"
    );
    let clients = [
        gateway.begin(CHAT, ASK).await,
        gateway.begin(CHAT, ASK).await,
    ];
    for client in clients {
        assert_eq!(status(&read_rest(client).await), 200);
        let record = gateway.record().await;
        assert_eq!(record.attempts.len(), 1, "no attempt at a sleeping engine");
        assert!(record.backend_wait().is_some());
    }
    let woken: Vec<_> = engines.iter().map(|engine| engine.count(WAKE)).collect();
    assert!(woken == [1, 0] || woken == [0, 1], "{woken:?}");
    let page = gateway.admin("/metrics").await;
    assert!(
        page.contains("tokenweir_backend_sleep_changes_total{"),
        "{page}"
    );
}

#[tokio::test]
async fn no_engine_is_woken_without_permission() {
    let engine = Engine::start(false, falls_asleep).await;
    let gateway = gateway(&[&engine], SleepSettings::default(), Duration::ZERO).await;
    assert_eq!(status(&gateway.post(CHAT, ASK).await), 503);
    assert!(gateway.admin("/readyz").await.starts_with("HTTP/1.1 503"));
    assert_eq!(engine.fake.seen().len(), 0);
}

/// An `answer_to_sleep` whose response waits until the test calls [`ScriptedBackend::go`].
fn takes_time(_: &AtomicBool) -> Vec<Step> {
    vec![Step::Wait, Step::Send(scripted_backend::json("200 OK", ""))]
}

#[tokio::test]
async fn idle_engines_fall_asleep_one_by_one() {
    let engines = [
        Engine::start(true, takes_time).await,
        Engine::start(true, takes_time).await,
    ];
    let settings = SleepSettings {
        wake: true,
        idle: Some(Duration::from_millis(60)),
    };
    let gateway = gateway(&engines.each_ref(), settings, Duration::from_mins(1)).await;
    let is_told = |index: usize| engines[index].count(SLEEP) > 0;
    let fall_asleep = |index: usize| {
        engines[index].is_awake.store(false, Ordering::SeqCst);
        engines[index].fake.go();
    };
    wait_until!(is_told(0) || is_told(1));
    let [first, second] = if is_told(0) { [0, 1] } else { [1, 0] };
    let [_, scrapes] = engines[second].fake.looks();
    wait_until!(engines[second].fake.looks()[1] > scrapes + 10);
    assert!(
        !is_told(second),
        "only one engine at a time is told to sleep"
    );
    fall_asleep(first);
    wait_until!(is_told(second));
    fall_asleep(second);
    let now = tokenweir_protocol::clock::now;
    let is_asleep = |backend: &Arc<Backend>| backend.availability(now()) == Availability::Asleep;
    wait_until!(gateway.pool.backends().iter().all(is_asleep));
    assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
}

#[tokio::test]
async fn an_engine_without_sleep_mode_keeps_serving() {
    let engine = Engine::start(true, |_| {
        vec![Step::Send(scripted_backend::json(
            "404 Not Found",
            r#"{"detail":"Not Found"}"#,
        ))]
    })
    .await;
    let settings = SleepSettings {
        wake: true,
        idle: Some(Duration::from_millis(1)),
    };
    let gateway = gateway(&[&engine], settings, Duration::ZERO).await;
    wait_until!(engine.count(SLEEP) == 1);
    let [_, scrapes] = engine.fake.looks();
    wait_until!(engine.fake.looks()[1] > scrapes + 10);
    assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
    assert_eq!(engine.count(SLEEP), 1);
}

/// A change of `timeouts` starts the health checkers anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_ends_a_sleep_that_begins() {
    let engine = Engine::start(true, takes_time).await;
    let config = folder("falling-asleep").join("gateway.yaml");
    let text = format!(
        "listen: 127.0.0.1:0\nbackends: [{{ url: 'http://{}' }}]\n\
         admission: {{ max_backend_wait: 0s }}\n",
        engine.fake.addr
    );
    fs::write(&config, format!("{text}sleep: {{ wake: true, idle: 60ms }}\n")).unwrap();
    let gateway = GatewayProcess::start(&config).await;
    wait_until!(engine.count(SLEEP) > 0);
    fs::write(&config, format!("{text}timeouts: {{ connect: 1s }}\n")).unwrap();
    let answer = gateway.reload().await;
    assert!(answer.contains("timeouts.connect"), "{answer}");
    let ask = async || read_rest(send_to(gateway.clients(), post(CHAT, ASK)).await).await;
    assert_eq!(status(&ask().await), 200);
}
