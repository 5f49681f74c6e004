//! Tests of accepted tokens and their rights. The other files of this folder test attacks, documents and
//! refreshes.

mod attacks;
mod documents;
mod refresh;
mod signer;

use super::*;
use crate::signature::Algorithm;
use serde_json::{Value, json};
use signer::Signer;
use std::time::Duration;
use tokenweir_net::testing::TempFolder;
use tokenweir_request::access::{KeyFile, PseudonymKey, TokenCharge};
use tokenweir_request::record::Tier;

/// The current time in all tests, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
const ISSUER: &str = "https://issuer.test";

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// The keys of a key file with the tenants `a` and `b`.
fn keys_after(previous: &ApiKeys) -> Arc<ApiKeys> {
    let key_file: KeyFile = serde_saphyr::from_str(
        "tenants:\n\
         - { name: a, tier: gold, models: [m, 'n-*'], keys: [] }\n\
         - { name: b, limits: { requests_per_minute: 9 }, keys: [] }\n",
    )
    .unwrap();
    Arc::new(ApiKeys::new(&key_file, previous))
}

fn keys() -> Arc<ApiKeys> {
    keys_after(&ApiKeys::default())
}

/// The claims of a valid token.
fn claims() -> Value {
    json!({ "iss": ISSUER, "aud": "tokenweir", "exp": NOW + 600, "sub": "user-1", "tenant": "a" })
}

