//! Metrics of engines on the gateway's own metrics page. They have the values of the engine's metrics page
//! and the name of the backend. A value that the engine does not report has no time series. Also tests
//! backends whose metrics page has another URL than the backend.

use crate::metrics::{assert_value, samples, value};
use crate::support::scripted_backend::{
    LLAMA_CPP, Page, ScriptedBackend, Seen, WHOLE_STREAM, response, stream_of,
};
use crate::support::test_gateway::{
    CHAT, Running, Setup, gateway_answering_with, start, start_with,
};
use tokenweir_engine::address::MetricsUrl;

/// A recorded metrics page of vLLM with speculative decoding.
pub(crate) fn recorded_page() -> &'static str {
    let recorded = include_str!("../wire/metrics/python-metrics-spec.http");
    &recorded[recorded.find("# HELP").unwrap()..]
}

/// Returns the sum of those samples of a metric on an engine's metrics page whose lines contain `label`.
/// Fails if there is no such sample.
fn engine_value(page: &str, name: &str, label: &str) -> f64 {
    let is_sample = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(label);
    let numbers = page
        .lines()
        .filter(is_sample)
        .filter_map(|line| line.rsplit(' ').next());
    let numbers: Vec<f64> = numbers.map(|number| number.parse().unwrap()).collect();
    assert!(!numbers.is_empty(), "{name} {label}");
    numbers.iter().sum()
}

