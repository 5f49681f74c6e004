//! Metrics of requests: durations of successful requests without those whose client disconnected, HTTP
//! status, tokens per request, tokens that no client received, slow readers, and the age of the oldest
//! request.

use crate::metrics::{sum, value};
use crate::support::scripted_backend::{
    ROLE, ScriptedBackend, Seen, Step, WHOLE_STREAM, WORD, begin, json, paused, stream_of,
};
use crate::support::test_gateway::{
    ASK_STREAM, CHAT, Running, Setup, advance_time, gateway_answering, gateway_following,
    gateway_scripted, post, read_until, start, start_with, tiers, with_lines,
};
use std::time::Duration;
use tokenweir_request::record::Outcome;

/// Asserts that [`sum`] has this value on the metrics page of this gateway.
async fn assert_total(gateway: &Running, metric: &str, labels: &[&str], expected: f64) {
    let found = sum(&gateway.admin("/metrics").await, metric, labels);
    assert!(
        (found - expected).abs() < 1e-9,
        "{metric} {labels:?}: {found}, not {expected}"
    );
}

/// Sends a streaming request and disconnects after the first output.
async fn leave_after_first_output(gateway: &Running) {
    read_until(&mut gateway.begin(CHAT, ASK_STREAM).await, "Hi").await;
}

#[tokio::test]
async fn disconnects_are_not_in_successful_durations() {
    let fake = ScriptedBackend::start(|seen| match seen.number {
        0 => vec![begin(&[ROLE, WORD]), Step::AwaitClose],
        _ => vec![Step::Send(stream_of(&WHOLE_STREAM))],
    })
    .await;
    let tiers = tiers(&["gold"]);
    let gateway = start_with(
        &[fake.addr],
        Setup {
            tiers,
            ..Setup::default()
        },
    )
    .await;
    leave_after_first_output(&gateway).await;
    assert_eq!(gateway.record().await.outcome, Outcome::Cancelled);
    gateway
        .raw(with_lines(&post(CHAT, ASK_STREAM), "x-tier: gold"))
        .await;
    gateway.record().await;
    let duration = "gen_ai_server_request_duration_seconds_count";
    for (labels, expected) in [
        (
            &["error_type=\"\"", "outcome=\"ok\"", "tier=\"gold\""][..],
            1.0,
        ),
        (
            &[
                "error_type=\"cancelled\"",
                "outcome=\"cancelled\"",
                "tier=\"\"",
            ],
            1.0,
        ),
        (&["error_type=\"\""], 1.0),
        (&[], 2.0),
    ] {
        assert_total(&gateway, duration, labels, expected).await;
    }
}

#[tokio::test]
async fn responses_are_counted_by_status() {
    let answers = ["200 OK", "404 Not Found", "599 Odd", "200 OK"];
    let script = move |seen: &Seen| vec![Step::Send(json(answers[seen.number], "{}"))];
    let (_fake, gateway) = gateway_scripted(script).await;
    for _ in 0..4 {
        gateway.post("/v1/embeddings", r#"{"model":"tiny"}"#).await;
        gateway.record().await;
    }
    gateway.post(CHAT, "no JSON").await;
    gateway.record().await;
    for (code, expected) in [("200", 2.0), ("404", 1.0), ("400", 1.0), ("_OTHER", 1.0)] {
        let label = format!("http_response_status_code=\"{code}\"");
        assert_total(
            &gateway,
            "tokenweir_http_responses_total",
            &[&label],
            expected,
        )
        .await;
    }
}

#[tokio::test]
async fn tokens_are_in_input_and_output_histograms() {
    let (_fake, gateway) = gateway_answering(stream_of(&WHOLE_STREAM)).await;
    gateway.post(CHAT, ASK_STREAM).await;
    gateway.record().await;
    for (direction, tokens, bound) in [("input", 9.0, "16.0"), ("output", 3.0, "4.0")] {
        let label = format!("gen_ai_token_type=\"{direction}\"");
        let labels = [label.as_str(), "gen_ai_operation_name=\"chat\""];
        assert_total(&gateway, "gen_ai_client_token_usage_sum", &labels, tokens).await;
        let bucket = format!("le=\"{bound}\"");
        let labels = [&label, "gen_ai_operation_name=\"chat\"", &bucket];
        assert_total(&gateway, "gen_ai_client_token_usage_bucket", &labels, 1.0).await;
    }
}

#[tokio::test]
async fn wasted_tokens_include_failovers_and_disconnects() {
    let (cut, good) = (
        [begin(&[ROLE]), Step::Close],
        [Step::Send(stream_of(&WHOLE_STREAM))],
    );
    let fakes = ScriptedBackend::first_of_two(cut, good).await;
    let gateway = start(&fakes.each_ref().map(|fake| fake.addr)).await;
    gateway.post(CHAT, ASK_STREAM).await;
    assert_eq!(gateway.record().await.attempts.len(), 2);
    let wasted = "tokenweir_wasted_tokens_total";
    assert_total(
        &gateway,
        wasted,
        &["reason=\"failover\"", "type=\"input\""],
        9.0,
    )
    .await;

    let (_fake, gateway) = gateway_following([begin(&[ROLE, WORD]), Step::AwaitClose]).await;
    leave_after_first_output(&gateway).await;
    gateway.record().await;
    assert_total(
        &gateway,
        wasted,
        &["reason=\"cancelled\"", "type=\"output\""],
        1.0,
    )
    .await;
}

#[tokio::test]
async fn the_oldest_request_has_an_age() {
    let (fake, gateway) = gateway_following(paused(&[ROLE], &WHOLE_STREAM)).await;
    let age = "tokenweir_oldest_request_age_seconds";
    gateway.assert_value(age, 0.0).await;
    let look = async {
        fake.until_received(1).await;
        advance_time(Duration::from_secs(2)).await;
        let page = gateway.admin("/metrics").await;
        fake.go();
        value(&page, age)
    };
    let (_, seconds) = tokio::join!(gateway.post(CHAT, ASK_STREAM), look);
    assert!((2.0..60.0).contains(&seconds), "{seconds}");
    gateway.record().await;
    // No request is open.
    gateway.assert_value(age, 0.0).await;
    let stalls = "tokenweir_client_write_stall_seconds_count";
    assert_total(&gateway, stalls, &["gen_ai_request_model=\"tiny\""], 1.0).await;
}
