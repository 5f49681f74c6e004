//! Access control of both listeners: authentication, the headers that a backend receives, and the
//! paths that are served.

mod cache_salt;
mod caps;
mod control;
mod key_lookup_timing;
mod limits;
mod reload;
pub(crate) mod tokens;

use crate::support::scripted_backend::{ScriptedBackend, json, response};
use crate::support::test_gateway::{
    ASK, CHAT, Running, Setup, body_json, get, operate, operator_token, post, start, start_with,
    status, tiers, with_lines,
};
use serde_json::Value;
use std::sync::Arc;
use tokenweir::admin::AdminAuthorizer;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_protocol::openai::engine_control::{Permission, Permissions};
use tokenweir_request::access::cors::{self, Cors};
use tokenweir_request::access::{KeyDigest, KeyEntry, KeyFile, TenantEntry, UsageLimits};
use tokenweir_request::record::Outcome;

pub(crate) const KEY: &str = "sk-tw-a-key-for-tests";

/// Builds the tenant `a` with one API key, [`KEY`], and without limits.
pub(crate) fn tenant() -> TenantEntry {
    tenant_with_key("a", KEY)
}

/// Builds a tenant with this name and one API key, and without limits.
fn tenant_with_key(name: &str, key: &str) -> TenantEntry {
    let hash = KeyDigest::from_key(key.as_bytes());
    TenantEntry {
        name: name.into(),
        keys: vec![KeyEntry {
            name: "one".into(),
            hash,
            limits: UsageLimits::default(),
        }],
        ..TenantEntry::default()
    }
}

pub(crate) const OTHER_KEY: &str = "sk-tw-the-key-of-another-tenant";

/// Builds a second tenant: `tenant` with the name `b` and the API key [`OTHER_KEY`].
pub(crate) fn other_tenant(tenant: TenantEntry) -> TenantEntry {
    let TenantEntry { name, keys, .. } = tenant_with_key("b", OTHER_KEY);
    TenantEntry {
        name,
        keys,
        ..tenant
    }
}

pub(crate) fn access(tenant: TenantEntry) -> Arc<AccessControl> {
    access_of(vec![tenant])
}

pub(crate) fn access_of(tenants: Vec<TenantEntry>) -> Arc<AccessControl> {
    Arc::new(AccessControl::new(
        Some(&KeyFile { tenants }),
        Cors::default(),
    ))
}

/// Builds access control without tenants, which gives all clients these permissions.
pub(crate) fn access_for_all(allowed: &[Permission]) -> Arc<AccessControl> {
    let mut access = AccessControl::new(None, Cors::default());
    access.permissions = Permissions::new(allowed);
    Arc::new(access)
}

async fn gated(fake: &ScriptedBackend, tenant: TenantEntry) -> Running {
    start_with(
        &[fake.addr],
        Setup {
            access: access(tenant),
            ..Setup::default()
        },
    )
    .await
}

/// Returns the text of `request` with an `authorization` header that contains [`KEY`].
pub(crate) fn keyed(request: &str) -> String {
    with_lines(request, &format!("authorization: Bearer {KEY}"))
}

/// Returns the head of a raw response in lower case.
pub(crate) fn head(answer: &[u8]) -> String {
    String::from_utf8_lossy(answer)
        .split("\r\n\r\n")
        .next()
        .unwrap()
        .to_ascii_lowercase()
}

fn error(answer: &[u8]) -> Value {
    body_json(answer)["error"].take()
}

async fn scripted_backend() -> ScriptedBackend {
    ScriptedBackend::answering(json(
        "200 OK",
        r#"{"object":"chat.completion","choices":["a"]}"#,
    ))
    .await
}

/// Starts a scripted backend and a gateway without access control.
async fn open_gateway() -> (ScriptedBackend, Running) {
    let fake = scripted_backend().await;
    let gateway = start(&[fake.addr]).await;
    (fake, gateway)
}

