//! Puts a secret into every place where a client, a backend or the configuration can have one. The real
//! gateway runs with its most verbose settings. No secret may appear in logs, metrics, traces or admin pages.

mod program;
mod secret_responses;

use crate::support::scripted_backend::{ScriptedBackend, Seen, Step};
use crate::support::test_gateway::{post, read_rest, send_to, with_lines};
use program::{Ended, Program};
use secret_responses::{APIS, Api, answer, secret};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokio::io::AsyncReadExt;

/// The behaviours of the backend. The header `x-play` of a request selects one of them.
const BEHAVIOURS: [&str; 7] = [
    "whole",
    "error_status",
    "bad_request",
    "error_event",
    "cut",
    "garbage",
    "hang",
];

/// The headers that every request of the tests has. Each value ends with a secret that follows this text.
const HEADERS: [(&str, &str); 18] = [
    ("authorization", "Bearer "),
    ("x-api-key", ""),
    ("cookie", "session="),
    ("x-custom", ""),
    ("referer", "http://"),
    ("x-session-id", ""),
    ("proxy-authorization", ""),
    ("x-tier", ""),
    ("x-tenant", ""),
    ("baggage", "user="),
    ("x-forwarded-for", ""),
    ("api-key", ""),
    ("x-goog-api-key", ""),
    ("x-auth-token", ""),
    ("openai-organization", ""),
    ("openai-project", ""),
    ("origin", "http://"),
    ("x-amz-security-token", ""),
];

/// Returns the header lines of [`HEADERS`].
fn headers() -> String {
    let secret = |name: &str| secret(&format!("header-{name}"));
    HEADERS
        .map(|(name, before)| format!("{name}: {before}{}\r\n", secret(name)))
        .concat()
}

/// Builds a request body for this API. Each field that may have a secret has one.
fn body(api: &Api, is_stream: bool, model: &str) -> Value {
    let content = |role: &str| {
        json!([
            { "type": "text", "text": secret(&format!("prompt-{role}")) },
            { "type": "image_url", "image_url": {
                "url": format!("data:image/png;base64,{}", secret("image")) } },
        ])
    };
    let messages: Vec<Value> = ["system", "developer", "user", "assistant", "tool"]
        .iter()
        .map(|role| json!({ "role": role, "content": content(role), "tool_call_id": secret("call-id") }))
        .collect();
    let mut body = json!({
        "model": model, "stream": is_stream, "max_tokens": 8,
        "user": secret("user"), "metadata": { "trace": secret("metadata") },
        "prompt_cache_key": secret("cache-key"), "cache_salt": secret("cache-salt"),
        "safety_identifier": secret("safety"), "stop": [secret("stop")],
        "tools": [{ "type": "function", "function": {
            "name": "f", "description": secret("tool-definition"), "parameters": {} } }],
        "response_format": { "type": secret("response-format") },
    });
    match api.name {
        "chat" | "messages" => body["messages"] = json!(messages),
        "completions" => {
            body["prompt"] = json!([secret("prompt-completion"), secret("prompt-second")]);
        }
        _ => body["input"] = json!(messages),
    }
    if api.name == "messages" {
        body["system"] = json!(secret("prompt-anthropic-system"));
    }
    if api.name == "responses" {
        body["instructions"] = json!(secret("prompt-instructions"));
    }
    body
}

/// Sends a request with the headers of [`headers`], and returns the response. `play` names the behaviour of
/// the backend. With the behaviour `hang`, disconnects after the first bytes.
async fn send(to: &Program, path: &str, play: &str, body: &str) -> Vec<u8> {
    let extra = format!("x-play: {play}\r\n{}", headers());
    let path = format!("{path}?key={}", secret("query"));
    let request = with_lines(&post(&path, body), extra.trim_end());
    let mut stream = send_to(to.process.clients(), request).await;
    let mut answer = Vec::new();
    if play == "hang" {
        stream.read_buf(&mut answer).await.unwrap();
    } else {
        // The gateway may reset the connection, so reading can end with an error.
        let _ = stream.read_to_end(&mut answer).await;
    }
    answer
}

