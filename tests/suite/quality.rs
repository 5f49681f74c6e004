//! The look at quality, over real sockets: what a judge gets of requests, and what becomes of
//! requests if it is ill.

use crate::metrics::samples;
use crate::support::fake::{Fake, Seen, Step, chunk, json as whole, stream_head, stream_of};
use crate::support::gateway::{Running, Setup, body, post, start_with, status};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir::telemetry::quality::Settings;

const CHAT: &str = "/v1/chat/completions";

/// What nobody may get, in every place where it can be.
const SECRETS: [&str; 5] = [
    "bob@example.com",
    "+1 415 555 0123",
    "4111 1111 1111 1111",
    "sk-abcdefgh01234567abcdefgh01234567",
    "header-secret",
];

fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("quality-{name}.jsonl"));
    let _ = fs::remove_file(&file);
    file
}

/// All requests are in the sample.
fn setup(judge: &Fake, file: PathBuf, judge_timeout: Duration) -> Setup {
    let quality = Settings {
        enabled: true,
        sample: 1.0,
        file: Some(file),
        judge: Some(format!("http://{}/score", judge.addr)),
        judge_timeout,
        ..Settings::default()
    };
    Setup { quality, injects_usage: true, ..Setup::default() }
}

/// What the counters whose series begin so come to.
fn count(page: &str, series: &str) -> u64 {
    let all = samples(page).into_iter();
    all.filter(|(name, _)| name.starts_with(series)).map(|(_, count)| count as u64).sum()
}

/// Waits until so many samples have come to an end.
async fn settled(gateway: &Running, count: u64) -> String {
    loop {
        let page = gateway.admin("/metrics").await;
        if self::count(&page, "tokenweir_quality_samples_total") >= count {
            return page;
        }
    }
}