#[tokio::test]
async fn an_unknown_key_reaches_no_backend() {
    let fake = scripted_backend().await;
    let gateway = gated(&fake, tenant()).await;
    let strangers = [
        "",
        "x: y",
        "authorization: Bearer sk-tw-other",
        "authorization: Basic YTpi",
    ];
    for lines in strangers
        .iter()
        .chain(&["x-api-key: no", "authorization: Bearer"])
    {
        let request = if lines.is_empty() {
            post(CHAT, ASK)
        } else {
            with_lines(&post(CHAT, ASK), lines)
        };
        let answer = gateway.raw(request).await;
        assert_eq!(status(&answer), 401, "{lines}");
        let head = head(&answer);
        assert!(head.contains("www-authenticate: bearer"), "{head}");
        assert!(head.contains("x-gateway-error: invalid_api_key"), "{head}");
        assert_eq!(error(&answer)["code"], "invalid_api_key");
        assert!(
            !String::from_utf8_lossy(&answer).contains("other"),
            "the response does not quote the key"
        );
        let record = gateway.record().await;
        assert_eq!(
            (record.outcome, record.caller),
            (Outcome::ClientError, None)
        );
    }
    for path in ["/v1/models", "/nothing", "/sleep"] {
        assert_eq!(status(&gateway.raw(get(path)).await), 401, "{path}");
        gateway.record().await;
    }
    assert!(fake.seen().is_empty());
    for path in ["/health", "/ping", "/version"] {
        assert_eq!(
            status(&gateway.raw(get(path)).await),
            200,
            "{path} needs no key"
        );
    }
    let refusals = "tokenweir_requests_rejected_total{reason=\"invalid_api_key\"}";
    gateway.assert_value(refusals, 9.0).await;
}

#[tokio::test]
async fn a_known_key_is_served_and_not_forwarded() {
    let fake = scripted_backend().await;
    let gateway = gated(&fake, tenant()).await;
    for lines in [
        format!("authorization: Bearer {KEY}"),
        format!("AUTHORIZATION: bearer {KEY}\r\nx-api-key: another"),
        format!("x-api-key: {KEY}"),
    ] {
        assert_eq!(
            status(&gateway.raw(with_lines(&post(CHAT, ASK), &lines)).await),
            200,
            "{lines}"
        );
        let record = gateway.record().await;
        let caller = record.caller.unwrap();
        assert_eq!((&*caller.tenant, &*caller.key), ("a", "one"));
        let seen = fake.seen().pop().unwrap().head.to_ascii_lowercase();
        assert!(
            !seen.contains("authorization") && !seen.contains("x-api-key"),
            "{seen}"
        );
    }
    let requests = "tokenweir_tenant_requests_total{outcome=\"ok\",tenant=\"a\"}";
    gateway.assert_value(requests, 3.0).await;
}