/// Waits until the gateway has scraped a metrics page of its first backend for which `is_it` is true.
async fn until_scraped(
    gateway: &Running,
    is_it: impl Fn(&tokenweir_engine::dialect::EngineLoad) -> bool,
) {
    wait_until!(
        gateway.pool.backends()[0]
            .health
            .state()
            .sample
            .is_some_and(|it| is_it(&it.load))
    );
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one run with many checks")]
async fn engine_metrics_name_their_backend() {
    let fake = ScriptedBackend::answering(stream_of(&WHOLE_STREAM)).await;
    let scraped = recorded_page();
    fake.set_metrics(Some(Page::of(scraped)));
    let gateway = start(&[fake.addr]).await;
    until_scraped(&gateway, |load| load.drafts.is_some()).await;
    let own = gateway.admin("/metrics").await;
    let backend = format!("backend=\"{}\"", fake.addr);
    for (series, name, label) in [
        (
            "engine_tokens_total{B,type=\"input\"}",
            "prompt_tokens_total",
            "",
        ),
        (
            "engine_tokens_total{B,type=\"output\"}",
            "generation_tokens_total",
            "",
        ),
        (
            "engine_prefix_cache_queries_total{B}",
            "prefix_cache_queries_total",
            "",
        ),
        (
            "engine_prefix_cache_hits_total{B}",
            "prefix_cache_hits_total",
            "",
        ),
        (
            "engine_first_token_seconds_total{B}",
            "time_to_first_token_seconds_sum",
            "",
        ),
        (
            "engine_first_tokens_total{B}",
            "time_to_first_token_seconds_count",
            "",
        ),
        (
            "engine_queue_seconds_total{B}",
            "request_queue_time_seconds_sum",
            "",
        ),
        (
            "engine_queued_requests_total{B}",
            "request_queue_time_seconds_count",
            "",
        ),
        (
            "engine_prefill_seconds_total{B}",
            "request_prefill_time_seconds_sum",
            "",
        ),
        (
            "engine_prefilled_requests_total{B}",
            "request_prefill_time_seconds_count",
            "",
        ),
        (
            "engine_inter_token_seconds_total{B}",
            "inter_token_latency_seconds_sum",
            "",
        ),
        (
            "engine_inter_token_gaps_total{B}",
            "inter_token_latency_seconds_count",
            "",
        ),
        (
            "engine_waiting_requests{B,reason=\"deferred\"}",
            "num_requests_waiting_by_reason",
            "reason=\"deferred\"",
        ),
        (
            "engine_cached_prompt_tokens_total{B,source=\"device\"}",
            "prompt_tokens_cached_by_source_total",
            "source=\"device\"",
        ),
        (
            "engine_admission_rejections_total{B}",
            "admission_rejections_total",
            "",
        ),
        ("engine_drafts_total{B}", "spec_decode_num_drafts_total", ""),
        (
            "engine_draft_tokens_total{B}",
            "spec_decode_num_draft_tokens_total",
            "",
        ),
        (
            "engine_accepted_tokens_total{B}",
            "spec_decode_num_accepted_tokens_total",
            "",
        ),
    ] {
        let expected = engine_value(scraped, &format!("vllm:{name}"), label);
        assert_value(
            &own,
            &format!("tokenweir_{}", series.replace('B', &backend)),
            expected,
        );
    }
    for absent in ["engine_swapped_requests", "engine_cpu_cache_usage_ratio"] {
        assert!(
            !own.contains(&format!("tokenweir_{absent}{{")),
            "{absent} is only of V0"
        );
    }
}

#[tokio::test]
async fn an_unreported_value_has_no_series() {
    let fake = ScriptedBackend::start_kind(LLAMA_CPP, |_| Vec::new()).await;
    let gateway = start(&[fake.addr]).await;
    let page = gateway.admin("/metrics").await;
    let is_of_engine = |(series, _): &&(String, f64)| {
        series.starts_with("tokenweir_engine_") && !series.contains("_restarts_total")
    };
    let found: Vec<_> = samples(&page)
        .iter()
        .filter(is_of_engine)
        .cloned()
        .collect();
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test]
async fn an_engine_restart_is_counted() {
    let fake = ScriptedBackend::answering(stream_of(&WHOLE_STREAM)).await;
    let started = |at: u32| {
        Page::of(&format!(
            "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n\
             process_start_time_seconds {at}\n"
        ))
    };
    fake.set_metrics(Some(started(100)));
    let gateway = start(&[fake.addr]).await;
    until_scraped(&gateway, |load| load.started == Some(100.0)).await;
    let restarts = format!(
        "tokenweir_engine_restarts_total{{backend=\"{}\"}}",
        fake.addr
    );
    assert!(value(&gateway.admin("/metrics").await, &restarts) < 0.5);
    fake.set_metrics(Some(started(200)));
    wait_until!(value(&gateway.admin("/metrics").await, &restarts) >= 0.5);
}

#[tokio::test]
async fn a_metrics_url_is_scraped_without_the_key() {
    let fake = ScriptedBackend::answering(stream_of(&WHOLE_STREAM)).await;
    let page = "ray_vllm_num_requests_running{WorkerId=\"w\"} 3\nray_vllm_num_requests_waiting 2\n\
                ray_vllm_kv_cache_usage_perc 0.5\n";
    let metrics = ScriptedBackend::answering(response("200 OK", "", page)).await;
    let metrics_url = format!("http://{}/-/metrics?a=1", metrics.addr);
    let metrics_url = MetricsUrl::parse(&metrics_url).unwrap();
    let setup = Setup {
        metrics_url: Some(metrics_url),
        backend_key: Some("Bearer secret"),
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    until_scraped(&gateway, |load| load.running == Some(3.0)).await;
    assert_eq!(
        fake.looks()[1],
        0,
        "the backend's own page is not requested"
    );
    let scrapes = metrics.take_received();
    assert!(
        scrapes[0]
            .head
            .starts_with("GET /-/metrics?a=1 HTTP/1.1\r\n"),
        "{}",
        scrapes[0].head
    );
    let has_key = |seen: &Seen| seen.head.to_ascii_lowercase().contains("authorization");
    assert!(!scrapes.iter().any(has_key));
    let answer = gateway
        .post(CHAT, r#"{"model":"tiny","stream":true}"#)
        .await;
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    assert!(fake.seen()[0].head.contains("Bearer secret"));
}

#[tokio::test]
async fn a_failing_metrics_url_keeps_the_backend() {
    let metrics_url = MetricsUrl::parse("http://127.0.0.1:9/metrics").unwrap();
    let setup = Setup {
        metrics_url: Some(metrics_url),
        ..Setup::default()
    };
    let (fake, gateway) = gateway_answering_with(setup, stream_of(&WHOLE_STREAM)).await;
    let answer = gateway
        .post(CHAT, r#"{"model":"tiny","stream":true}"#)
        .await;
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    let errors = "tokenweir_scrape_errors_total{backend=\"B\",kind=\"connect\"}";
    let errors = errors.replace('B', &fake.addr.to_string());
    assert!(value(&gateway.admin("/metrics").await, &errors) >= 1.0);
}

#[tokio::test]
async fn gpu_prices_are_exported_only_if_configured() {
    let page = |gpus, price| async move {
        let setup = Setup {
            gpus,
            gpu_hour_price: price,
            ..Setup::default()
        };
        let (fake, gateway) = gateway_answering_with(setup, stream_of(&WHOLE_STREAM)).await;
        (
            gateway.admin("/metrics").await,
            format!("{{backend=\"{}\"}}", fake.addr),
        )
    };
    let (priced, backend) = page(Some(8), Some(2.5)).await;
    assert_value(&priced, &format!("tokenweir_backend_gpus{backend}"), 8.0);
    assert_value(
        &priced,
        &format!("tokenweir_backend_price_per_hour{backend}"),
        20.0,
    );
    let (unpriced, _) = page(Some(8), None).await;
    assert!(!unpriced.contains("tokenweir_backend_price_per_hour{"));
    let (unknown, _) = page(None, Some(2.5)).await;
    assert!(!unknown.contains("tokenweir_backend_gpus{") && !unknown.contains("price_per_hour{"));
}
