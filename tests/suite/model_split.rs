//! A model name whose requests are split over versions, over real sockets.

use crate::support::process::{GatewayProcess, folder};
use crate::support::scripted_backend::{ScriptedBackend, Seen, Step, json, stream_of};
use crate::support::test_gateway::{
    CHAT, Running, Setup, body, body_json, get, post, read_rest, send_to, start_with, status,
    with_lines,
};
use std::collections::HashMap;
use std::fs;
use tokenweir_gateway::backend::routes::{ModelConfig, SplitVersion};

const ANSWER: &str = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hello you"},
    "finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#;
const EMPTY_ANSWER: &str = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":""},
    "finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;

/// A model `chat` with the versions `old` and `new` of equal weight.
fn chat() -> ModelConfig {
    let version = |model: &str| SplitVersion {
        model: model.into(),
        weight: 50,
    };
    ModelConfig {
        name: "chat".into(),
        split: vec![version("old"), version("new")],
        guard: Some(true),
        ..ModelConfig::default()
    }
}

/// Starts a backend for each version, and a gateway. The backend of `new` gives this answer.
async fn start(new_answer: Vec<u8>) -> (ScriptedBackend, ScriptedBackend, Running) {
    let old = ScriptedBackend::answering(json("200 OK", ANSWER)).await;
    old.set_models(&["old"]);
    let new = ScriptedBackend::answering(new_answer).await;
    new.set_models(&["new"]);
    let setup = Setup {
        models: vec![chat()],
        ..Setup::default()
    };
    let gateway = start_with(&[old.addr, new.addr], setup).await;
    (old, new, gateway)
}

/// Sends a turn of a conversation. Returns the version that served it.
async fn turn(gateway: &Running, conversation: usize, turns: usize) -> String {
    let answered = r#",{"role":"assistant","content":"b"},{"role":"user","content":"c"}"#;
    let more = answered.repeat(turns);
    let body = format!(
        r#"{{"model":"chat","messages":[{{"role":"system","content":"s"}},
        {{"role":"user","content":"question {conversation}"}}{more}]}}"#
    );
    gateway.post(CHAT, &body).await;
    gateway.record().await.model.as_str().to_owned()
}

#[tokio::test]
async fn a_conversation_stays_at_its_version() {
    let (old, new, gateway) = start(json("200 OK", ANSWER)).await;
    let mut conversations: HashMap<String, usize> = HashMap::new();
    for conversation in 0..24 {
        let first = turn(&gateway, conversation, 0).await;
        for turns in 1..3 {
            assert_eq!(turn(&gateway, conversation, turns).await, first);
        }
        *conversations.entry(first).or_default() += 1;
    }
    assert!(conversations["old"] > 4 && conversations["new"] > 4);
    for (fake, name) in [(&old, "old"), (&new, "new")] {
        let seen = fake.seen();
        assert_eq!(seen.len(), 3 * conversations[name]);
        let wanted = format!(r#"{{"model":"{name}","messages":"#);
        assert!(seen.iter().all(|it| it.body.starts_with(wanted.as_bytes())));
    }
}

#[tokio::test]
async fn session_and_user_win_over_the_prompt() {
    let (_old, _new, gateway) = start(json("200 OK", ANSWER)).await;
    let ask = async |id: usize, question: usize, field: &str| {
        let body = format!(
            r#"{{"model":"chat","{field}":"id {id}","messages":[{{"role":"user",
            "content":"question {question}"}}]}}"#
        );
        assert_eq!(status(&gateway.post(CHAT, &body).await), 200);
        gateway.record().await
    };
    for field in ["user", "prompt_cache_key"] {
        let mut versions = Vec::new();
        for id in 0..16 {
            let record = ask(id, 1, field).await;
            assert_eq!(record.notes.requested_model(), Some("chat"));
            let version = record.model.as_str().to_owned();
            assert_eq!(ask(id, 2, field).await.model.as_str(), version);
            versions.push(version);
        }
        versions.sort_unstable();
        versions.dedup();
        assert_eq!(versions, ["new", "old"], "{field}");
    }
}

