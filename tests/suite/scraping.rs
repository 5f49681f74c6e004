//! Scrapes over real sockets: unusable metrics pages, sleeping backends, and the intervals between scrapes.

use crate::metrics::sum;
use crate::support::scripted_backend::{
    FINISH, Page, RAY_SERVE, ROLE, ScriptedBackend, TENSORRT_LLM, VLLM, WORD, response, stream_of,
};
use crate::support::test_gateway::{ASK_STREAM, CHAT, Running, gateway_answering, start, status};
use serde_json::Value;
use std::time::Instant;
use tokenweir_gateway::backend::{BackendState, Health};

fn state(gateway: &Running) -> std::sync::Arc<BackendState> {
    gateway.pool.backends()[0].health.state()
}

/// Returns the time at which the gateway requested the last valid metrics page.
fn sampled(gateway: &Running) -> Instant {
    state(gateway).sample.unwrap().scraped_at
}

async fn errors(gateway: &Running, kind: &str) -> u64 {
    let (page, kind) = (gateway.admin("/metrics").await, format!("kind=\"{kind}\""));
    sum(&page, "tokenweir_scrape_errors_total", &[&kind]) as u64
}

/// Waits until a scrape that began after this call has ended. It waits for several requests, because a scrape
/// can take two: one to another path, or one over a new connection.
async fn until_scraped(fake: &ScriptedBackend) {
    let requests_before = fake.looks()[1];
    wait_until!(fake.looks()[1] >= requests_before + 5);
}

async fn backend_status(gateway: &Running) -> Value {
    gateway.document("/status").await["backends"][0].clone()
}

fn ok(headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    response("200 OK", headers, body)
}

fn values(value: &str) -> Vec<u8> {
    let names = [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
    ];
    ok(
        "",
        names
            .map(|name| format!("vllm:{name}{{engine=\"0\"}} {value}\n"))
            .concat(),
    )
}

