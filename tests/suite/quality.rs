//! The quality monitor over real sockets: which requests it sends to a judge, and that a faulty judge does
//! not affect the requests of clients.

use crate::metrics::sum;
use crate::support::process::folder;
use crate::support::scripted_backend::json as whole;
use crate::support::scripted_backend::{ScriptedBackend, Seen, stream_of};
use crate::support::test_gateway::{
    CHAT, Setup, gateway_answering_with, post, start_with, with_lines,
};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;
use tokenweir_quality::QualitySettings;

/// Secrets that the test puts into all parts of a request. No judge, file or page may get one of them.
const SECRETS: [&str; 5] = [
    "bob@example.com",
    "+1 415 555 0123",
    "4111 1111 1111 1111",
    "sk-abcdefgh01234567abcdefgh01234567",
    "header-secret",
];

#[tokio::test]
async fn judge_and_file_get_redacted_texts() {
    let secret = SECRETS[..4].join(" and ");
    let answer = json!({ "id": "c", "model": "tiny", "choices": [{ "index": 0,
        "message": { "content": format!("You wrote {secret}"), "reasoning": "a-thought" },
        "finish_reason": "stop" }], "usage": { "prompt_tokens": 9, "completion_tokens": 3 } });
    let answer = whole("200 OK", &answer.to_string());
    let fake = ScriptedBackend::answering(answer.clone()).await;
    let judge = ScriptedBackend::answering(whole("200 OK", r#"{"score":0.75}"#)).await;
    let file = folder("quality").join("secrets.jsonl");
    let quality = QualitySettings {
        enabled: true,
        sample: 1.0,
        file: Some(file.clone()),
        judge: Some(format!("http://{}/score", judge.addr)),
        judge_timeout: Duration::from_secs(20),
        ..QualitySettings::default()
    };
    let setup = Setup {
        quality,
        injects_usage: true,
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    let request_body = json!({ "model": "tiny", "user": "user-secret",
        "messages": [{ "role": "user", "content": format!("I am {secret}") }] });
    let secrets = "authorization: Bearer header-secret\r\nx-api-key: header-secret";
    let request = with_lines(&post(CHAT, &request_body.to_string()), secrets);
    let got = gateway.raw(&request).await;
    assert!(
        String::from_utf8_lossy(&got).contains(&secret),
        "the client gets the unredacted response"
    );
    let page = wait_for!({
        let page = gateway.admin("/metrics").await;
        (sum(&page, "tokenweir_quality_samples_total", &[]) > 0.5).then_some(page)
    });
    let done = sum(
        &page,
        "tokenweir_quality_samples_total",
        &["result=\"done\""],
    );
    assert_eq!(done as u64, 1);
    let seen: Vec<Seen> = judge.seen();
    let line = fs::read_to_string(&file).unwrap();
    let judge_request =
        String::from_utf8([seen[0].head.as_bytes(), &seen[0].body].concat()).unwrap();
    let status = gateway.admin("/status").await;
    for (place, text) in [
        ("judge", &judge_request),
        ("file", &line),
        ("/metrics", &page),
        ("/status", &status),
    ] {
        for secret in SECRETS.iter().chain(&["user-secret", "a-thought"]) {
            assert!(!text.contains(secret), "{place} has {secret}: {text}");
        }
    }
    let (judged, written): (Value, Value) = (
        serde_json::from_slice(&seen[0].body).unwrap(),
        serde_json::from_str(&line).unwrap(),
    );
    assert_eq!(
        judged["answer"],
        "You wrote [email] and [phone] and [card] and [key]"
    );
    assert_eq!(
        (&judged["redacted"], &written["score"]),
        (&json!(8), &json!(0.75))
    );
    assert_eq!(written["prompt"], judged["prompt"]);
}

#[tokio::test]
async fn model_refusals_show_in_fields_only() {
    let chat = |message: Value, finish: &str| json!({ "choices": [{ "index": 0, "message": message, "finish_reason": finish }] });
    let block = |kind: &str, key: &str| {
        json!({ "status": "completed", "output": [
            { "type": "message", "content": [{ "type": kind, key: "I'm sorry, I can't" }] }] })
    };
    let sorry = json!({ "content": "I'm sorry, I can't help with that." });
    let documents = [
        (CHAT, chat(sorry.clone(), "stop"), false),
        (
            CHAT,
            chat(json!({ "content": "Yes", "refusal": null }), "stop"),
            false,
        ),
        (
            CHAT,
            chat(json!({ "content": "Yes", "refusal": "" }), "stop"),
            false,
        ),
        (
            CHAT,
            chat(json!({ "content": null, "refusal": "No" }), "stop"),
            true,
        ),
        (
            CHAT,
            chat(json!({ "content": "Ye" }), "content_filter"),
            true,
        ),
        ("/v1/responses", block("output_text", "text"), false),
        ("/v1/responses", block("refusal", "refusal"), true),
        (
            "/v1/messages",
            json!({ "stop_reason": "end_turn", "content": [] }),
            false,
        ),
        (
            "/v1/messages",
            json!({ "stop_reason": "refusal", "content": [] }),
            true,
        ),
    ];
    let delta = |delta: Value, finish: Value| json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
    let event = |kind: &str| json!({ "type": kind, "delta": "I can't" });
    let completed = json!({ "type": "response.completed", "response": { "status": "completed" } });
    let stop = || delta(json!({}), json!("stop"));
    let no = || delta(json!({ "refusal": "No" }), Value::Null);
    let streams = [
        (CHAT, vec![delta(sorry, Value::Null), stop()], false),
        (CHAT, vec![no(), no(), stop()], true),
        (
            "/v1/responses",
            vec![event("response.output_text.delta"), completed.clone()],
            false,
        ),
        (
            "/v1/responses",
            vec![event("response.refusal.delta"), completed],
            true,
        ),
    ];
    let streamed = streams.into_iter().map(|(path, events, is_rejected)| {
        let events = events
            .iter()
            .map(Value::to_string)
            .chain(["[DONE]".to_owned()]);
        (path, stream_of(&events.collect::<Vec<_>>()), is_rejected)
    });
    let answers = documents.into_iter().map(|(path, document, is_rejected)| {
        (path, whole("200 OK", &document.to_string()), is_rejected)
    });
    let mut refused = 0;
    for (path, answer, is_rejected) in answers.chain(streamed) {
        let response_text = String::from_utf8_lossy(&answer).into_owned();
        let (_fake, gateway) = gateway_answering_with(Setup::default(), answer).await;
        let request_body =
            json!({ "model": "tiny", "stream": response_text.contains("event-stream") });
        gateway.post(path, &request_body.to_string()).await;
        assert_eq!(
            gateway.record().await.is_model_refusal(),
            is_rejected,
            "{path} {response_text}"
        );
        let page = gateway.admin("/metrics").await;
        refused += sum(&page, "tokenweir_model_refusals_total", &[]) as u64;
        assert!(
            !page.contains("tokenweir_quality_"),
            "the quality monitor is off"
        );
    }
    assert_eq!(refused, 6);
}
