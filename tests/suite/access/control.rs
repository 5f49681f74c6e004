//! Fields and headers of a request that control the engine: which of them the gateway rejects, removes or
//! forwards, and for which clients.

use super::{
    CHAT, access, access_for_all, error, head, keyed, open_gateway, scripted_backend, tenant,
};
use crate::bodies::JSON_PATHS;
use crate::support::scripted_backend::ScriptedBackend;
use crate::support::test_gateway::{
    Running, Setup, body_text, post, start_with, status, with_lines,
};
use http::HeaderName;
use std::sync::Arc;
use tokenweir_gateway::backend::routes::ModelConfig;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_protocol::openai::engine_control::{ControlAction, FIELDS, Permission};
use tokenweir_request::access::TenantEntry;
use tokenweir_request::record::Outcome;

/// Builds the body of a chat request with this additional JSON member.
fn body_with(member: &str) -> String {
    format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"hello"}}],{member},"n":1}}"#)
}

/// Builds a JSON member that sets the field at this path, such as `priority` or `vllm_xargs.a`.
fn member(path: &str) -> String {
    let value = if path == "priority" {
        "-5"
    } else {
        "{\"a\":[1,\"}\"]}"
    };
    match path.split_once('.') {
        Some((outer, inner)) => format!("\"{outer}\":{{\"x\":1,{}}}", member(inner)),
        None => format!("\"{path}\":{value}"),
    }
}

async fn open_to(fake: &ScriptedBackend, access: Arc<AccessControl>) -> Running {
    start_with(
        &[fake.addr],
        Setup {
            access,
            ..Setup::default()
        },
    )
    .await
}

/// Asserts that the gateway rejects the request with 400 because of `field`, and that the record of the
/// request says so.
async fn assert_rejected(gateway: &Running, request: &str, field: &str) {
    let answer = gateway.raw(request).await;
    assert_eq!(status(&answer), 400, "{request}");
    assert!(
        head(&answer).contains("x-gateway-error: engine_control"),
        "{request}"
    );
    let error = error(&answer);
    // An error in the format of Anthropic has no members `param` and `code`.
    if error["type"] != "invalid_request_error" {
        assert_eq!(
            (&error["param"], &error["code"]),
            (&field.into(), &400.into())
        );
    }
    assert!(
        !body_text(&answer).contains("10.0.0.1"),
        "the value of the field is not quoted"
    );
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains(&format!("`{field}`")) && message.contains("permission"),
        "{message}"
    );
    let record = gateway.record().await;
    assert_eq!(
        (record.refusal, record.outcome),
        (Some("engine_control"), Outcome::ClientError)
    );
    assert!(record.attempts.is_empty());
}

#[tokio::test]
async fn no_path_accepts_prompts_or_hosts_in_parameters() {
    let (fake, gateway) = open_gateway().await;
    let mut requests = 0.0;
    for path in JSON_PATHS {
        for params in [
            r#""kv_transfer_params":{"prompt_token_ids":[1,2,3]}"#,
            r#""kv_transfer_params":{"do_remote_prefill":true,"remote_host":"10.0.0.1","remote_port":1}"#,
            r#""kv\u005ftransfer_params":{"remote_host":"10.0.0.1"}"#,
            "\"kv_transfer_params\" :\n\t{\"a\":{\"b\":[]}}",
        ] {
            assert_rejected(
                &gateway,
                &post(path, &body_with(params)),
                "kv_transfer_params",
            )
            .await;
            requests += 1.0;
        }
    }
    assert!(fake.seen().is_empty(), "the request reaches no backend");
    let refusals = "tokenweir_requests_rejected_total{reason=\"engine_control\"}";
    gateway.assert_value(refusals, requests).await;
}