#[tokio::test]
async fn a_bad_version_is_taken_out() {
    for (answer, fault) in [
        (json("500 Internal Server Error", "{}"), "errors"),
        (json("200 OK", EMPTY_ANSWER), "empty_answers"),
    ] {
        let (old, new, gateway) = start(answer).await;
        let mut before = HashMap::new();
        for conversation in 0..200 {
            before.insert(conversation, turn(&gateway, conversation, 0).await);
        }
        let of_new = before.values().filter(|version| *version == "new").count();
        assert!((20..60).contains(&of_new), "{of_new} {fault}");
        let received = new.seen().len();
        for (conversation, version) in before {
            let now = turn(&gateway, conversation, 1).await;
            assert_eq!(now, "old", "{conversation} was at {version}");
        }
        assert_eq!(new.seen().len(), received);
        assert!(old.seen().len() >= 300);
        let split = &gateway.document("/status").await["model_splits"][0];
        assert_eq!(split["versions"][1]["taken_out"]["fault"], fault);
        assert_eq!(split["versions"][0]["share"], 1.0);
        let metrics = gateway.admin("/metrics").await;
        let out = r#"tokenweir_model_version_share_ratio{split_model="chat",version="new"} 0"#;
        assert!(metrics.contains(out), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_is_a_verdict() {
    let old = ScriptedBackend::answering(json("200 OK", ANSWER)).await;
    old.set_models(&["old"]);
    let new = ScriptedBackend::answering(json("200 OK", EMPTY_ANSWER)).await;
    new.set_models(&["new"]);
    let config = folder("removal").join("gateway.yaml");
    let text = format!(
        "listen: 127.0.0.1:0\nbackends: [{{ url: 'http://{}' }}, {{ url: 'http://{}' }}]\n\
         models: [{{ name: chat, guard: true, split: [{{ model: old, weight: 1 }}, {{ model: new, weight: 1 }}] }}]\n",
        old.addr, new.addr
    );
    fs::write(&config, text).unwrap();
    let gateway = GatewayProcess::start(&config).await;
    for number in 0..200 {
        let body = format!(
            r#"{{"model":"chat","messages":[{{"role":"user","content":"question {number}"}}]}}"#
        );
        let answer = read_rest(send_to(gateway.clients(), post(CHAT, &body)).await).await;
        assert_eq!(status(&answer), 200);
    }
    let holds = r#"tokenweir_diagnosis_active{backend="",verdict="version_taken_out"} 1"#;
    wait_until!(gateway.get("/metrics").await.contains(holds));
    let diagnosis = gateway.get("/diagnose").await;
    assert!(
        diagnosis.contains("new of chat: empty answers 100 %"),
        "{diagnosis}"
    );
}

/// While a reload waits for a new backend, requests find the models of before and their splits.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_models_and_splits_together() {
    let backend = ScriptedBackend::answering(json("200 OK", ANSWER)).await;
    backend.set_models(&["old", "new"]);
    // Each reload adds a backend that does not answer its first check, so the reload waits.
    let silent = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let config = folder("together").join("gateway.yaml");
    let write = |entry: &str, round: usize| {
        let silent = silent[round].local_addr().unwrap();
        let text = format!(
            "listen: 127.0.0.1:0\nbackends: [{{ url: 'http://{}' }}, {{ url: 'http://{silent}' }}]\n\
             models: [{{ name: chat, {entry} }}]\n",
            backend.addr
        );
        fs::write(&config, text).unwrap();
    };
    let alias = "served_as: old";
    write(alias, 0);
    let gateway = GatewayProcess::start(&config).await;
    let split = "split: [{ model: old, weight: 1 }, { model: new, weight: 1 }]";
    for (round, entry) in [split, alias].into_iter().enumerate() {
        let seen_before = backend.seen().len();
        write(entry, round + 1);
        let reload = gateway.reload();
        let requests = async {
            loop {
                let request = post(CHAT, r#"{"model":"chat","messages":[]}"#);
                read_rest(send_to(gateway.clients(), request).await).await;
            }
        };
        tokio::select! {
            answer = reload => assert!(answer.starts_with("HTTP/1.1 200"), "{answer}"),
            () = requests => {}
        }
        assert!(backend.seen().len() > seen_before + 5, "round {round}");
    }
    let seen = backend.seen();
    let is_renamed = |seen: &Seen| !String::from_utf8_lossy(&seen.body).contains("chat");
    assert!(seen.iter().all(is_renamed), "{}", seen.len());
}

#[tokio::test]
async fn a_split_model_is_listed_and_explained() {
    let (_old, _new, gateway) = start(json("200 OK", ANSWER)).await;
    let list = body_json(&gateway.raw(get("/v1/models")).await);
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["id"])
        .collect();
    assert_eq!(ids, ["chat", "new", "old"]);
    let request = with_lines(
        &post(CHAT, r#"{"model":"chat","messages":[]}"#),
        "x-request-id: split-request",
    );
    assert_eq!(status(&gateway.raw(request).await), 200);
    let version = gateway.record().await.model.as_str().to_owned();
    let decision = gateway.document("/decisions/split-request").await;
    let expected = serde_json::json!({ "model": "chat", "version": version });
    assert_eq!(decision["split"], expected);
}

#[tokio::test]
async fn a_version_without_backends_gets_nothing() {
    let old = ScriptedBackend::answering(json("200 OK", ANSWER)).await;
    old.set_models(&["old"]);
    let setup = Setup {
        models: vec![chat()],
        ..Setup::default()
    };
    let gateway = start_with(&[old.addr], setup).await;
    for conversation in 0..16 {
        assert_eq!(turn(&gateway, conversation, 0).await, "old");
    }
}

#[tokio::test]
async fn a_stored_response_keeps_its_version() {
    let script = |name: &'static str| {
        move |seen: &Seen| {
            let number = seen.number;
            let body = format!(
                r#"{{"id":"{name}-{number}","object":"response","status":"completed","output":[],
                "usage":{{"input_tokens":5,"output_tokens":7,"total_tokens":12}}}}"#
            );
            vec![Step::Send(json("200 OK", &body))]
        }
    };
    let old = ScriptedBackend::start(script("old")).await;
    old.set_models(&["old"]);
    let new = ScriptedBackend::start(script("new")).await;
    new.set_models(&["new"]);
    let setup = Setup {
        models: vec![chat()],
        ..Setup::default()
    };
    let gateway = start_with(&[old.addr, new.addr], setup).await;
    for question in 0..16 {
        let first = format!(r#"{{"model":"chat","input":"question {question}"}}"#);
        let answer = gateway.post("/v1/responses", &first).await;
        let id = body_json(&answer)["id"].as_str().unwrap().to_owned();
        let version = gateway.record().await.model.as_str().to_owned();
        let next = format!(
            r#"{{"model":"chat","input":"next {question}","previous_response_id":"{id}"}}"#
        );
        assert_eq!(status(&gateway.post("/v1/responses", &next).await), 200);
        assert_eq!(gateway.record().await.model.as_str(), version);
    }
}

#[tokio::test]
async fn a_response_has_the_requested_name() {
    let event = r#"{"id":"a","model":"old","choices":[{"index":0,"delta":{"content":"\"model\":\"old\""}}]}"#;
    let finish = r#"{"model":"old","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let stream = stream_of(&[event, finish, "[DONE]"]);
    let document = r#"{"model" : "old","choices":[{"index":0,"message":{"role":"assistant","content":"a b"},
        "finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#;
    let old = ScriptedBackend::start(move |seen| {
        let is_stream = seen.body.ends_with(b"\"stream\":true}");
        let answer = if is_stream {
            stream.clone()
        } else {
            json("200 OK", document)
        };
        vec![Step::Send(answer)]
    })
    .await;
    old.set_models(&["old"]);
    let setup = Setup {
        models: vec![ModelConfig {
            rename_response: true,
            ..chat()
        }],
        ..Setup::default()
    };
    let gateway = start_with(&[old.addr], setup).await;
    let answer = gateway
        .post(CHAT, r#"{"model":"chat","messages":[]}"#)
        .await;
    let renamed = document.replacen(r#""old""#, r#""chat""#, 1);
    assert_eq!(body(&answer), (renamed.into_bytes(), true));
    let record = gateway.record().await;
    assert_eq!(record.observed.response_model.as_deref(), Some("old"));
    let answer = gateway
        .post(CHAT, r#"{"model":"chat","messages":[],"stream":true}"#)
        .await;
    let sent = format!("data: {event}\n\ndata: {finish}\n\ndata: [DONE]\n\n");
    let expected = sent.replace(r#""model":"old""#, r#""model":"chat""#);
    assert_eq!(body(&answer), (expected.into_bytes(), true));
    let direct = gateway.post(CHAT, r#"{"model":"old","messages":[]}"#).await;
    assert_eq!(body(&direct).0, document.as_bytes());
}
