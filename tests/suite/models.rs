//! Several models behind one gateway, over real sockets: configured aliases, backends with different models,
//! and adapters that backends load and unload.

use crate::support::scripted_backend::{
    FINISH, LLAMA_CPP, ROLE, ScriptedBackend, Seen, Step, VLLM, WORD, json, paused, stream_of,
};
use crate::support::test_gateway::{
    CHAT, Running, Setup, advance_time, body, body_json, get, post, start, start_with, status,
};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_gateway::backend::routes::ModelConfig;
use tokenweir_request::record::Outcome;

/// Starts a backend that serves these models and answers every request with `{}`.
async fn serving(models: &[&str]) -> ScriptedBackend {
    let fake = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    fake.set_models(models);
    fake
}

fn alias(name: &str, served_as: &str) -> ModelConfig {
    ModelConfig {
        name: name.into(),
        served_as: Some(served_as.into()),
        ..ModelConfig::default()
    }
}

async fn named(backends: &[SocketAddr], models: Vec<ModelConfig>) -> Running {
    start_with(
        backends,
        Setup {
            models,
            injects_usage: true,
            ..Setup::default()
        },
    )
    .await
}

async fn listed(gateway: &Running) -> Vec<Value> {
    let list = body_json(&gateway.raw(get("/v1/models")).await);
    list["data"].as_array().unwrap().clone()
}

async fn ids(gateway: &Running) -> Vec<String> {
    let listed = listed(gateway).await;
    listed
        .iter()
        .map(|entry| entry["id"].as_str().unwrap().to_owned())
        .collect()
}

