//! Compares how the gateway and how servers read request bodies. If a server reads a body as a request for
//! one model, the gateway must not read it as a request for another model or for no model.
//!
//! `tests/bodies.sh` compares more bodies, with pinned versions of the Python packages of servers.

mod form;
mod json;
mod servers;

use crate::access::{access, tenant};
use crate::support::scripted_backend::{self, ScriptedBackend};
use crate::support::test_gateway::{Running, Setup, body, start_with, status};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokenweir_protocol::openai::form as forms;
use tokenweir_protocol::openai::request_fields::RequestFields;
use tokenweir_request::access::TenantEntry;

const SEED: u64 = 3;
/// Number of random bodies. The environment variable `BODIES` overrides it.
const COUNT: usize = 2_000;

/// A random body that a client can send. `class` names what makes the body difficult to read.
pub(crate) struct Case {
    class: &'static str,
    is_form: bool,
    content_type: Vec<u8>,
    body: Vec<u8>,
}

/// The model that a parser reads in a request body. `None`: the body is not a valid request. A request
/// without a model has an empty name, because servers treat both alike.
type Reading = Option<Vec<u8>>;

/// Counts of the bodies of one class. The first index is whether the gateway accepts a body, the second
/// whether a server accepts it.
type Tally = [[usize; 2]; 2];

fn read_by_gateway(case: &Case) -> Reading {
    let fields = if case.is_form {
        forms::peek(&case.content_type, &case.body)
    } else {
        RequestFields::parse(&case.body)
    };
    fields
        .ok()
        .map(|fields| fields.model.unwrap_or_default().as_bytes().to_vec())
}

fn cases(count: usize) -> Vec<Case> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let classes = json::CLASSES.len() + form::CLASSES.len();
    let case = |number| match number % classes {
        class if class < json::CLASSES.len() => json::case(&mut rng, class),
        class => form::case(&mut rng, class - json::CLASSES.len()),
    };
    (0..count).map(case).collect()
}

#[test]
fn the_gateway_and_servers_read_one_model() {
    let count = std::env::var("BODIES").map_or(COUNT, |count| count.parse().unwrap());
    let cases = cases(count);
    let python = servers::python(&cases);
    if python.is_none() {
        println!("not compared with Python: python3 has no fastapi, or no python-multipart");
    }
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    for (number, case) in cases.iter().enumerate() {
        let by_gateway = read_by_gateway(case);
        let mut by_servers = vec![("Rust", servers::rust(case))];
        if let Some(readings) = &python {
            let [fastapi, starlette] = readings[number].clone();
            by_servers.extend([("FastAPI", fastapi), ("Starlette", starlette)]);
        }
        let tally = tallies.entry(case.class).or_default();
        let is_read = by_servers
            .iter()
            .any(|(_, by_servers)| by_servers.is_some());
        tally[usize::from(by_gateway.is_some())][usize::from(is_read)] += 1;
        for (server, by_servers) in by_servers {
            let is_same = by_gateway.is_none() || by_servers.is_none() || by_gateway == by_servers;
            let Case {
                class,
                content_type,
                body,
                ..
            } = case;
            let (content_type, body) = (content_type.escape_ascii(), body.escape_ascii());
            assert!(
                is_same,
                "{class}: {server} reads {by_servers:?} and the gateway {by_gateway:?}\n{content_type}\n{body}"
            );
        }
    }
    println!(
        "{:24} {:>8} {:>12} {:>13} {:>8}",
        "read by", "both", "server only", "gateway only", "neither"
    );
    for (class, [[neither, server_only], [gateway_only, both]]) in &tallies {
        println!("{class:24} {both:>8} {server_only:>12} {gateway_only:>13} {neither:>8}");
    }
    let both: usize = tallies.values().map(|[_, [_, both]]| both).sum();
    let server_only: usize = tallies
        .values()
        .map(|[[_, server_only], _]| server_only)
        .sum();
    println!("{count} bodies: {both} accepted by both, {server_only} only by a server");
    assert!(both > count / 5, "too few bodies accepted by both: {both}");
    for plain in ["json: plain", "form: plain"] {
        assert_eq!(
            tallies[plain][0],
            [0, 0],
            "{plain}: the gateway accepts all"
        );
    }
}

// === requests through the gateway ===

pub(crate) const JSON_PATHS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/chat/completions/batch",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/tokenize",
    "/detokenize",
];
const AUDIO_PATHS: [&str; 2] = ["/v1/audio/transcriptions", "/v1/audio/translations"];
const FORM: &str = "multipart/form-data; boundary=B";

/// Starts a backend that serves the model `base` and the adapter `secret-lora`, and a gateway whose clients
/// may use only `base`.
async fn adapters() -> (ScriptedBackend, Running) {
    let fake = ScriptedBackend::answering(scripted_backend::json("200 OK", r#"{"a":1}"#)).await;
    fake.set_models(&["base", "secret-lora"]);
    let access = access(TenantEntry {
        models: Some(vec!["base".into()]),
        ..tenant()
    });
    let gateway = start_with(
        &[fake.addr],
        Setup {
            access,
            ..Setup::default()
        },
    )
    .await;
    (fake, gateway)
}

async fn send(gateway: &Running, path: &str, content_type: &str, body: &[u8]) -> (u16, Value) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {}\r\n\
         content-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        crate::access::KEY,
        body.len()
    );
    let answer = gateway.raw([head.as_bytes(), body].concat()).await;
    let text = self::body(&answer).0;
    (
        status(&answer),
        serde_json::from_slice(&text).unwrap_or_default(),
    )
}