/// Returns the steps of the backend for the behaviour that the header `x-play` names.
fn play(seen: &Seen) -> Vec<Step> {
    let header = |line: &str| line.strip_prefix("x-play: ").map(str::to_owned);
    let play = seen.head.lines().find_map(header).unwrap_or_default();
    let path = seen.head.split([' ', '?']).nth(1).unwrap();
    let api = APIS.iter().find(|api| api.path == path).unwrap();
    let is_stream = serde_json::from_slice::<Value>(&seen.body).unwrap()["stream"] == true;
    answer(api, is_stream, &play)
}

/// Sends a request for each API, with and without a stream, and for each behaviour. Also sends requests that
/// the gateway rejects. Returns the responses.
async fn send_all_requests(program: &Program) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    for api in &APIS {
        for is_stream in [true, false] {
            for play in BEHAVIOURS {
                // Without a stream, these two behaviours are not possible: there are no events, and the
                // backend sends nothing before its whole response.
                if is_stream || !matches!(play, "error_event" | "hang") {
                    let body = body(api, is_stream, "tiny").to_string();
                    got.push(send(program, api.path, play, &body).await);
                }
            }
        }
        let unknown = body(api, true, &secret("model")).to_string();
        got.push(send(program, api.path, "whole", &unknown).await);
        let garbage = format!("{{\"{}\": no JSON", secret("garbage"));
        got.push(send(program, api.path, "whole", &garbage).await);
        let twice = format!("{{\"model\":\"{0}\",\"model\":\"{0}\"}}", secret("twice"));
        got.push(send(program, api.path, "whole", &twice).await);
    }
    got.push(send(program, &format!("/v1/{}", secret("path")), "whole", "{}").await);
    let (name, key) = (secret("url-user"), secret("url-password"));
    for api in &APIS {
        let absolute = format!("http://{name}:{key}@elsewhere.example{}", api.path);
        let body = body(api, true, "tiny").to_string();
        got.push(send(program, &absolute, "whole", &body).await);
        // A request with two `host` headers, which the gateway rejects.
        let two = format!("whole\r\nhost: {name}:{key}@elsewhere.example");
        got.push(send(program, api.path, &two, &body).await);
    }
    got
}

fn leaked(text: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(text);
    let names = text.split(secret_responses::SECRET_PREFIX).skip(1);
    let end = |rest: &str| rest.find("-end").map_or(rest.len().min(40), |end| end);
    names
        .map(|rest| rest.chars().take(end(rest)).collect())
        .collect()
}

/// Starts a server that accepts everything that the gateway exports to it.
async fn collector() -> ScriptedBackend {
    ScriptedBackend::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await
}

/// Returns the bytes of a received request.
fn bytes(seen: &Seen) -> Vec<u8> {
    [seen.head.as_bytes(), &seen.body].concat()
}