fn message(answer: &[u8]) -> String {
    body_json(answer)["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn has_length(seen: &Seen) -> bool {
    let head = seen.head.to_ascii_lowercase();
    head.matches("content-length").count() == 1
        && head.contains(&format!("\r\ncontent-length: {}\r\n", seen.body.len()))
}

// === model name replacement ===

#[tokio::test]
async fn every_server_gets_the_served_name() {
    let script = |_: &_| vec![Step::Send(stream_of(&[ROLE, WORD, FINISH, "[DONE]"]))];
    for (kind, options) in [
        (VLLM, r#""stream_options":{"include_usage":true},"#),
        (LLAMA_CPP, ""),
    ] {
        let fake = ScriptedBackend::start_kind(kind, script).await;
        let gateway = named(&[fake.addr], vec![alias("gpt", "tiny")]).await;
        let answer = gateway
            .post(CHAT, r#"{"stream":true, "model":"gpt"}"#)
            .await;
        assert!(body(&answer).1);
        let seen = fake.seen().pop().unwrap();
        let expected = format!(r#"{{{options}"stream":true, "model":"tiny"}}"#);
        assert_eq!(String::from_utf8_lossy(&seen.body), expected);
        assert!(has_length(&seen), "{}", seen.head);
        let record = gateway.record().await;
        assert_eq!(
            (record.model.as_str(), record.outcome),
            ("gpt", Outcome::Ok)
        );
        assert_eq!(record.options.usage_injected, !options.is_empty());
    }
}

fn form(model: &str, around: &str) -> (String, Vec<u8>) {
    let part = |head: &str, value: &str| {
        format!("--b-1\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    };
    let file = part("name=\"file\"; filename=\"model\"", around);
    let body = [
        &file,
        &part("name=\"model\"", model),
        &part("name=\"x\"", around),
        "--b-1--\r\n",
    ];
    let body = body.concat();
    let head = format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\
         content-type: multipart/form-data; boundary=\"b-1\"\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    ((head + &body), body.into_bytes())
}

#[tokio::test]
async fn only_the_alias_in_a_form_changes() {
    let fake = serving(&["openai/whisper"]).await;
    let gateway = named(&[fake.addr], vec![alias("whisper", "openai/whisper")]).await;
    for around in [
        "",
        "whisper",
        "\r\n\r\nwhisper\r\n",
        "name=\"model\"\r\n\r\nwhisper\r\n--b-",
    ] {
        let (request, _) = form("whisper", around);
        assert_eq!(status(&gateway.raw(request).await), 200, "{around}");
        let seen = fake.seen().pop().unwrap();
        assert!(has_length(&seen), "{}", seen.head);
        assert_eq!(seen.body, form("openai/whisper", around).1, "{around}");
        assert_eq!(gateway.record().await.model.as_str(), "whisper");
    }
    let twice = form(
        "whisper",
        "x\r\n--b-1\r\nContent-Disposition: form-data; name=model\r\n\r\nx",
    );
    assert_eq!(
        status(&gateway.raw(twice.0).await),
        400,
        "a duplicate model is ambiguous"
    );
}

#[tokio::test]
async fn a_body_digest_passes_without_an_alias() {
    let fake = serving(&["a"]).await;
    let gateway = named(&[fake.addr], vec![alias("gpt", "a")]).await;
    let signed = |model: &str| {
        post(CHAT, &format!(r#"{{"model":"{model}"}}"#))
            .replace("host: gateway", "host: g\r\ncontent-digest: sha-256=:x:")
    };
    assert_eq!(status(&gateway.raw(signed("a")).await), 200);
    gateway.record().await;
    let answer = gateway.raw(signed("gpt")).await;
    assert_eq!(status(&answer), 400);
    assert!(
        message(&answer).ends_with("request `a` instead"),
        "{}",
        message(&answer)
    );
    let record = gateway.record().await;
    assert_eq!(
        (record.refusal, record.outcome),
        (Some("signed_body"), Outcome::ClientError)
    );
    assert_eq!(record.model.as_str(), "gpt");
    assert_eq!(fake.seen().len(), 1);
}

// === unknown and removed models ===

#[tokio::test]
async fn an_unknown_model_creates_no_label() {
    let ids: Vec<String> = (10..40).map(|number| format!("m{number}")).collect();
    let fake = serving(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let gateway = named(&[fake.addr], vec![alias("alias", "m10")]).await;
    for model in ["evil", "evil\\\"} 1"] {
        let answer = gateway
            .post(CHAT, &format!(r#"{{"model":"{model}"}}"#))
            .await;
        assert_eq!(status(&answer), 404);
        let message = message(&answer);
        assert!(
            message.contains("available models: `alias`, `m10`, `m11`"),
            "{message}"
        );
        assert!(message.ends_with("`m28` and 11 more"), "{message}");
        let label = gateway.record().await.model;
        assert_eq!(
            (label.as_str(), label.name()),
            ("_other", &*model.replace('\\', ""))
        );
    }
    gateway.post(CHAT, r#"{"model":"alias"}"#).await;
    let page = gateway.admin("/metrics").await;
    assert!(!page.contains("evil"));
    for (model, outcome) in [("_other", "client_error"), ("alias", "ok")] {
        let labels = format!("gen_ai_request_model=\"{model}\",operation=\"chat\"");
        let series =
            format!("tokenweir_requests_total{{{labels},outcome=\"{outcome}\",tier=\"\"}}");
        let count = if model == "alias" { 1 } else { 2 };
        assert!(
            page.contains(&format!("{series} {count}\n")),
            "{series}\n{page}"
        );
    }
}

#[tokio::test]
async fn without_a_list_the_configured_name_counts() {
    let silent = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    silent.refuse_models("404 Not Found");
    let gateway = named(&[silent.addr], vec![alias("gpt", "a")]).await;
    for (model, expected) in [("gpt", "a"), ("other", "other")] {
        assert_eq!(
            status(
                &gateway
                    .post(CHAT, &format!(r#"{{"model":"{model}"}}"#))
                    .await
            ),
            200
        );
        let seen = silent.seen().pop().unwrap();
        assert_eq!(seen.body, format!(r#"{{"model":"{expected}"}}"#).as_bytes());
    }
    assert_eq!(gateway.record().await.model.as_str(), "gpt");
    let label = gateway.record().await.model;
    assert_eq!((label.as_str(), label.name()), ("_other", "other"));
    assert_eq!(ids(&gateway).await, ["gpt"], "the configuration names it");
}

#[tokio::test]
async fn streams_of_an_unlisted_model_finish() {
    let steps = paused(&[ROLE, WORD], &[FINISH, "[DONE]"]);
    let one = ScriptedBackend::following(steps.clone()).await;
    let two = ScriptedBackend::following(steps).await;
    two.set_models(&["b"]);
    let gateway = named(&[one.addr, two.addr], vec![alias("gpt", "tiny")]).await;
    let ask = r#"{"model":"gpt","stream":true}"#;
    let stream = gateway.post(CHAT, ask);
    let change = async {
        one.until_received(1).await;
        one.set_models(&["b"]);
        two.set_models(&["tiny"]);
        advance_time(Duration::from_secs(11)).await;
        wait_until!(gateway.pool.routes().lookup(Some("gpt")).backends[..] == [1]);
        one.go();
    };
    let (answer, ()) = tokio::join!(stream, change);
    assert!(body(&answer).1 && String::from_utf8_lossy(&answer).contains("[DONE]"));
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.model.as_str()),
        (Outcome::Ok, "gpt")
    );
    two.go();
    assert_eq!(status(&gateway.post(CHAT, ask).await), 200);
    assert_eq!((one.seen().len(), two.seen().len()), (1, 1));
    two.set_models(&["b"]);
    advance_time(Duration::from_secs(11)).await;
    wait_until!(ids(&gateway).await == ["b", "gpt"]);
    assert_eq!(
        status(&gateway.post(CHAT, ask).await),
        404,
        "every backend has listed its models"
    );
}

#[tokio::test]
async fn a_404_rereads_the_model_list() {
    let not_found = r#"{"error":{"message":"The model `sql` does not exist.","code":404}}"#;
    let one = ScriptedBackend::answering(json("404 Not Found", not_found)).await;
    one.set_models(&["base", "base:sql"]);
    let gateway = start(&[one.addr]).await;
    let adapter = |gateway: &Running| {
        let parent = |model: &tokenweir_engine::model::ServedModel| model.parent.clone();
        gateway
            .pool
            .routes()
            .models()
            .iter()
            .map(parent)
            .collect::<Vec<_>>()
    };
    assert_eq!(adapter(&gateway), [None, Some("base".into())]);
    one.set_models(&["base"]);
    let models_requests = one.asked("/v1/models");
    // Only one second passes, much less than the time until the gateway reads the list of models again. So
    // the 404 of the backend must be the cause of the reading.
    advance_time(Duration::from_secs(1)).await;
    let answer = gateway.post(CHAT, r#"{"model":"sql"}"#).await;
    assert_eq!(
        (status(&answer), body(&answer).0),
        (404, not_found.as_bytes().to_vec())
    );
    wait_until!(adapter(&gateway) == [None]);
    assert_eq!(one.asked("/v1/models"), models_requests + 1);
    let answer = gateway.post(CHAT, r#"{"model":"sql"}"#).await;
    assert!(message(&answer).contains("available models: `base`"));
    assert_eq!(one.seen().len(), 1, "the gateway has the new model list");
}

/// Starts a backend that serves the adapters in `adapters`, and answers 404 for other models.
async fn with_adapters(adapters: Arc<Mutex<Vec<&'static str>>>) -> ScriptedBackend {
    let serves = move |body: &Value| {
        adapters
            .lock()
            .unwrap()
            .iter()
            .any(|id| body["model"] == *id)
    };
    ScriptedBackend::start(move |seen| {
        let body = serde_json::from_slice(&seen.body).unwrap();
        let not_found = r#"{"error":{"message":"The model `sql` does not exist.","code":404}}"#;
        let text = if serves(&body) {
            ("200 OK", r#"{"a":1}"#)
        } else {
            ("404 Not Found", not_found)
        };
        vec![Step::Send(json(text.0, text.1))]
    })
    .await
}

#[tokio::test]
async fn requests_follow_a_moving_adapter() {
    let adapters = [["sql"].to_vec(), Vec::new()].map(|ids| Arc::new(Mutex::new(ids)));
    let [one, two] = [adapters[0].clone(), adapters[1].clone()].map(with_adapters);
    let (one, two) = (one.await, two.await);
    one.set_models(&["base", "base:sql"]);
    two.set_models(&["base"]);
    let gateway = start(&[one.addr, two.addr]).await;
    let ask = r#"{"model":"sql"}"#;
    assert_eq!(status(&gateway.post(CHAT, ask).await), 200);
    // The gateway learns of this move from the 404 of the backend.
    for ids in &adapters {
        ids.lock().unwrap().clear();
    }
    adapters[1].lock().unwrap().push("sql");
    one.set_models(&["base"]);
    two.set_models(&["base", "base:sql"]);
    advance_time(Duration::from_secs(1)).await;
    let asked = async || status(&gateway.post(CHAT, ask).await);
    assert_eq!([asked().await, asked().await, asked().await], [200; 3]);
    // The gateway reads the list of the backend that no longer has the adapter first.
    two.set_models(&["base"]);
    adapters[1].lock().unwrap().clear();
    gateway.pool.backends()[1].health.mark_models_stale();
    advance_time(Duration::from_secs(1)).await;
    wait_until!(
        gateway
            .pool
            .routes()
            .lookup(Some("sql"))
            .backends
            .is_empty()
    );
    adapters[0].lock().unwrap().push("sql");
    one.set_models(&["base", "base:sql"]);
    assert_eq!(asked().await, 200);
    assert_eq!(
        one.seen().len() + two.seen().len(),
        6,
        "one request got a 404"
    );
    let reads = one.asked("/v1/models");
    for _ in 0..20 {
        assert_eq!(
            status(&gateway.post(CHAT, r#"{"model":"invented"}"#).await),
            404
        );
    }
    assert_eq!(one.asked("/v1/models"), reads, "no backend ever listed it");
}

#[tokio::test]
async fn a_refused_list_shows_a_remedy() {
    let fake = serving(&["tiny"]).await;
    fake.refuse_models("401 Unauthorized");
    let gateway = start(&[fake.addr]).await;
    let page = gateway.admin("/status").await;
    assert!(
        page.contains("/v1/models answers 401") && page.contains("api_key"),
        "{page}"
    );
    assert_eq!(
        status(&gateway.post(CHAT, r#"{"model":"tiny"}"#).await),
        200
    );
    fake.set_models(&["tiny"]);
    advance_time(Duration::from_secs(11)).await;
    wait_until!(
        gateway
            .admin("/status")
            .await
            .contains(r#""models_error":null"#)
    );
}
