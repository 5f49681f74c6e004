//! The log of routing decisions on the admin listener. A decision has the metrics of the backends and the
//! outcome of the request.

use crate::metrics::{assert_value, value};
use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, WORD, stream_of};
use crate::support::test_gateway::{CHAT, Running, gateway_answering, post, start, with_lines};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokenweir_gateway::telemetry::access_log::AccessLog;

/// A usage event. Of 9 prompt tokens, 8 were cached.
const USAGE: &str = r#"{"id":"c","model":"tiny","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":8}}}"#;
const BODY: &str = r#"{"model":"tiny","stream":true,"prompt_cache_key":"session","messages":[{"role":"user","content":"hello"}]}"#;

fn answer() -> Vec<u8> {
    stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])
}

async fn ask(gateway: &Running, request_id: &str) {
    let id = format!("x-request-id: {request_id}");
    gateway.raw(with_lines(&post(CHAT, BODY), &id)).await;
}

/// Fetches the page at this path of the admin listener. Returns its status code and its JSON document.
async fn page(gateway: &Running, path: &str) -> (String, Value) {
    let page = gateway.admin(path).await;
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    (head[9..12].to_owned(), serde_json::from_str(body).unwrap())
}

#[tokio::test]
async fn a_decision_has_candidates_and_outcome() {
    let fakes = [
        ScriptedBackend::answering(answer()).await,
        ScriptedBackend::answering(answer()).await,
    ];
    let gateway = start(&[fakes[0].addr, fakes[1].addr]).await;
    ask(&gateway, "why-1").await;
    let record = gateway.record().await;
    let (status, why) = page(&gateway, "/decisions/why-1").await;
    assert_eq!(status, "200");
    let served = fakes
        .iter()
        .find(|fake| fake.seen().len() == 1)
        .unwrap()
        .addr
        .to_string();
    assert_eq!(why["backend"], served);
    assert_eq!(why["policy"], "kv_aware");
    assert_eq!(why["reason"], record.decision.as_ref().unwrap().reason());
    let candidates = why["candidates"].as_array().unwrap();
    let names: BTreeSet<_> = candidates
        .iter()
        .map(|one| one["backend"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        names,
        fakes.iter().map(|fake| fake.addr.to_string()).collect()
    );
    for candidate in candidates {
        assert_eq!(candidate["chosen"], candidate["backend"] == served);
        // These values come from the metrics page of the backend. A running request of another client counts
        // less the older the scrape is.
        assert_eq!(candidate["kv_usage"], 0.25);
        assert!(
            (0.9..=1.0).contains(&candidate["running"].as_f64().unwrap()),
            "{candidate}"
        );
        let certainty = candidate["certainty"].as_f64().unwrap();
        assert!(
            (0.9..=1.0).contains(&certainty),
            "the scrape is recent: {certainty}"
        );
        assert!(candidate["predicted_ttft_seconds"].as_f64().unwrap() > 0.0);
        let terms = candidate["cost_terms"].as_object().unwrap().values();
        let sum: f64 = terms.map(|term| term.as_f64().unwrap()).sum();
        let cost = candidate["cost"].as_f64().unwrap();
        assert!(
            (sum / cost - 1.0).abs() < 1e-3,
            "the cost is the sum of its terms: {candidate}"
        );
    }
    let actual = &why["actual"];
    let ttft = record.upstream_ttft().unwrap().as_secs_f64();
    assert!(
        (actual["ttft_seconds"].as_f64().unwrap() - ttft).abs() < 1e-4,
        "{actual}"
    );
    assert_eq!(
        (&actual["input_tokens"], &actual["cached_tokens"]),
        (&json!(9), &json!(8))
    );
    assert_eq!(actual["outcome"], "ok");
}

#[tokio::test]
async fn an_unknown_id_gets_404() {
    let (_fake, gateway) = gateway_answering(answer()).await;
    ask(&gateway, "a/b?c%20d").await;
    gateway.record().await;
    let long = format!("/decisions/{}", "x".repeat(4_000));
    for path in [
        "/decisions/nobody",
        "/decisions/%ff%fe",
        "/decisions/%00",
        "/decisions/..%2f..",
        &long,
    ] {
        let (status, why) = page(&gateway, path).await;
        assert_eq!(status, "404", "{path}");
        let problem = why["error"].as_str().unwrap();
        assert!(problem.contains("not among the last 1024"), "{problem}");
    }
    assert_eq!(
        page(&gateway, "/decisions/a%2Fb%3Fc%2520d").await.1["request_id"],
        "a/b?c%20d"
    );
}

#[tokio::test]
async fn predicted_and_actual_ttft_are_shown() {
    let (fake, gateway) = gateway_answering(answer()).await;
    ask(&gateway, "why-1").await;
    let record = gateway.record().await;
    let predicted = record.selected_candidate().unwrap();
    let error = (record.upstream_ttft().unwrap().as_secs_f64() - predicted.ttft).abs();
    let page = gateway.admin("/metrics").await;
    let series = |name: &str| format!("{name}{{backend=\"{}\"}}", fake.addr);
    let near = |name: &str, expected: f64| assert_value(&page, &series(name), expected);
    let of = |name: &str| value(&page, &series(name));
    near("tokenweir_routing_prediction_error_seconds_count", 1.0);
    near("tokenweir_routing_prediction_error_seconds_sum", error);
    near("tokenweir_routing_prediction_ratio_count", 1.0);
    near(
        "tokenweir_cached_tokens_predicted_total",
        predicted.candidate.cached,
    );
    near("tokenweir_cached_tokens_reported_total", 8.0);
    near("tokenweir_backend_prefill_backlog_tokens", 0.0);
    near(
        "tokenweir_backend_prefix_retention_ratio",
        gateway.pool.backends()[0]
            .load
            .estimator
            .learned()
            .retention(),
    );
    assert!((0.9..=1.0).contains(&of("tokenweir_backend_load_freshness_ratio")));
    assert!(of("tokenweir_backend_prefill_tokens_per_second") > 0.0);
    let (written, lines) = std::sync::mpsc::channel();
    let write = Box::new(move |lines: String| written.send(lines).unwrap());
    tokenweir_request::observe::Sink::finished(
        &AccessLog::new(true, write, None, false),
        &[&record],
    );
    let line: Value = serde_json::from_str(&lines.recv().unwrap()).unwrap();
    assert_eq!(
        (&line["policy"], &line["reason"]),
        (&json!("kv_aware"), &json!("only_candidate"))
    );
    let logged = line["predicted_ttft_ms"].as_f64().unwrap();
    assert!((logged - predicted.ttft * 1e3).abs() < 1e-3, "{logged}");
    assert_eq!(line["predicted_cached"], predicted.candidate.cached.round());
}

#[tokio::test]
async fn learned_estimates_are_reported() {
    let (_fake, gateway) = gateway_answering(answer()).await;
    let learned = async || page(&gateway, "/status").await.1["backends"][0]["learned"].clone();
    assert_eq!(learned().await["ttft_seconds"], Value::Null);
    ask(&gateway, "why-1").await;
    let record = gateway.record().await;
    let after = learned().await;
    // The estimate counts from the reservation of the backend, before the request is sent.
    let sent_to_output = record.upstream_ttft().unwrap().as_secs_f64();
    let whole = record.duration().as_secs_f64();
    let ttft = after["ttft_seconds"].as_f64().unwrap();
    assert!(sent_to_output <= ttft && ttft <= whole, "{after}");
    assert!(after["bytes_per_token"].as_f64().unwrap() > 0.0);
}
