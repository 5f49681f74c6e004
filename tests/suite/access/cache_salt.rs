//! Tests the `cache_salt` that the gateway derives from the tenant and adds to requests, so that tenants
//! share no cached prefixes.

use super::{CHAT, error, head, scripted_backend, tenant_with_key};
use crate::support::scripted_backend::ScriptedBackend;
use crate::support::test_gateway::{Running, Setup, post, start_with, status, with_lines};
use serde_json::{Value, json};
use std::sync::Arc;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_request::access::cors::Cors;
use tokenweir_request::access::{KeyDigest, KeyFile, SaltKey, TenantEntry};

/// Starts a scripted backend and a gateway that adds a derived `cache_salt` to requests. It has three
/// tenants, each with its own name as its API key. Only the tenant `free` may send a salt of its own.
async fn derived() -> (ScriptedBackend, Running) {
    let named = |name: &str| TenantEntry {
        allow: (name == "free")
            .then_some(Permission::CacheSalt)
            .into_iter()
            .collect(),
        ..tenant_with_key(name, name)
    };
    let key_file = KeyFile {
        tenants: ["a", "b", "free"].map(named).into(),
    };
    let mut access = AccessControl::new(Some(&key_file), Cors::default());
    access.salt_key = Some(SaltKey::new(KeyDigest::from_key(b"secret")));
    let access = Arc::new(access);
    let fake = scripted_backend().await;
    let setup = Setup {
        access,
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    (fake, gateway)
}

async fn send(gateway: &Running, tenant: &str, path: &str, body: &str) -> Vec<u8> {
    gateway
        .raw(with_lines(
            &post(path, body),
            &format!("authorization: Bearer {tenant}"),
        ))
        .await
}

/// Sends a request with the API key of the tenant. Returns the body that the backend received.
async fn forwarded(
    gateway: &Running,
    fake: &ScriptedBackend,
    tenant: &str,
    path: &str,
    body: &str,
) -> String {
    assert_eq!(
        status(&send(gateway, tenant, path, body).await),
        200,
        "{path} {body}"
    );
    String::from_utf8(fake.seen().pop().unwrap().body).unwrap()
}

fn salt(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    body["cache_salt"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn each_tenant_has_its_own_constant_salt() {
    let (fake, gateway) = derived().await;
    let plain = r#"{ "model":"tiny","messages":[] }"#;
    let salted = plain.replace("[]", r#"[],"cache_salt":"mine""#);
    let mut salts = Vec::new();
    for tenant in ["a", "b"] {
        for body in [plain, &salted] {
            let first = forwarded(&gateway, &fake, tenant, CHAT, body).await;
            assert_eq!(forwarded(&gateway, &fake, tenant, CHAT, body).await, first);
            salts.push(salt(&first));
            // The gateway changes no other byte of the body.
            let expected = if body == plain {
                plain.replacen('{', &format!("{{\"cache_salt\":\"{}\",", salt(&first)), 1)
            } else {
                salted.replace("mine", &salt(&first))
            };
            assert_eq!(first, expected);
        }
    }
    salts.sort_unstable();
    salts.dedup();
    assert_eq!(
        salts.len(),
        4,
        "a client's salt is combined with that of the tenant"
    );
    let other_tenant = format!(
        r#"{{"model":"tiny","messages":[],"cache_salt":"{}"}}"#,
        salts[0]
    );
    for tenant in ["a", "b"] {
        let sent = salt(&forwarded(&gateway, &fake, tenant, CHAT, &other_tenant).await);
        assert!(
            !salts.contains(&sent),
            "the salt of another tenant has no effect"
        );
    }
    let null = plain.replace("[]", r#"[],"cache_salt" : null"#);
    let sent = forwarded(&gateway, &fake, "a", CHAT, &null).await;
    assert_eq!(
        sent,
        null.replace(": null", &format!(": \"{}\"", salt(&sent)))
    );
}

#[tokio::test]
async fn a_salt_is_added_only_where_used() {
    let (fake, gateway) = derived().await;
    let body = r#"{"model":"tiny","input":"x"}"#;
    for path in [
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/pooling",
    ] {
        assert_eq!(
            salt(&forwarded(&gateway, &fake, "a", path, body).await).len(),
            64,
            "{path}"
        );
    }
    for path in [
        "/tokenize",
        "/detokenize",
        "/v1/messages/count_tokens",
        "/v2/embed",
    ] {
        assert_eq!(
            forwarded(&gateway, &fake, "a", path, body).await,
            body,
            "{path}"
        );
    }
    let own = r#"{"model":"tiny","messages":[],"cache_salt":"own"}"#;
    for body in [body, own] {
        assert_eq!(forwarded(&gateway, &fake, "free", CHAT, body).await, body);
    }
    assert_eq!(
        salt(&forwarded(&gateway, &fake, "a", CHAT, "{}").await).len(),
        64
    );
}

#[tokio::test]
async fn other_types_and_body_digests_are_rejected() {
    let (fake, gateway) = derived().await;
    for value in ["7", "[\"s\"]", "{}", "true"] {
        let body = format!(r#"{{"model":"tiny","messages":[],"cache_salt":{value}}}"#);
        let answer = send(&gateway, "a", CHAT, &body).await;
        assert_eq!(status(&answer), 400, "{value}");
        assert!(head(&answer).contains("x-gateway-error: bad_body"));
    }
    let lines = "authorization: Bearer a\r\ncontent-digest: sha-256=:x:";
    let answer = gateway
        .raw(with_lines(&post(CHAT, r#"{"model":"tiny"}"#), lines))
        .await;
    assert_eq!(
        (status(&answer), &error(&answer)["param"]),
        (400, &"cache_salt".into())
    );
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn salts_hide_prefixes_of_other_tenants() {
    let (_fake, gateway) = derived().await;
    let text = "a long prompt ".repeat(500);
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": text }] });
    let mut blocks = Vec::new();
    for tenant in ["a", "a", "b"] {
        send(&gateway, tenant, CHAT, &body.to_string()).await;
        let prompt = gateway.record().await.fingerprint.unwrap();
        assert!(prompt.blocks.len() > 3, "{}", prompt.blocks.len());
        blocks.push(prompt.blocks.to_vec());
    }
    assert_eq!(blocks[0], blocks[1]);
    assert!(blocks[0].iter().all(|block| !blocks[2].contains(block)));
}
