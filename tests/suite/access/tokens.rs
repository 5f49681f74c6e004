//! Tests of access with tokens: the contract of a token source, and the real program with signed tokens.

use super::{ASK, CHAT, KEY, access, error, head, keyed, scripted_backend, tenant};
use crate::support::process::{GatewayProcess, folder};
use crate::support::test_gateway::{
    Setup, body_json, get, post, read_rest, send_to, start_with, status, with_lines,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokenweir_protocol::clock;
use tokenweir_request::access::{
    ApiKey, ApiKeys, KeyDigest, RefusedToken, TokenGrant, TokenRefusal, TokenSource, UsageLimits,
    presented_key,
};
use tokenweir_request::record::{LogPlace, RecordNote};

/// Accepts `token-of-TENANT` and `token-of-TENANT/MODEL`, and refuses `token-refused` and `token-too-early`.
pub(crate) struct TenantNames;

impl TokenSource for TenantNames {
    fn authenticate(
        &self,
        headers: &HeaderMap,
        keys: &Arc<ApiKeys>,
        _now: SystemTime,
    ) -> Option<Result<Arc<ApiKey>, TokenRefusal>> {
        let token = str::from_utf8(presented_key(headers)?).unwrap();
        let name = token.strip_prefix("token-")?;
        let refusal = TokenRefusal {
            reason: "expired",
            is_temporary: name == "too-early",
        };
        let granted = name.strip_prefix("of-").unwrap_or_default();
        let (tenant, model) = granted.split_once('/').unwrap_or((granted, ""));
        let grant = TokenGrant {
            digest: KeyDigest::from_key(token.as_bytes()),
            tenant: tenant.into(),
            key: "_subject".into(),
            subject: KeyDigest::from_key(granted.as_bytes()),
            tier: None,
            models: (!model.is_empty()).then(|| vec![model.to_owned()]),
            limits: UsageLimits::default(),
        };
        Some(keys.key_of_token(&grant).ok_or(refusal))
    }
}

#[tokio::test]
async fn a_token_stands_for_its_tenants_key() {
    let fake = scripted_backend().await;
    let access = access(tenant());
    access.accept_tokens(Arc::new(TenantNames));
    let setup = Setup {
        access,
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    let ask = async |token: &str, model: &str| {
        let request = post(CHAT, &ASK.replace("tiny", model));
        let lines = format!("authorization: Bearer {token}");
        gateway.raw(with_lines(&request, &lines)).await
    };
    assert_eq!(status(&ask("token-of-a/tiny", "tiny").await), 200);
    let caller = gateway.record().await.caller.unwrap();
    assert_eq!((&*caller.tenant, &*caller.key), ("a", "_subject"));
    let seen = fake.seen().pop().unwrap().head.to_ascii_lowercase();
    assert!(!seen.contains("token-of-a"), "{seen}");
    assert_eq!(status(&ask("token-of-a/tiny", "other").await), 403);
    gateway.record().await;
    assert_eq!(status(&gateway.raw(keyed(&post(CHAT, ASK))).await), 200);
    gateway.record().await;
    assert_eq!(
        error(&ask("unknown", "tiny").await)["code"],
        "invalid_api_key"
    );
    assert!(gateway.record().await.notes.get::<RefusedToken>().is_none());

    for (token, code, name) in [
        ("token-of-none", 401, "invalid_token"),
        ("token-too-early", 503, "no_issuer_keys"),
    ] {
        let answer = ask(token, "tiny").await;
        assert_eq!(status(&answer), code, "{token}");
        let head = head(&answer);
        assert!(head.contains(&format!("x-gateway-error: {name}")), "{head}");
        let challenge = "www-authenticate: bearer error=\"invalid_token\"";
        assert_eq!(head.contains(challenge), code == 401, "{head}");
        assert_eq!(head.contains("retry-after: 1"), code == 503, "{head}");
        let record = gateway.record().await;
        let note = record.notes.get::<RefusedToken>().unwrap();
        let field = note.log_field(LogPlace::Attempts).unwrap();
        assert_eq!(field.value.to_string(), "expired");
    }
    let path = "/v1/messages";
    let request = with_lines(&post(path, ASK), "x-api-key: token-refused");
    let answer = body_json(&gateway.raw(request).await);
    assert_eq!(answer["error"]["type"], "authentication_error");
    assert_eq!(fake.seen().len(), 2);
}

/// An issuer with a key in a file.
struct Issuer {
    key: EcdsaKeyPair,
    folder: PathBuf,
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Issuer {
    fn new(folder: &Path) -> Self {
        let random = SystemRandom::new();
        let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap();
        let issuer = Self {
            key,
            folder: folder.to_owned(),
        };
        let [x, y] = [1..33, 33..65].map(|part| encode(&issuer.key.public_key().as_ref()[part]));
        let jwk = json!({ "kty": "EC", "crv": "P-256", "kid": "1", "x": x, "y": y });
        let jwks = json!({ "keys": [jwk] }).to_string();
        fs::write(issuer.folder.join("jwks.json"), jwks).unwrap();
        issuer
    }

    fn sign(&self, claims: &Value) -> String {
        let header = json!({ "alg": "ES256", "kid": "1" });
        let [header, claims] = [&header, claims].map(|part| encode(part.to_string()));
        let message = format!("{header}.{claims}");
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes());
        format!("{message}.{}", encode(signature.unwrap()))
    }

    /// The configuration of a gateway that trusts the issuer.
    fn write_config(&self, backend: SocketAddr) -> PathBuf {
        let hash = KeyDigest::from_key(KEY.as_bytes());
        let keys = format!("tenants:\n- {{ name: a, keys: [{{ name: one, hash: '{hash}' }}] }}\n");
        fs::write(self.folder.join("keys.yaml"), keys).unwrap();
        let config = format!(
            "listen: 127.0.0.1:0\nlog: {{ level: debug }}\n\
             backends: [{{ url: 'http://{backend}' }}]\n\
             access: {{ keys_file: '{folder}/keys.yaml' }}\n\
             shared_limits: {{ file: '{folder}/limits.json' }}\n\
             jwt:\n  issuers:\n  - issuer: https://issuer.test\n    audiences: [gateway]\n    \
             jwks_file: '{folder}/jwks.json'\n    claims: {{ limits: limits }}\n",
            folder = self.folder.display()
        );
        let file = self.folder.join("gateway.yaml");
        fs::write(&file, config).unwrap();
        file
    }
}

async fn ask(gateway: SocketAddr, token: &str) -> Vec<u8> {
    let lines = format!("authorization: Bearer {token}");
    let request = with_lines(&post(CHAT, ASK), &lines);
    read_rest(send_to(gateway, request).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_subject_outlast_restarts() {
    let fake = scripted_backend().await;
    let issuer = Issuer::new(&folder("jwt-limits"));
    let config = issuer.write_config(fake.addr);
    let token = issuer.sign(&json!({
        "iss": "https://issuer.test", "aud": "gateway", "exp": 99_999_999_999_u64, "sub": "bob",
        "tenant": "a", "limits": { "requests_per_month": 2 },
    }));
    for expected in [200, 200, 429] {
        let mut process = GatewayProcess::start(&config).await;
        assert_eq!(status(&ask(process.clients(), &token).await), expected);
        process.signal("TERM").await;
        assert!(process.ended().await.success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_checks_signed_tokens() {
    let fake = scripted_backend().await;
    let issuer = Issuer::new(&folder("jwt"));
    let process = GatewayProcess::start(&issuer.write_config(fake.addr)).await;
    let ask = async |token: &str| ask(process.clients(), token).await;
    let now = clock::wall_time()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let claims = |exp: u64| {
        json!({
            "iss": "https://issuer.test", "aud": "gateway", "exp": exp, "sub": "alice@example.test",
            "tenant": "a",
        })
    };
    let valid = issuer.sign(&claims(now + 600));
    let expired = issuer.sign(&claims(now - 600));
    assert_eq!(status(&ask(&valid).await), 200);
    assert_eq!(status(&ask(&valid).await), 200);
    assert_eq!(status(&ask(KEY).await), 200);
    let answer = ask(&expired).await;
    assert_eq!(status(&answer), 401);
    assert!(head(&answer).contains("bearer error=\"invalid_token\""));
    let query = get(&format!("/v1/models?access_token={valid}"));
    let answer = read_rest(send_to(process.clients(), query).await).await;
    assert_eq!(status(&answer), 401, "a token in the query is none");

    let refused = process.value("tokenweir_jwt_refused_total{reason=\"expired\"}");
    assert_eq!(refused.await as u64, 1);
    let state: Value = process.document("/status").await;
    assert_eq!(state["jwt"]["issuers"][0]["keys"], 1);
    let shown = [
        process.log(),
        state.to_string(),
        process.get("/metrics").await,
    ]
    .concat();
    let tokens = [valid.as_str(), &expired];
    let secrets = tokens.iter().flat_map(|token| token.split('.'));
    for secret in secrets.chain(["alice"]) {
        assert!(!shown.contains(secret), "{secret}");
    }
}