#[tokio::test]
async fn a_judge_and_the_file_get_prompts_and_answers_and_nothing_that_is_secret() {
    let secret = SECRETS[..4].join(" and ");
    let answer = json!({ "id": "c", "model": "tiny", "choices": [{ "index": 0,
        "message": { "content": format!("You wrote {secret}"), "reasoning": "a-thought" },
        "finish_reason": "stop" }], "usage": { "prompt_tokens": 9, "completion_tokens": 3 } });
    let answer = whole("200 OK", &answer.to_string());
    let fake = Fake::answering(answer.clone()).await;
    let judge = Fake::answering(whole("200 OK", r#"{"score":0.75}"#)).await;
    let file = file("secrets");
    let gateway =
        start_with(&[fake.addr], setup(&judge, file.clone(), Duration::from_secs(20))).await;
    let asked = json!({ "model": "tiny", "user": "user-secret",
        "messages": [{ "role": "user", "content": format!("I am {secret}") }] });
    let request = post(CHAT, &asked.to_string()).replacen(
        "\r\n",
        "\r\nauthorization: Bearer header-secret\r\nx-api-key: header-secret\r\n",
        1,
    );
    let got = gateway.raw(&request).await;
    assert!(String::from_utf8_lossy(&got).contains(&secret), "the client gets all of it");
    let page = settled(&gateway, 1).await;
    assert_eq!(count(&page, "tokenweir_quality_samples_total{result=\"done\"}"), 1);
    let seen: Vec<Seen> = judge.seen();
    let line = fs::read_to_string(&file).unwrap();
    let told = String::from_utf8([seen[0].head.as_bytes(), &seen[0].body].concat()).unwrap();
    let status = gateway.admin("/status").await;
    for (place, text) in
        [("judge", &told), ("file", &line), ("/metrics", &page), ("/status", &status)]
    {
        for secret in SECRETS.iter().chain(&["user-secret", "a-thought"]) {
            assert!(!text.contains(secret), "{place} has {secret}: {text}");
        }
    }
    let (judged, written): (Value, Value) =
        (serde_json::from_slice(&seen[0].body).unwrap(), serde_json::from_str(&line).unwrap());
    assert_eq!(judged["answer"], "You wrote [email] and [phone] and [card] and [key]");
    assert_eq!((&judged["redacted"], &written["score"]), (&json!(8), &json!(0.75)));
    assert_eq!(written["prompt"], judged["prompt"]);
}

#[tokio::test]
async fn a_judge_that_hangs_or_babbles_holds_up_no_request_and_no_line_is_lost() {
    let word = r#"{"id":"c","model":"tiny","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}"#;
    let fake = Fake::answering(stream_of(&[word, "[DONE]"])).await;
    let judge = Fake::start(|seen| {
        // Each request has another fate; those that hang do so until the end.
        match seen.body.len() % 2 {
            0 => vec![Step::AwaitClose],
            _ => vec![Step::Send(b"nonsense\r\n\r\n".to_vec()), Step::Close],
        }
    })
    .await;
    let file = file("ill");
    let gateway =
        start_with(&[fake.addr], setup(&judge, file.clone(), Duration::from_millis(200))).await;
    for number in 0..12 {
        let prompt = "a".repeat(number);
        let asked = json!({ "model": "tiny", "stream": true, "messages": [{ "content": prompt }] });
        let answer = gateway.post(CHAT, &asked.to_string()).await;
        assert_eq!((status(&answer), body(&answer).1), (200, true));
    }
    let page = settled(&gateway, 12).await;
    assert_eq!(count(&page, "tokenweir_quality_samples_total{result=\"judge_failed\"}"), 12);
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 12);
}

#[tokio::test]
async fn refusals_are_what_the_wire_tells_in_every_shape_and_not_what_a_text_looks_like() {
    let chat = |message: Value, finish: &str| json!({ "choices": [{ "index": 0, "message": message, "finish_reason": finish }] });
    let block = |kind: &str, key: &str| {
        json!({ "status": "completed", "output": [
            { "type": "message", "content": [{ "type": kind, key: "I'm sorry, I can't" }] }] })
    };
    let sorry = json!({ "content": "I'm sorry, I can't help with that." });
    let documents = [
        (CHAT, chat(sorry.clone(), "stop"), false),
        (CHAT, chat(json!({ "content": "Yes", "refusal": null }), "stop"), false),
        (CHAT, chat(json!({ "content": "Yes", "refusal": "" }), "stop"), false),
        (CHAT, chat(json!({ "content": null, "refusal": "No" }), "stop"), true),
        (CHAT, chat(json!({ "content": "Ye" }), "content_filter"), true),
        ("/v1/responses", block("output_text", "text"), false),
        ("/v1/responses", block("refusal", "refusal"), true),
        ("/v1/messages", json!({ "stop_reason": "end_turn", "content": [] }), false),
        ("/v1/messages", json!({ "stop_reason": "refusal", "content": [] }), true),
    ];
    let delta = |delta: Value, finish: Value| json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
    let event = |kind: &str| json!({ "type": kind, "delta": "I can't" });
    let completed = json!({ "type": "response.completed", "response": { "status": "completed" } });
    let stop = || delta(json!({}), json!("stop"));
    let no = || delta(json!({ "refusal": "No" }), Value::Null);
    let streams = [
        (CHAT, vec![delta(sorry, Value::Null), stop()], false),
        (CHAT, vec![no(), no(), stop()], true),
        ("/v1/responses", vec![event("response.output_text.delta"), completed.clone()], false),
        ("/v1/responses", vec![event("response.refusal.delta"), completed], true),
    ];
    let streamed = streams.into_iter().map(|(path, events, is_refused)| {
        let events = events.iter().flat_map(|event| chunk(&event.to_string()));
        let done = [chunk("[DONE]"), b"0\r\n\r\n".to_vec()].concat();
        (path, [stream_head(), events.collect(), done].concat(), is_refused)
    });
    let answers = documents.into_iter().map(|(path, document, is_refused)| {
        (path, whole("200 OK", &document.to_string()), is_refused)
    });
    let mut refused = 0;
    for (path, answer, is_refused) in answers.chain(streamed) {
        let told = String::from_utf8_lossy(&answer).into_owned();
        let fake = Fake::answering(answer).await;
        let gateway = start_with(&[fake.addr], Setup::default()).await;
        let asked = json!({ "model": "tiny", "stream": told.contains("event-stream") });
        gateway.post(path, &asked.to_string()).await;
        assert_eq!(gateway.record().await.is_refused_answer(), is_refused, "{path} {told}");
        let page = gateway.admin("/metrics").await;
        refused += count(&page, "tokenweir_refused_answers_total");
        assert!(!page.contains("tokenweir_quality_"), "and quality is off");
    }
    assert_eq!(refused, 6);
}
