//! Readiness. Whatever makes backends unavailable, the probes, the metrics, `/status` and the live view must
//! agree.

use crate::metrics::value;
use crate::support::scripted_backend::{Page, ScriptedBackend, json};
use crate::support::test_gateway::{CHAT, Running, Setup, get, start_before, status};
use tokenweir_gateway::backend::{Drain, DrainInitiator};
use tokenweir_routing::resilience;
use tokenweir_routing::resilience::Availability;

const BODY: &str = r#"{"model":"tiny"}"#;
const ASLEEP: &str = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n\
                      vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\n";

async fn start(fakes: &[ScriptedBackend], panic_threshold: f64) -> Running {
    let health = resilience::CircuitBreakerSettings {
        panic_threshold,
        ..Setup::default().health
    };
    start_before(
        fakes,
        Setup {
            health,
            ..Setup::default()
        },
    )
    .await
}

async fn until_state(gateway: &Running, wanted: Availability) {
    let is_so = || {
        let readiness = gateway.pool.readiness(std::time::Instant::now());
        readiness
            .backends
            .iter()
            .all(|it| it.availability == wanted)
    };
    wait_until!(is_so());
}

/// Asserts that all these outputs agree about three facts: whether the gateway is ready (`why` is the reason
/// if it is not), which backends are up, and the state of each backend.
async fn assert_reported(gateway: &Running, states: &[&str], up: &[bool], why: Option<&str>) {
    let is_ready = why.is_none();
    let ready = gateway.admin("/readyz").await;
    let (code, body) = if is_ready {
        (200, "ok\n")
    } else {
        (503, why.unwrap())
    };
    assert_eq!(status(ready.as_bytes()), code, "{ready}");
    assert!(ready.contains(body), "{ready}");
    assert_eq!(status(&gateway.raw(get("/health")).await), code);
    let (status_page, live) = (
        gateway.document("/status").await,
        gateway.document("/streams").await,
    );
    assert_eq!(
        (&status_page["ready"], &live["ready"]),
        (&is_ready.into(), &is_ready.into())
    );
    for reason in [&status_page["unready_reason"], &live["unready_reason"]] {
        assert_eq!(reason.as_str().is_some(), !is_ready, "{reason}");
        assert!(
            reason.as_str().is_none_or(|it| why.unwrap().contains(it)),
            "{reason}"
        );
    }
    let page = gateway.admin("/metrics").await;
    let assert_metric = |name: &str, wanted: bool| {
        let is_set = value(&page, name) > 0.5;
        assert_eq!(is_set, wanted, "{name}");
    };
    assert_metric("tokenweir_ready", is_ready);
    for (number, (state, is_up)) in states.iter().zip(up).enumerate() {
        let (of_status, of_live) = (&status_page["backends"][number], &live["backends"][number]);
        assert_eq!(
            (&of_status["state"], &of_live["state"]),
            (&(*state).into(), &(*state).into())
        );
        assert_eq!(
            (&of_status["up"], &of_live["up"]),
            (&(*is_up).into(), &(*is_up).into())
        );
        let name = of_status["backend"].as_str().unwrap();
        assert_metric(
            &format!("tokenweir_backend_up{{backend=\"{name}\"}}"),
            *is_up,
        );
        for other in Availability::ALL.map(Availability::as_str) {
            let series = format!("tokenweir_backend_state{{backend=\"{name}\",state=\"{other}\"}}");
            assert_metric(&series, other == *state);
        }
    }
}

#[tokio::test]
async fn without_any_serving_backend_nothing_is_ready() {
    let fakes = [
        ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await,
        ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await,
    ];
    let gateway = start(&fakes, 0.5).await;
    assert_reported(&gateway, &["available", "available"], &[true, true], None).await;
    for fake in &fakes {
        fake.set_metrics(Some(Page::of(ASLEEP)));
    }
    until_state(&gateway, Availability::Asleep).await;
    let why = "no backend is available (2 backends: 2 asleep)";
    assert_reported(&gateway, &["asleep", "asleep"], &[false, false], Some(why)).await;
    assert_eq!(status(&gateway.post(CHAT, BODY).await), 503);
    let drain = Drain::begin(DrainInitiator::Configuration, None, None);
    gateway.pool.drain(&fakes[0].addr.to_string(), drain);
    let why = "no backend is available (2 backends: 1 asleep, 1 drained)";
    assert_reported(&gateway, &["drained", "asleep"], &[false, false], Some(why)).await;
    gateway
        .pool
        .undrain(&fakes[0].addr.to_string(), DrainInitiator::Configuration);
    for fake in &fakes {
        fake.set_metrics(None);
        fake.set_healthy(false);
    }
    gateway
        .pool
        .backends()
        .iter()
        .for_each(|backend| backend.mark_down("refused"));
    until_state(&gateway, Availability::Down).await;
    let why = "no backend is available (2 backends: 2 down)";
    assert_reported(&gateway, &["down", "down"], &[false, false], Some(why)).await;
}

#[tokio::test]
async fn ejected_backends_are_ready_in_panic_mode() {
    for (threshold, is_panic) in [(0.5, true), (0.0, false)] {
        let ill = ScriptedBackend::answering(json("500 Internal Server Error", "{}")).await;
        let gateway = start(std::slice::from_ref(&ill), threshold).await;
        for _ in 0..6 {
            gateway.post(CHAT, BODY).await;
        }
        // In panic mode, the gateway sends requests to ejected backends, so the client gets a backend's
        // response. Otherwise it gets an error of the gateway.
        let answer = gateway.post(CHAT, BODY).await;
        assert_eq!(status(&answer), if is_panic { 500 } else { 503 });
        assert_eq!(
            ill.seen().len(),
            if is_panic { 7 } else { 5 },
            "ejected after five failures"
        );
        let why = "no backend is available (1 backend: 1 ejected)";
        let why = (!is_panic).then_some(why);
        assert_reported(&gateway, &["ejected"], &[is_panic], why).await;
        let status_page = gateway.document("/status").await;
        let live = gateway.document("/streams").await;
        assert_eq!(
            (&status_page["panic_mode"], &live["panic_mode"]),
            (&is_panic.into(), &is_panic.into())
        );
        let page = gateway.admin("/metrics").await;
        let routed = format!(
            "tokenweir_routing_decisions_total{{backend=\"{}\",reason=\"panic_mode\"}}",
            ill.addr
        );
        let mode = value(&page, "tokenweir_panic_mode");
        let routed = page.contains(&routed) && value(&page, &routed) > 0.5;
        assert_eq!(
            (mode > 0.5, routed),
            (is_panic, is_panic),
            "{mode} {routed}"
        );
        let explained = gateway.document("/decisions").await;
        let newest = &explained["decisions"][0]["reason"];
        assert_eq!(newest == "panic_mode", is_panic, "{newest}");
    }
}