#[tokio::test]
async fn no_json_encoding_evades_model_permissions() {
    let (fake, gateway) = adapters().await;
    let plain = r#"{"model":"secret-lora"}"#;
    let utf16 = plain.encode_utf16();
    let bodies: [(&str, Vec<u8>); 7] = [
        (
            "starts with a byte order mark",
            format!("\u{feff}{plain}").into(),
        ),
        (
            "is UTF-16 or UTF-32",
            utf16.clone().flat_map(u16::to_le_bytes).collect(),
        ),
        (
            "is UTF-16 or UTF-32",
            utf16.flat_map(u16::to_be_bytes).collect(),
        ),
        (
            "is UTF-16 or UTF-32",
            plain
                .chars()
                .flat_map(|c| u32::from(c).to_le_bytes())
                .collect(),
        ),
        (
            "are not JSON numbers",
            br#"{"a":NaN,"model":"secret-lora"}"#.to_vec(),
        ),
        (
            "is not valid Unicode text",
            br#"{"model":"\ud800"}"#.to_vec(),
        ),
        ("is empty", Vec::new()),
    ];
    for path in JSON_PATHS {
        assert_eq!(
            send(&gateway, path, "application/json", plain.as_bytes())
                .await
                .0,
            403
        );
        for (cause, body) in &bodies {
            let (status, answer) = send(&gateway, path, "application/json", body).await;
            let message = answer["error"]["message"].as_str().unwrap();
            assert_eq!(status, 400, "{path}: {cause}");
            assert!(message.contains(cause), "{path}: {message}");
        }
    }
    assert!(fake.seen().is_empty(), "these requests reach no backend");
    for body in [
        "{}",
        r#"{"model":null}"#,
        r#"{"model":""}"#,
        r#"{"model":"base"}"#,
    ] {
        let served = send(&gateway, "/tokenize", "application/json", body.as_bytes())
            .await
            .0;
        assert_eq!(served, 200, "the base model, which the key permits: {body}");
    }
}

#[tokio::test]
async fn no_form_evades_model_permissions() {
    let (fake, gateway) = adapters().await;
    let form = |head: &str| format!("--B\r\n{head}\r\n\r\nsecret-lora\r\n--B--\r\n");
    let plain = form("Content-Disposition: form-data; name=\"model\"");
    let odd = "--B\r\nContent-Disposition: form-data; name=\"x\"\r\nX: \u{1}\r\n\r\n\r\n";
    for path in AUDIO_PATHS {
        assert_eq!(send(&gateway, path, FORM, plain.as_bytes()).await.0, 403);
        for (content_type, body) in [
            (FORM, form("Content-Disposition: form-data; NAME=\"model\"")),
            (FORM, format!("{odd}{plain}")),
            (&*format!("{FORM}\r\ncontent-type: {FORM}"), plain.clone()),
            (
                "application/x-www-form-urlencoded",
                "model=secret-lora".to_owned(),
            ),
            ("application/json", r#"{"model":"secret-lora"}"#.to_owned()),
        ] {
            let (status, answer) = send(&gateway, path, content_type, body.as_bytes()).await;
            let message = answer["error"]["message"].as_str().unwrap();
            assert_eq!(status, 400, "{content_type} {body}");
            assert!(
                message.contains("not a form that all servers parse alike"),
                "{message}"
            );
        }
    }
    assert!(fake.seen().is_empty(), "these requests reach no backend");
    let without =
        "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\r\n--B--";
    assert_eq!(
        send(&gateway, AUDIO_PATHS[0], FORM, without.as_bytes())
            .await
            .0,
        200
    );
}

#[tokio::test]
async fn no_other_field_selects_an_excluded_adapter() {
    let fields = [
        r#""lora_path":"b""#,
        r#""lora":[{"id":1}]"#,
        r#""lora_request":{"lora_name":"b"}"#,
    ];
    let (fake, gateway) = adapters().await;
    for field in fields {
        let body = format!(r#"{{"model":"base",{field}}}"#);
        let (status, answer) = send(
            &gateway,
            "/v1/chat/completions",
            "application/json",
            body.as_bytes(),
        )
        .await;
        assert_eq!(status, 400, "{field}");
        assert!(
            answer["error"]["param"]
                .as_str()
                .unwrap()
                .starts_with("lora"),
            "{field}"
        );
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn anthropic_paths_have_anthropic_errors() {
    let (_fake, gateway) = adapters().await;
    let secret = r#"{"model":"secret-lora"}"#;
    for (path, body, expected) in [
        ("/v1/messages", "[]", "invalid_request_error"),
        ("/v1/messages/count_tokens", secret, "permission_error"),
        ("/v1/messages/batches", "{}", "not_found_error"),
    ] {
        let (_, answer) = send(&gateway, path, "application/json", body.as_bytes()).await;
        let types = (&answer["type"], &answer["error"]["type"]);
        assert_eq!(types, (&json!("error"), &json!(expected)), "{path}");
        assert!(answer["request_id"].is_string(), "{path}");
    }
}
