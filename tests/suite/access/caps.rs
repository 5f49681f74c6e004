//! Caps on requests: a request that exceeds a cap is refused in the format of its API before a backend sees it,
//! and all other requests stay unchanged.

use super::{access, head, keyed, scripted_backend, tenant};
use crate::support::scripted_backend::ScriptedBackend;
use crate::support::test_gateway::{
    Running, Setup, body_json, body_text, post, start_with, status, tiers,
};
use std::collections::BTreeMap;
use tokenweir_gateway::backend::routes::ModelConfig;
use tokenweir_request::access::{RequestCaps, TenantEntry};
use tokenweir_request::record::Outcome;

/// An API with the names and the forms of its fields.
struct Shape {
    path: &'static str,
    /// The field with the limit of output tokens.
    limit: &'static str,
    /// The field of the prompt. `TEXT` stands for the prompt.
    prompt: &'static str,
    /// A member that names media. `URL` stands for the URL.
    media: &'static str,
}

const SHAPES: [Shape; 5] = [
    Shape {
        path: "/v1/chat/completions",
        limit: "max_tokens",
        prompt: r#""messages":[{"role":"user","content":"TEXT"}]"#,
        media: r#""more":[{"content":[{"type":"image_url","image_url":{"url":"URL"}}]}]"#,
    },
    Shape {
        path: "/v1/completions",
        limit: "max_tokens",
        prompt: r#""prompt":"TEXT""#,
        media: r#""multi_modal_data":{"video_url":"URL"}"#,
    },
    Shape {
        path: "/v1/responses",
        limit: "max_output_tokens",
        prompt: r#""instructions":"TEXT""#,
        media: r#""input":[{"content":[{"type":"input_file","file_url":"URL"}]}]"#,
    },
    Shape {
        path: "/v1/messages",
        limit: "max_tokens",
        prompt: r#""messages":[{"role":"user","content":"TEXT"}]"#,
        media: r#""more":[{"content":[{"content":[{"source":{"type":"url","url":"URL"}}]}]}]"#,
    },
    Shape {
        path: "/inference/v1/generate",
        limit: "max_tokens",
        prompt: r#""token_ids":[1,2],"note":"TEXT""#,
        media: r#""features":{"audio_url":["URL"]}"#,
    },
];

fn caps() -> RequestCaps {
    RequestCaps {
        max_tokens: Some(1_000),
        n: Some(2),
        prompt_tokens: Some(2_000),
        ..RequestCaps::default()
    }
}

impl Shape {
    fn body(&self, text: &str, member: &str) -> String {
        format!(
            r#"{{"model":"tiny",{},{member}}}"#,
            self.prompt.replace("TEXT", text)
        )
    }

    /// Members that no client with [`caps`] may send.
    fn abusive_members(&self) -> Vec<String> {
        let escaped = self.limit.replacen('m', "\\u006d", 1);
        let limits = [
            format!("\"{}\":1000000", self.limit),
            format!("\"{}\":\"1000000\"", self.limit),
            format!("\"{escaped}\":1000000"),
            format!("\"{}\":-1", self.limit),
        ];
        let sizes = [
            r#""n":100"#,
            r#""best_of":100"#,
            r#""sampling_params":{"n":100}"#,
        ];
        let urls = [
            "http://169.254.169.254/latest/meta-data/",
            "http://2852039166/",
            "\\u0068ttp://[::ffff:a9fe:a9fe]/",
            "http://example.com@localhost/",
            "file:///etc/passwd",
        ];
        let media = urls.into_iter().map(|url| self.media.replace("URL", url));
        limits
            .into_iter()
            .chain(sizes.map(str::to_owned))
            .chain(media)
            .collect()
    }
}

async fn capped(fake: &ScriptedBackend, caps: RequestCaps) -> Running {
    let tenant = TenantEntry {
        caps: Some(caps),
        ..tenant()
    };
    start_with(
        &[fake.addr],
        Setup {
            access: access(tenant),
            ..Setup::default()
        },
    )
    .await
}

async fn assert_refused(gateway: &Running, path: &str, body: &str) {
    let answer = gateway.raw(keyed(&post(path, body))).await;
    assert_eq!(status(&answer), 400, "{path} {body}");
    assert!(
        head(&answer).contains("x-gateway-error: request_cap"),
        "{path} {body}"
    );
    let answer_body = body_json(&answer);
    if path == "/v1/messages" {
        assert_eq!(answer_body["type"], "error");
        assert_eq!(answer_body["error"]["type"], "invalid_request_error");
    } else {
        assert_eq!(answer_body["error"]["type"], "BadRequestError");
        assert_eq!(answer_body["error"]["code"], 400);
    }
    assert!(
        !body_text(&answer).contains("169.254"),
        "the URL is not quoted"
    );
    let record = gateway.record().await;
    assert_eq!(
        (record.refusal, record.outcome),
        (Some("request_cap"), Outcome::ClientError)
    );
    assert!(record.attempts.is_empty());
}