/// Returns unusable metrics pages: a name, the response of the backend, and the kind of error that the
/// gateway must report.
fn bad_pages() -> Vec<(&'static str, Page, &'static str)> {
    let noise: Vec<u8> = (0..9_000_u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let half = "vllm:num_requests_running 1\nvllm:num_requests_wai";
    let length = |length: u64| format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{half}");
    let unbounded = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_vec();
    vec![
        ("noise", Page::Whole(ok("", &noise)), "not_understood"),
        ("nothing", Page::Whole(ok("", "")), "not_understood"),
        (
            "HTML",
            Page::Whole(ok("content-type: text/html\r\n", "<html>Log in</html>")),
            "not_understood",
        ),
        ("NaN", Page::Whole(values("NaN")), "not_understood"),
        ("negative", Page::Whole(values("-3")), "not_understood"),
        ("infinite", Page::Whole(values("+Inf")), "not_understood"),
        ("no numbers", Page::Whole(values("\0")), "not_understood"),
        (
            "gzip",
            Page::Whole(ok("content-encoding: gzip\r\n", b"\x1f\x8b\x08")),
            "encoded",
        ),
        ("cut off", Page::Cut(length(400).into()), "truncated"),
        (
            "cut chunk",
            Page::Cut(format!("{chunked}ffff\r\n{half}").into()),
            "truncated",
        ),
        (
            "no chunk",
            Page::Cut(format!("{chunked}zz\r\n{half}").into()),
            "truncated",
        ),
        (
            "50 MB announced",
            Page::Cut(length(50 << 20).into()),
            "too_large",
        ),
        ("endless", Page::Endless(unbounded), "too_large"),
        ("slow", Page::Drip(length(400).into()), "timeout"),
        ("silent", Page::Drip(Vec::new()), "timeout"),
        ("closed", Page::Cut(Vec::new()), "connect"),
        (
            "not HTTP",
            Page::Cut(b"SSH-2.0-OpenSSH_9.6\r\n".to_vec()),
            "connect",
        ),
        (
            "an error",
            Page::Whole(response("500 No", "", "")),
            "status",
        ),
    ]
}

#[tokio::test]
async fn an_unusable_page_keeps_the_last_sample() {
    for (name, page, kind) in bad_pages() {
        let (fake, gateway) = gateway_answering(stream_of(&[ROLE, WORD, FINISH, "[DONE]"])).await;
        assert_eq!(errors(&gateway, kind).await, 0, "{name}");
        fake.set_metrics(Some(page));
        wait_until!(state(&gateway).metrics_error.is_some());
        let (at, counted) = (sampled(&gateway), errors(&gateway, kind).await);
        assert!(counted >= 1, "{name} is counted as {kind}");
        until_scraped(&fake).await;
        assert!(
            errors(&gateway, kind).await > counted,
            "{name} is counted each time"
        );
        assert_eq!(sampled(&gateway), at, "{name}: the last valid sample stays");
        assert_eq!(state(&gateway).health, Health::Up, "{name}");
        assert_eq!(
            state(&gateway).metrics_error.unwrap().as_str(),
            kind,
            "{name}"
        );
        assert_eq!(status(&gateway.post(CHAT, ASK_STREAM).await), 200, "{name}");
        fake.set_metrics(None);
        wait_until!(sampled(&gateway) != at);
        assert_eq!(state(&gateway).metrics_error, None, "{name}");
    }
}

#[tokio::test]
async fn health_is_checked_every_five_seconds() {
    let (fake, _gateway) = gateway_answering("").await;
    let begun = Instant::now();
    wait_until!(fake.looks()[1] >= 60);
    let [health, metrics] = fake.looks();
    let seconds = begun.elapsed().as_secs() as usize;
    assert!(
        health <= seconds / 5 + 2,
        "{health} for {metrics} pages in {seconds} s"
    );
}

#[tokio::test]
async fn failing_health_checks_take_precedence() {
    // Behind Ray Serve, the health check has the path of Ray's proxy.
    for (kind, path) in [(VLLM, "/health"), (RAY_SERVE, "/-/healthz")] {
        let fake = ScriptedBackend::start_kind(kind, |_| Vec::new()).await;
        let gateway = start(&[fake.addr]).await;
        assert_eq!(state(&gateway).health, Health::Up, "{path}");
        fake.set_healthy(false);
        wait_until!(state(&gateway).health == Health::Down);
        let reason = &backend_status(&gateway).await["reason"];
        assert_eq!(*reason, format!("{path} answered 503"));
    }
}

#[tokio::test]
async fn a_page_at_another_path_is_found() {
    let fake = ScriptedBackend::start_kind(TENSORRT_LLM, |_| Vec::new()).await;
    let gateway = start(&[fake.addr]).await;
    let backend_json = backend_status(&gateway).await;
    assert_eq!(backend_json["dialect"], "tensorrt_llm");
    assert_eq!(
        (&backend_json["waiting"], &backend_json["kv_usage"]),
        (&3.0.into(), &0.62.into())
    );
    let requests_before = fake.looks()[1];
    let at = sampled(&gateway);
    wait_until!(sampled(&gateway) != at);
    assert_eq!(
        fake.looks()[1],
        requests_before,
        "the default path is not requested again"
    );
}

#[tokio::test]
async fn the_status_has_version_models_and_missing_metrics() {
    let (fake, gateway) = gateway_answering("").await;
    let backend_json = backend_status(&gateway).await;
    for (field, value) in [("health", "up"), ("version", "0.32.0"), ("dialect", "vllm")] {
        assert_eq!(backend_json[field], value, "{field}");
    }
    assert_eq!(backend_json["models"][0], "tiny");
    assert_eq!(
        backend_json["metrics"]["available"],
        serde_json::json!(["queue", "kv_usage"])
    );
    assert_eq!(
        backend_json["metrics"]["missing"].as_array().unwrap().len(),
        9
    );
    let page = gateway.admin("/metrics").await;
    for (metric, value) in [
        ("queue", 1),
        ("kv_usage", 1),
        ("kv_capacity", 0),
        ("lora", 0),
    ] {
        let series = format!(
            "tokenweir_backend_metric_available{{backend=\"{}\",metric=\"{metric}\"}} {value}",
            fake.addr
        );
        assert!(page.contains(&series), "no {series}");
    }
}