/// The claims of a valid token with changes.
fn claims_with(changes: &Value) -> Value {
    let mut claims = claims();
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

fn settings(file: &std::path::Path) -> JwtIssuerConfig {
    let text = json!({ "issuer": ISSUER, "audiences": ["tokenweir"], "jwks_file": file });
    serde_json::from_value(text).unwrap()
}

fn context() -> GrantContext {
    GrantContext {
        pseudonyms: PseudonymKey::default(),
        tiers: vec!["gold".into(), "free".into()],
    }
}

/// A verifier with one issuer whose keys are in a file.
struct World {
    verifier: Arc<TokenVerifier>,
    keys: Arc<ApiKeys>,
    _folder: TempFolder,
}

impl World {
    /// Creates the verifier. `name` is the name of the test, for its folder.
    fn new(name: &str, document: &Value) -> Self {
        Self::with_settings(name, document, |_| {})
    }

    fn with_settings(
        name: &str,
        document: &Value,
        change: impl FnOnce(&mut JwtIssuerConfig),
    ) -> Self {
        let folder = TempFolder::new(&format!("jwt-{name}"));
        let mut issuer = settings(&folder.write("jwks.json", &document.to_string()));
        change(&mut issuer);
        let config = JwtConfig {
            issuers: vec![issuer],
            ..JwtConfig::default()
        };
        let verifier = TokenVerifier::start(&config, context()).unwrap().unwrap();
        Self {
            verifier,
            keys: keys(),
            _folder: folder,
        }
    }

    fn check(&self, token: &[u8]) -> Option<Result<Arc<ApiKey>, Refusal>> {
        self.check_at(token, NOW)
    }

    fn check_at(&self, token: &[u8], now: u64) -> Option<Result<Arc<ApiKey>, Refusal>> {
        self.verifier.check(token, &self.keys, at(now))
    }

    fn accept(&self, token: &str) -> Arc<ApiKey> {
        self.check(token.as_bytes()).unwrap().unwrap()
    }

    /// The reason why a token is refused. `None`: the text does not look like a token.
    fn refusal(&self, token: &[u8]) -> Option<Refusal> {
        self.check(token).map(Result::unwrap_err)
    }
}

fn jwks(signers: &[&Signer]) -> Value {
    let keys: Vec<&Value> = signers.iter().map(|signer| &signer.jwk).collect();
    json!({ "keys": keys })
}

#[tokio::test]
async fn every_algorithm_is_accepted() {
    let signers: Vec<Signer> = Algorithm::ALL.into_iter().map(Signer::new).collect();
    let world = World::new("algorithms", &jwks(&signers.iter().collect::<Vec<_>>()));
    for signer in &signers {
        let token = signer.token(&claims());
        assert_eq!(&*world.accept(&token).caller.tenant, "a", "{}", signer.id);
        let again = world.accept(&token);
        assert!(Arc::ptr_eq(&again, &world.accept(&token)), "it is stored");
        let unnamed = signer.with_header(
            &json!({ "alg": signer.algorithm, "typ": "at+JWT" }),
            &claims(),
        );
        // Each key names its algorithm, so a token without a key id matches only one key.
        assert_eq!(&*world.accept(&unnamed).caller.tenant, "a", "{}", signer.id);
    }
}

#[tokio::test]
async fn a_reload_of_tiers_reaches_tokens() {
    let signer = Signer::new(Algorithm::ES256);
    let world = World::with_settings("context", &jwks(&[&signer]), |issuer| {
        issuer.claims.tier = Some("tier".to_owned());
    });
    let token = |tier: &str| signer.token(&claims_with(&json!({ "tier": tier })));
    let before = world.accept(&token("gold"));
    assert_eq!(
        world.refusal(token("new").as_bytes()),
        Some(Refusal::Claims)
    );
    world.verifier.set_context(GrantContext {
        pseudonyms: PseudonymKey::new(KeyDigest::from_key(b"other")),
        tiers: vec!["new".into()],
    });
    let after = world.accept(&token("new"));
    assert_eq!(after.tier(), Some(&Tier::Known("new".into())));
    assert_ne!(after.caller.key, before.caller.key, "the pseudonym");
    assert_eq!(
        world.refusal(token("gold").as_bytes()),
        Some(Refusal::Claims)
    );
}

#[tokio::test]
async fn claims_decide_tenant_tier_models_and_limits() {
    let signer = Signer::new(Algorithm::ES256);
    let world = World::with_settings("grants", &jwks(&[&signer]), |issuer| {
        issuer.claims = serde_json::from_value(json!({
            "tenant": "/realm/team", "tier": "tier", "models": "scope", "limits": "limits",
        }))
        .unwrap();
        issuer.default_tenant = Some("b".to_owned());
    });
    let claims = |values: Value| signer.token(&claims_with(&values));
    let plain = world.accept(&claims(json!({ "realm": { "team": "a" } })));
    assert_eq!(plain.tier(), Some(&Tier::Known("gold".into())));
    assert!(plain.models().allow(Some("n-1")) && !plain.models().allow(Some("x")));

    let narrow = world.accept(&claims(json!({
        "realm": { "team": "a" }, "tier": "free", "scope": "m x",
    })));
    assert_eq!(narrow.tier(), Some(&Tier::Known("free".into())));
    let allowed = ["m", "n-1", "x"].map(|model| narrow.models().allow(Some(model)));
    assert_eq!(allowed, [true, false, false]);

    let other = world.accept(&claims(json!({ "realm": { "team": "no-such" } })));
    assert_eq!(&*other.caller.tenant, "b", "the default");
    assert!(other.caller.is_of_token() && other.caller.is_tenant_label);
    let pseudonym = other.caller.key.strip_prefix('_').unwrap();
    assert!(pseudonym.len() == 32 && !pseudonym.contains("user"));

    for refused in [
        json!({ "realm": { "team": ["a"] } }),
        json!({ "tier": "platinum" }),
        json!({ "tier": 7 }),
        json!({ "scope": { "m": true } }),
        json!({ "scope": vec!["m"; 101] }),
        json!({ "limits": { "requests_per_minute": 0 } }),
        json!({ "limits": { "requests_per_minute": -1 } }),
        json!({ "limits": { "unlimited": true } }),
    ] {
        let refusal = world.refusal(claims(refused.clone()).as_bytes());
        assert_eq!(refusal, Some(Refusal::Claims), "{refused}");
    }
}

#[tokio::test]
async fn tokens_of_a_subject_share_its_limits() {
    let signer = Signer::new(Algorithm::EdDSA);
    let mut world = World::with_settings("limits", &jwks(&[&signer]), |issuer| {
        issuer.claims.limits = Some("limits".to_owned());
    });
    let token = |subject: &str, number: u64| {
        let limits = json!({ "requests_per_minute": 2, "tokens_per_minute": 10 });
        let changes = json!({ "sub": subject, "iat": NOW - number, "limits": limits });
        signer.token(&claims_with(&changes))
    };
    let now = clock::now();
    let enter = |world: &World, token: &str| world.accept(token).enter(now).1.is_ok();
    assert!(enter(&world, &token("one", 1)) && enter(&world, &token("one", 2)));
    assert!(!enter(&world, &token("one", 3)) && enter(&world, &token("two", 1)));
    world.keys = keys_after(&world.keys);
    assert!(!enter(&world, &token("one", 4)), "a reload keeps the usage");
    let second = world.accept(&token("two", 2));
    let charge = TokenCharge {
        input: 10,
        output: 0,
    };
    world.keys.charge(&second.caller, charge, now);
    assert!(!enter(&world, &token("two", 3)), "its tokens are charged");
}

#[tokio::test]
async fn stored_tokens_follow_expiry_and_key_file() {
    let signer = Signer::new(Algorithm::ES256);
    let mut world = World::new("stored", &jwks(&[&signer]));
    let token = signer.token(&claims());
    world.accept(&token);
    let expired = world.check_at(token.as_bytes(), NOW + 600 + 60);
    assert_eq!(expired.unwrap().unwrap_err(), Refusal::Expired);
    assert!(
        world
            .check_at(token.as_bytes(), NOW + 600 + 59)
            .unwrap()
            .is_ok()
    );
    world.keys = Arc::new(ApiKeys::default());
    assert_eq!(world.refusal(token.as_bytes()), Some(Refusal::Tenant));
}

#[tokio::test]
async fn clients_of_a_token_must_all_be_listed() {
    let signer = Signer::new(Algorithm::ES256);
    let world = World::with_settings("clients", &jwks(&[&signer]), |issuer| {
        issuer.clients = vec!["app".to_owned(), "job".to_owned()];
    });
    let check = |changes: Value| world.refusal_of(&signer.token(&claims_with(&changes)));
    assert_eq!(check(json!({ "azp": "app" })), None);
    assert_eq!(check(json!({ "azp": "app", "client_id": "job" })), None);
    for refused in [
        json!({}),
        json!({ "azp": "other" }),
        json!({ "azp": "app", "client_id": "other" }),
        json!({ "azp": "" }),
    ] {
        assert_eq!(check(refused.clone()), Some(Refusal::Client), "{refused}");
    }
}

impl World {
    fn refusal_of(&self, token: &str) -> Option<Refusal> {
        self.check(token.as_bytes()).unwrap().err()
    }
}

#[test]
fn only_secure_settings_are_accepted() {
    struct WithTenants(bool);
    impl tokenweir_settings::KnownTenants for WithTenants {
        fn has_tenants(&self) -> bool {
            self.0
        }
    }
    let problem = |entry: Value, has_tenants: bool| {
        let config: JwtConfig = serde_json::from_value(json!({ "issuers": [entry] })).unwrap();
        let checked = <JwtConfig as tokenweir_settings::ConfigSection<WithTenants>>::check(
            &config,
            &WithTenants(has_tenants),
        );
        checked.err().map(|violation| violation.paths[0].clone())
    };
    let entry = |changes: Value| {
        let mut entry = json!({ "issuer": ISSUER, "audiences": ["tokenweir"] });
        entry
            .as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        entry
    };
    assert_eq!(problem(entry(json!({})), true), None);
    assert_eq!(
        problem(entry(json!({})), false).as_deref(),
        Some("jwt.issuers")
    );
    for (changes, path) in [
        (json!({ "audiences": [] }), "audiences"),
        (json!({ "audiences": ["tokenweir", ""] }), "audiences"),
        (json!({ "algorithms": [] }), "algorithms"),
        (json!({ "issuer": "" }), "issuer"),
        (json!({ "issuer": "issuer.test" }), "issuer"),
        (json!({ "issuer": "http://issuer.test" }), "issuer"),
        (
            json!({ "issuer": "http://localhost.issuer.test" }),
            "issuer",
        ),
        (
            json!({ "issuer": "http://127.0.0.1.issuer.test" }),
            "issuer",
        ),
        (json!({ "issuer": "https://user@issuer.test" }), "issuer"),
        (json!({ "issuer": "https://issuer.test?a=b" }), "issuer"),
        (json!({ "jwks_url": "file:///etc/passwd" }), "jwks_url"),
        (
            json!({ "jwks_url": "http://169.254.169.254/keys" }),
            "jwks_url",
        ),
        (json!({ "jwks_url": "https://issuer.test/a#b" }), "jwks_url"),
        (
            json!({ "jwks_url": "https://a/", "jwks_file": "b" }),
            "jwks_file",
        ),
        (json!({ "jwks_file": "" }), "jwks_file"),
    ] {
        let expected = format!("jwt.issuers.0.{path}");
        assert_eq!(
            problem(entry(changes.clone()), true),
            Some(expected),
            "{changes}"
        );
    }
    for url in [
        "http://127.0.0.1:1/k",
        "http://[::1]/k",
        "http://localhost/k",
        "https://a/k?b=c",
    ] {
        assert_eq!(
            problem(entry(json!({ "jwks_url": url })), true),
            None,
            "{url}"
        );
    }
    let shared_secret = entry(json!({ "algorithms": ["HS256"] }));
    assert!(serde_json::from_value::<JwtIssuerConfig>(shared_secret).is_err());
}