#[tokio::test]
async fn every_forbidden_field_is_rejected() {
    let (fake, gateway) = open_gateway().await;
    for control in FIELDS
        .iter()
        .filter(|control| control.action == ControlAction::Refuse)
    {
        let outer = control.name.split('.').next().unwrap();
        let field = match outer {
            "vllm_xargs" => outer,
            "sampling_params" => "sampling_params.extra_args",
            _ => control.name,
        };
        assert_rejected(
            &gateway,
            &post("/v1/responses", &body_with(&member(control.name))),
            field,
        )
        .await;
    }
    let arguments = body_with(r#""sampling_params":{"extra_args":{"a":1}}"#);
    let generate = post("/inference/v1/generate", &arguments);
    assert_rejected(&gateway, &generate, "sampling_params.extra_args").await;
    // The permission for `vllm_xargs` as a whole does not include those of its members that control the
    // engine.
    let gateway = open_to(&fake, access_for_all(&[Permission::Xargs])).await;
    for field in [
        "vllm_xargs.kv_transfer_params",
        "vllm_xargs.ec_transfer_params",
        "vllm_xargs.kv_cache_report_mode",
        "sampling_params.extra_args.kv_transfer_params",
        "sampling_params.extra_args.ec_transfer_params",
    ] {
        assert_rejected(&gateway, &post(CHAT, &body_with(&member(field))), field).await;
    }
    assert!(fake.seen().is_empty());
    let plain = body_with(r#""vllm_xargs":{"ngram_size":30}"#);
    assert_eq!(status(&gateway.post(CHAT, &plain).await), 200);
}

#[tokio::test]
async fn null_and_default_values_pass_unchanged() {
    let (fake, gateway) = open_gateway().await;
    let nulls = FIELDS.iter().filter(|control| !control.name.contains('.'));
    let nulls: Vec<String> = nulls
        .map(|control| format!("\"{}\":null", control.name))
        .collect();
    let nulls = nulls
        .join(" , ")
        .replace("\"priority\":null", "\"priority\":0");
    // In the Responses API, `request_id` sets the id of the response. In other APIs it passes, because vLLM
    // prefers the request id header that the gateway sets.
    for fields in [
        nulls.as_str(),
        r#""request_id":"mine""#,
        r#""x":{"kv_transfer_params":{}}"#,
    ] {
        assert_eq!(
            status(&gateway.post(CHAT, &body_with(fields)).await),
            200,
            "{fields}"
        );
        assert_eq!(
            String::from_utf8_lossy(&fake.seen().pop().unwrap().body),
            body_with(fields)
        );
    }
}

#[tokio::test]
async fn a_duplicate_field_is_rejected() {
    let (fake, gateway) = open_gateway().await;
    for member in [
        r#""kv_transfer_params":null,"kv_transfer_params":{"remote_host":"a"}"#,
        r#""priority":0,"pri\u006frity":-5"#,
        r#""session_id":null,"session_id":"s""#,
    ] {
        let answer = gateway.post(CHAT, &body_with(member)).await;
        assert_eq!(status(&answer), 400, "{member}");
        assert!(head(&answer).contains("x-gateway-error: bad_body"));
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn a_form_with_a_field_is_rejected() {
    let (fake, gateway) = open_gateway().await;
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations"] {
        for field in ["vllm_xargs", "kv_transfer_params", "session_id"] {
            let part = |head: &str, value: &str| {
                format!("--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
            };
            let name = format!("name=\"{field}\"");
            let file = part("name=\"file\"; filename=\"a.wav\"", "RIFF");
            let body = file + &part(&name, "{}") + &part("name=\"model\"", "tiny") + "--b--\r\n";
            let request =
                post(path, &body).replace("application/json", "multipart/form-data; boundary=b");
            assert_rejected(&gateway, &request, field).await;
        }
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn a_field_passes_with_permission() {
    let fake = scripted_backend().await;
    fake.set_models(&["tiny", "prefill"]);
    let body = body_with(r#""kv_transfer_params":{"remote_host":"10.0.0.1","remote_port":1}"#);
    let transfer = vec![Permission::KvTransfer];
    let allowed = TenantEntry {
        allow: transfer.clone(),
        ..tenant()
    };
    let model = ModelConfig {
        name: "prefill".into(),
        allow: transfer.clone(),
        ..ModelConfig::default()
    };
    let of_model = body.replace("tiny", "prefill");
    let setup = |access| Setup {
        access,
        models: vec![model.clone()],
        ..Setup::default()
    };
    for (access, request, body) in [
        (access_for_all(&transfer), post(CHAT, &body), &body),
        (access(allowed), keyed(&post(CHAT, &body)), &body),
        (access(tenant()), keyed(&post(CHAT, &of_model)), &of_model),
        (Arc::default(), post(CHAT, &of_model), &of_model),
    ] {
        let gateway = start_with(&[fake.addr], setup(access)).await;
        assert_eq!(status(&gateway.raw(&request).await), 200, "{request}");
        assert_eq!(
            String::from_utf8_lossy(&fake.seen().pop().unwrap().body),
            *body
        );
    }
    let seen = fake.seen().len();
    let gateway = start_with(&[fake.addr], setup(access(tenant()))).await;
    assert_rejected(&gateway, &keyed(&post(CHAT, &body)), "kv_transfer_params").await;
    let other = TenantEntry {
        allow: vec![Permission::EcTransfer],
        ..tenant()
    };
    let gateway = start_with(&[fake.addr], setup(access(other))).await;
    assert_rejected(&gateway, &keyed(&post(CHAT, &body)), "kv_transfer_params").await;
    assert_eq!(fake.seen().len(), seen);
}

#[tokio::test]
async fn a_reloaded_permission_applies_at_once() {
    let fake = scripted_backend().await;
    let access = access(tenant());
    let gateway = open_to(&fake, access.clone()).await;
    let request = keyed(&post(CHAT, &body_with(r#""priority":3"#)));
    assert_rejected(&gateway, &request, "priority").await;
    let key_file = |allow| tokenweir_request::access::KeyFile {
        tenants: vec![TenantEntry { allow, ..tenant() }],
    };
    access.replace_keys(Some(&key_file(vec![Permission::Priority])));
    assert_eq!(status(&gateway.raw(&request).await), 200);
    gateway.record().await;
    access.replace_keys(Some(&key_file(Vec::new())));
    assert_rejected(&gateway, &request, "priority").await;
}

#[tokio::test]
async fn a_session_id_is_removed_but_used() {
    let fake = scripted_backend().await;
    let session_headers = vec![HeaderName::from_static("x-session-id")];
    let setup = |access| Setup {
        access,
        session_headers: session_headers.clone(),
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup(Arc::default())).await;
    let body = body_with(r#""session_id" : "of \"a\" client""#);
    let request = with_lines(&post(CHAT, &body), "X-Session-ID: mine");
    assert_eq!(status(&gateway.raw(&request).await), 200);
    let seen = fake.seen().pop().unwrap();
    assert!(
        !seen.head.to_ascii_lowercase().contains("x-session-id"),
        "{}",
        seen.head
    );
    assert_eq!(
        String::from_utf8_lossy(&seen.body),
        body_with(r#""session_id" : null"#)
    );
    assert!(gateway.record().await.session_hash.is_some());
    assert_rejected(
        &gateway,
        &post(CHAT, &body_with(r#""session_id":7"#)),
        "session_id",
    )
    .await;

    let allowed = access_for_all(&[Permission::SessionId, Permission::Xargs]);
    let gateway = start_with(&[fake.addr], setup(allowed)).await;
    assert_eq!(status(&gateway.raw(&request).await), 200);
    let seen = fake.seen().pop().unwrap();
    assert!(
        seen.head
            .to_ascii_lowercase()
            .contains("x-session-id: mine"),
        "{}",
        seen.head
    );
    assert_eq!(String::from_utf8_lossy(&seen.body), body);

    let gateway = start_with(&[fake.addr], setup(access_for_all(&[Permission::Xargs]))).await;
    let inner = body_with(r#""vllm_xargs":{"session_id":"s","x":1}"#);
    assert_eq!(status(&gateway.post(CHAT, &inner).await), 200);
    let seen = String::from_utf8(fake.seen().pop().unwrap().body).unwrap();
    assert_eq!(seen, inner.replace("\"s\"", "\"\""));
}

#[tokio::test]
async fn a_digest_is_rejected_if_the_body_changes() {
    let (fake, gateway) = open_gateway().await;
    let signed = |member| {
        with_lines(
            &post(CHAT, &body_with(member)),
            "content-digest: sha-256=:x:",
        )
    };
    let answer = gateway.raw(signed(r#""session_id":"s""#)).await;
    assert_eq!(status(&answer), 400);
    assert!(head(&answer).contains("x-gateway-error: signed_body"));
    assert_eq!(error(&answer)["param"], "session_id");
    assert!(fake.seen().is_empty());
    assert_eq!(
        status(&gateway.raw(signed(r#""session_id":null"#)).await),
        200
    );
}

#[tokio::test]
async fn selection_and_priority_headers_need_a_permission() {
    let fake = scripted_backend().await;
    let request = with_lines(
        &post(CHAT, super::ASK),
        "X-data-parallel-rank: 1\r\nX-Vllm-Priority: -9",
    );
    for (allowed, rank, priority) in [
        (&[][..], false, false),
        (&[Permission::DataParallelRank][..], true, false),
        (&[Permission::Priority][..], false, true),
    ] {
        let gateway = open_to(&fake, access_for_all(allowed)).await;
        assert_eq!(status(&gateway.raw(&request).await), 200);
        let head = fake.seen().pop().unwrap().head.to_ascii_lowercase();
        assert_eq!(head.contains("x-data-parallel-rank: 1"), rank, "{head}");
        assert_eq!(head.contains("x-vllm-priority: -9"), priority, "{head}");
    }
}

/// Returns the paths of vLLM 0.32 and 0.33 that the gateway must not serve, which the security guide lists:
/// paths that control or describe the server, and generating paths whose bodies the gateway does not check.
pub(super) fn not_served() -> Vec<&'static str> {
    let (_, list) = security_guide().split_once(" are 404:\n\n").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let paths: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert_eq!(paths.len(), 43, "{paths:?}");
    paths
}

#[test]
fn the_security_guide_lists_every_field() {
    for row in tokenweir_protocol::openai::engine_control::table() {
        let is_there = security_guide().contains(&row);
        assert!(is_there, "docs/operate/security.md lacks this row:\n{row}");
    }
}

fn security_guide() -> &'static str {
    include_str!("../../../docs/operate/security.md")
}