/// Sends all requests, and asserts that only the permitted outputs contain secrets. [`Program::start`]
/// describes `more`.
async fn nothing_leaks(format: &str, more: &str) -> Ended {
    let fake = ScriptedBackend::start(play).await;
    let collector = collector().await;
    let mut program = Program::start(format, more, fake.addr, collector.addr).await;
    let got = send_all_requests(&program).await;
    program.wait_for_requests(got.len()).await;
    let mut places = Vec::new();
    for page in [
        "/metrics",
        "/status",
        "/streams",
        "/decisions",
        "/config",
        "/readyz",
    ] {
        places.push((
            page.to_owned(),
            program.process.get(page).await.into_bytes(),
        ));
    }
    let ended = program.stop().await;
    places.push((
        "spans".into(),
        collector.seen().iter().flat_map(bytes).collect(),
    ));
    assert!(
        fake.seen().len() > got.len() / 2,
        "the backend received the requests"
    );
    let seen = fake.seen();
    let sent = seen.iter().map(bytes);
    let arrived: BTreeSet<String> = sent
        .chain(got.clone())
        .flat_map(|text| leaked(&text))
        .collect();
    assert!(
        arrived.len() >= 47,
        "the secrets reached the backend: {arrived:?}"
    );
    assert_eq!(
        ended.access_log.lines().count(),
        got.len(),
        "one line per request"
    );
    assert!(
        ended.log.lines().count() > got.len(),
        "the program logs verbosely"
    );
    places.push(("access log".into(), ended.access_log.clone().into_bytes()));
    places.push(("log".into(), ended.log.clone().into_bytes()));
    places.push(("capture".into(), ended.capture.clone()));
    places.push(("usage log".into(), ended.usage.clone()));
    for (place, text) in places {
        assert!(text.len() > 20, "{place} says something");
        let mut leaked = leaked(&text);
        // Stop sequences are parameters of the request, not a part of its prompt, so spans may have them.
        if place == "spans" {
            leaked.remove("stop");
        }
        // An operator needs the wrong name of a model to find its client.
        if ["/streams", "spans", "access log"].contains(&&*place) {
            leaked.remove("model");
        }
        assert!(leaked.is_empty(), "{place} ({format}) contains {leaked:?}");
    }
    ended
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_in_text_format_contain_no_secret() {
    let ended = nothing_leaks("human", "").await;
    assert!(ended.content.is_empty(), "there is no payload log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_payload_log_has_prompts() {
    let ended = nothing_leaks("json", ", sample: 1.0, max_bytes: 64KiB").await;
    let text = String::from_utf8(ended.content).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let written = leaked(text.as_bytes());
    let known = |prefixes: &[&str]| prefixes.iter().any(|name| written.contains(*name));
    assert!(known(&["prompt-user"]) && known(&["answer"]) && known(&["whole-answer"]));
    let other_secrets = written.iter().filter(|name| {
        ![
            "prompt",
            "answer",
            "whole-answer",
            "image",
            "call-id",
            "tool-definition",
        ]
        .iter()
        .any(|part| name.starts_with(part))
    });
    assert_eq!(
        other_secrets.collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "no header, key or reasoning"
    );
    assert!(
        lines
            .iter()
            .all(|line| line["request_id"].is_string() && line["trace_id"].is_string())
    );
    let answers: BTreeSet<&str> = lines
        .iter()
        .map(|line| line["answer"].as_str().unwrap())
        .collect();
    let (streamed, whole) = (secret("answer"), secret("whole-answer"));
    assert_eq!(answers, BTreeSet::from(["", &*streamed, &*whole]));
}

/// Names that a client or a backend chooses, such as the model, contain line breaks and terminal control
/// sequences.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_names_cannot_break_log_lines() {
    const CONTROL_SEQUENCE: &str = "\u{1b}[2J\u{9b}31m\r\n\u{7}\u{202e}\" outcome=\"ok";
    for format in ["json", "human"] {
        let error = json!({ "error": { "message": CONTROL_SEQUENCE, "type": CONTROL_SEQUENCE, "code": CONTROL_SEQUENCE } });
        let refusal = crate::support::scripted_backend::json("500 Oh", &error.to_string());
        let fake = ScriptedBackend::answering(refusal).await;
        fake.set_models(&["tiny", CONTROL_SEQUENCE]);
        let collector = collector().await;
        let mut program = Program::start(format, "", fake.addr, collector.addr).await;
        let body = json!({ "model": CONTROL_SEQUENCE, "messages": [] }).to_string();
        for id in ["\u{9b}2J", "a\tb", "a\" b=\"c", "{\"outcome\":\"ok\"}"] {
            let extra = format!("x-request-id: {id}\r\nx-tier: {id}\r\ntraceparent: {id}");
            let request = with_lines(&post(APIS[0].path, &body), &extra);
            read_rest(send_to(program.process.clients(), request).await).await;
        }
        program.wait_for_requests(4).await;
        let Ended {
            access_log, log, ..
        } = program.stop().await;
        assert_eq!(access_log.lines().count(), 4, "{access_log}");
        for line in access_log.lines() {
            if format == "json" {
                let line: Value = serde_json::from_str(line).unwrap();
                assert_eq!(
                    (&line["model"], &line["outcome"]),
                    (&json!(CONTROL_SEQUENCE), &json!("upstream_error"))
                );
            } else {
                assert!(
                    line.starts_with("20") && line.contains(" 500 upstream_error "),
                    "{line}"
                );
                assert!(
                    line.contains(&format!(" model={CONTROL_SEQUENCE:?} ")),
                    "{line}"
                );
            }
        }
        for line in access_log.lines().chain(log.lines()) {
            let is_order = |c: char| c.is_control() || c == '\u{202e}';
            assert!(!line.chars().any(is_order), "{line:?}");
        }
    }
}