#[tokio::test]
async fn no_backend_sees_an_abusive_request() {
    let fake = scripted_backend().await;
    let gateway = capped(&fake, caps()).await;
    for shape in &SHAPES {
        let members = shape.abusive_members();
        assert_eq!(members.len(), 12);
        for member in members {
            assert_refused(&gateway, shape.path, &shape.body("hello", &member)).await;
        }
        let long = shape.body(&"word ".repeat(2_000), "\"n\":1");
        assert_refused(&gateway, shape.path, &long).await;
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn lists_of_media_are_refused() {
    let fake = scripted_backend().await;
    let gateway = capped(&fake, caps()).await;
    for (path, list) in [
        ("/v2/embed", "images"),
        ("/v1/decisions", "images"),
        ("/v1/decisions", "audio"),
        ("/v1/decisions", "videos"),
    ] {
        let body = format!("{{\"model\":\"tiny\",\"{list}\":[\"http://169.254.169.254/\"]}}");
        assert_refused(&gateway, path, &body).await;
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn requests_within_caps_arrive_byte_for_byte() {
    let fake = scripted_backend().await;
    let gateway = capped(&fake, caps()).await;
    for shape in &SHAPES {
        for url in [
            "https://images.example.com/a%20b.png",
            "data:image/png;base64,AAAA",
        ] {
            let media = shape.media.replace("URL", url);
            let member = format!(
                "\"{}\" : 1e3,\"n\":2, {media},\"unknown\":{{\"n\":9}}",
                shape.limit
            );
            let body = shape.body("caf\u{e9} \\ud83d", &member);
            let answer = gateway.raw(keyed(&post(shape.path, &body))).await;
            assert_eq!(status(&answer), 200, "{body} {}", body_text(&answer));
            assert_eq!(
                String::from_utf8_lossy(&fake.seen().pop().unwrap().body),
                body
            );
        }
    }
}

#[tokio::test]
async fn caps_hold_for_the_default_model() {
    let fake = scripted_backend().await;
    let model = ModelConfig {
        name: "tiny".into(),
        caps: Some(caps()),
        ..ModelConfig::default()
    };
    let setup = Setup {
        models: vec![model],
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    for model in [r#""model":"tiny","#, ""] {
        let body = format!("{{{model}\"messages\":[],\"n\":3}}");
        assert_refused(&gateway, "/v1/chat/completions", &body).await;
    }
    assert!(fake.seen().is_empty());
    assert_eq!(
        status(
            &gateway
                .post("/v1/chat/completions", r#"{"messages":[]}"#)
                .await
        ),
        200
    );
    let body = fake.seen().pop().unwrap().body;
    assert_eq!(
        String::from_utf8_lossy(&body),
        r#"{"max_tokens":1000,"messages":[]}"#
    );
}

#[tokio::test]
async fn without_a_model_the_caps_of_all_hold() {
    let fakes = [scripted_backend().await, scripted_backend().await];
    fakes[0].set_models(&["big"]);
    fakes[1].set_models(&["small"]);
    let model = |name: &str, most| ModelConfig {
        name: name.into(),
        caps: Some(RequestCaps {
            max_tokens: Some(most),
            ..RequestCaps::default()
        }),
        ..ModelConfig::default()
    };
    let setup = Setup {
        models: vec![model("big", 1_000), model("small", 10)],
        ..Setup::default()
    };
    let gateway = start_with(&[fakes[0].addr, fakes[1].addr], setup).await;
    let body = r#"{"messages":[],"max_tokens":11}"#;
    assert_refused(&gateway, "/v1/chat/completions", body).await;
}

#[tokio::test]
async fn a_tier_sets_the_priority() {
    let fake = scripted_backend().await;
    let mut tiers = tiers(&["gold", "free"]);
    tiers.priorities = BTreeMap::from([("gold".to_owned(), -5)]);
    let tenant = TenantEntry {
        tier: Some("gold".into()),
        ..tenant()
    };
    let setup = Setup {
        access: access(tenant),
        tiers,
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    for (path, body, expected) in [
        (
            "/v1/chat/completions",
            r#"{"messages":[]}"#,
            r#"{"priority":-5,"messages":[]}"#,
        ),
        (
            "/v1/chat/completions",
            r#"{"priority":0,"n":1}"#,
            r#"{"priority":-5,"n":1}"#,
        ),
        ("/v1/messages", r#"{"messages":[]}"#, r#"{"messages":[]}"#),
    ] {
        let answer = gateway.raw(keyed(&post(path, body))).await;
        assert_eq!(status(&answer), 200, "{}", body_text(&answer));
        assert_eq!(
            String::from_utf8_lossy(&fake.seen().pop().unwrap().body),
            expected
        );
    }
}