#[tokio::test]
async fn a_tenant_uses_only_its_models() {
    let fake = scripted_backend().await;
    // For a request without a model, the gateway uses the first model that the backend lists.
    fake.set_models(&["secret", "tiny", "llama-3"]);
    let models = Some(vec!["tiny".into(), "llama-*".into()]);
    let gateway = gated(&fake, TenantEntry { models, ..tenant() }).await;
    let listed = body_json(&gateway.raw(keyed(&get("/v1/models"))).await);
    let ids: Vec<&Value> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(ids, ["llama-3", "tiny"]);
    let ask = async |model: &str| {
        gateway
            .raw(keyed(&post(CHAT, &format!(r#"{{{model}"messages":[]}}"#))))
            .await
    };
    for model in [r#""model":"tiny","#, r#""model":"llama-3","#] {
        assert_eq!(status(&ask(model).await), 200, "{model}");
    }
    let seen = fake.seen().len();
    let refusals = [
        r#""model":"secret","#,
        r#""model":"absent","#,
        r#""model":"","#,
        "",
    ];
    for model in refusals {
        let answer = ask(model).await;
        assert_eq!(status(&answer), 403, "{model}");
        assert!(head(&answer).contains("x-gateway-error: model_not_allowed"));
        assert_eq!(error(&answer)["param"], "model");
    }
    assert_eq!(error(&ask(refusals[0]).await)["message"], {
        let absent = error(&ask(refusals[1]).await);
        absent["message"]
            .as_str()
            .unwrap()
            .replace("absent", "secret")
    });
    assert_eq!(fake.seen().len(), seen, "these requests reach no backend");
    let unknown = ask(r#""model":"llama-4","#).await;
    assert_eq!(status(&unknown), 404);
    let message = error(&unknown)["message"].to_string();
    assert!(
        message.contains("llama-3") && !message.contains("secret"),
        "{message}"
    );
}

#[tokio::test]
async fn the_tenants_tier_overrides_the_tier_header() {
    let fake = scripted_backend().await;
    let tiers = tiers(&["free", "gold"]);
    let access = access(TenantEntry {
        tier: Some("gold".into()),
        ..tenant()
    });
    let gateway = start_with(
        &[fake.addr],
        Setup {
            access,
            tiers,
            ..Setup::default()
        },
    )
    .await;
    gateway
        .raw(with_lines(&keyed(&post(CHAT, ASK)), "x-tier: free"))
        .await;
    assert_eq!(gateway.record().await.tier.as_str(), "gold");
}

#[tokio::test]
async fn only_configured_origins_get_cors_headers() {
    let answer = response("200 OK", "access-control-allow-origin: *\r\n", "{}");
    let fake = ScriptedBackend::answering(answer).await;
    let cors = Cors::new(&cors::CorsSettings {
        origins: vec!["https://a.example".into()],
    });
    let access = Arc::new(AccessControl::new(
        Some(&KeyFile {
            tenants: vec![tenant()],
        }),
        cors,
    ));
    let gateway = start_with(
        &[fake.addr],
        Setup {
            access,
            ..Setup::default()
        },
    )
    .await;
    let preflight = |origin: &str| {
        format!(
            "OPTIONS {CHAT} HTTP/1.1\r\nhost: g\r\norigin: {origin}\r\nconnection: close\r\n\
             access-control-request-method: POST\r\n\
             access-control-request-headers: authorization\r\n\r\n"
        )
    };
    let answer = gateway.raw(preflight("https://a.example")).await;
    assert_eq!(status(&answer), 204, "a preflight request carries no key");
    assert!(head(&answer).contains("access-control-allow-headers: authorization"));
    assert!(head(&answer).contains("access-control-allow-methods: post\r\n"));
    let stored = preflight("https://a.example").replace(CHAT, "/v1/responses/resp_1");
    let answer = gateway.raw(stored).await;
    assert!(head(&answer).contains("access-control-allow-methods: get, delete\r\n"));
    assert_eq!(
        status(&gateway.raw(preflight("https://b.example")).await),
        401
    );
    for request in [keyed(&post(CHAT, ASK)), post(CHAT, ASK)] {
        let answer = gateway
            .raw(with_lines(&request, "origin: https://a.example"))
            .await;
        let head = head(&answer);
        // An error response has the CORS header, too. The gateway removes the CORS header of the backend.
        assert!(
            head.contains("access-control-allow-origin: https://a.example"),
            "{head}"
        );
        assert!(!head.contains("access-control-allow-origin: *"), "{head}");
    }
    let off = start(&[fake.addr]).await;
    assert_eq!(status(&off.raw(preflight("https://a.example")).await), 405);
    let answer = off
        .raw(with_lines(&post(CHAT, ASK), "origin: https://a.example"))
        .await;
    assert!(!head(&answer).contains("access-control"));
}

#[tokio::test]
async fn a_token_protects_all_but_probes() {
    let fake = scripted_backend().await;
    for has_unauthenticated_metrics in [false, true] {
        let guard = AdminAuthorizer {
            has_unauthenticated_metrics,
            ..operator_token()
        };
        let gateway = start_with(
            &[fake.addr],
            Setup {
                guard,
                ..Setup::default()
            },
        )
        .await;
        let ask = async |path: &str, token: &str| {
            let lines = format!("authorization: Bearer {token}\r\n");
            let lines = if token == "none" { "" } else { &lines };
            operate(gateway.admin, "GET", path, lines).await
        };
        for path in ["/livez", "/readyz", "/", "/page/page.js"] {
            assert_eq!(status(&ask(path, "none").await), 200, "{path}");
        }
        let metrics = status(&ask("/metrics", "none").await);
        assert_eq!(
            metrics,
            if has_unauthenticated_metrics {
                200
            } else {
                401
            }
        );
        for path in [
            "/status",
            "/streams",
            "/config",
            "/decisions",
            "/decisions/x",
            "/nothing",
            "/livez/",
        ] {
            for token in ["none", "other", ""] {
                let answer = ask(path, token).await;
                assert_eq!(status(&answer), 401, "{path} {token}");
                assert!(head(&answer).contains("www-authenticate: bearer"));
            }
        }
        for path in ["/metrics", "/status", "/streams", "/config", "/decisions"] {
            assert_eq!(status(&ask(path, "operator").await), 200, "{path}");
        }
    }
}

/// Spellings of a path that some servers or proxies normalize to another path.
const PATH_SPELLINGS: &[&str] = &[
    "/v1/chat/completions/",
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/v1/./chat/completions",
    "/x/../v1/chat/completions",
    "/v1/chat/completions/../../../sleep",
    "/v1/chat/completions/..;/sleep",
    "/v1/chat/completions;x=/../sleep",
    "/v1/chat/completions;",
    "/v1/chat/completions.",
    "/v1/chat/completions%20",
    "/v1/chat/completions%00",
    "/v1/chat%2fcompletions",
    "/v1/chat%2Fcompletions",
    "/v1%5Cchat/completions",
    "/%76%31/chat/completions",
    "/v1/%2e%2e/sleep",
    "/v1/%2E%2E%2Fsleep",
    "/v1/%252e%252e/sleep",
    "/V1/chat/completions",
    "/v1/Chat/Completions",
    "/v1/chat/completions%3Fx",
    "/.//sleep",
    "/v1/chat/completions%0d%0ax:%20y",
    "/v1/chat/completi%6fns",
    "/sleep?/v1/chat/completions",
    "/sleep;/v1/chat/completions",
    "*",
    "/",
];

#[tokio::test]
async fn no_spelling_reaches_a_non_inference_endpoint() {
    let (fake, gateway) = open_gateway().await;
    for path in control::not_served().iter().chain(PATH_SPELLINGS) {
        for method in [
            "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "SLEEP",
        ] {
            let request = post(path, ASK).replacen("POST", method, 1);
            let answer = gateway.raw(&request).await;
            let is_own = matches!(
                (*path, method),
                ("/", "GET" | "HEAD" | "OPTIONS") | ("*", "OPTIONS")
            );
            assert!(
                is_own || matches!(status(&answer), 400 | 404 | 405),
                "{method} {path}: {}",
                head(&answer)
            );
            // Also sends each spelling in absolute form (`http://host/path`), which clients use for proxies.
            let absolute = format!("{method} http://backend{path}");
            let request = request.replacen(&format!("{method} {path}"), &absolute, 1);
            let answer = gateway.raw(&request).await;
            // A target in absolute form without a path means the path `/`, which the gateway answers itself.
            let is_root = *path == "*" || *path == "/";
            let is_own = is_root && matches!(method, "GET" | "HEAD" | "OPTIONS");
            let is_own = is_own && status(&answer) == 200;
            assert!(
                is_own || matches!(status(&answer), 400 | 404 | 405),
                "{absolute}: {}",
                head(&answer)
            );
        }
    }
    for raw in [
        "/v1/chat/completions\0",
        "/v1/chat/completions\t",
        "/v1/chat/completions\u{a0}",
    ] {
        let answer = gateway.raw(post(raw, ASK)).await;
        assert!(
            matches!(status(&answer), 400 | 404),
            "{raw:?}: {}",
            head(&answer)
        );
    }
    assert_eq!(
        status(
            &gateway
                .raw(post("gateway:443", ASK).replacen("POST", "CONNECT", 1))
                .await
        ),
        405
    );
    assert!(fake.seen().is_empty(), "{}", fake.seen()[0].head);
    let query = post("/v1/chat/completions?/../sleep", ASK);
    assert_eq!(
        status(&gateway.raw(query).await),
        200,
        "the query is not part of the path"
    );
    assert!(
        fake.seen()[0]
            .head
            .starts_with("POST /v1/chat/completions?/../sleep HTTP/1.1\r\n")
    );
}
