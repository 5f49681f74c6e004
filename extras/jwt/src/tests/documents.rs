//! Tests with JWKS documents that are wrong by mistake or by attack.

use super::signer::{Signer, encode};
use super::{World, claims, jwks};
use crate::Refusal;
use crate::issuer::KeySet;
use crate::signature::Algorithm;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

fn key_count(json: &[u8]) -> Result<usize, String> {
    KeySet::parse(json).map(|keys| keys.len())
}

fn changed(signer: &Signer, changes: &Value) -> Value {
    let mut jwk = signer.jwk.clone();
    for (name, value) in changes.as_object().unwrap() {
        jwk[name] = value.clone();
    }
    json!({ "keys": [jwk] })
}

#[test]
fn unusable_documents_are_refused() {
    let signer = Signer::new(Algorithm::ES256);
    for (name, document) in [
        ("empty", String::new()),
        ("page", "<html>".to_owned()),
        ("list", "[]".to_owned()),
        ("no keys", "{}".to_owned()),
        ("keys object", json!({ "keys": signer.jwk }).to_string()),
        (
            "10,000 keys",
            json!({ "keys": vec![&signer.jwk; 10_000] }).to_string(),
        ),
        ("101 keys", json!({ "keys": vec![1; 101] }).to_string()),
        ("1 MiB", format!("{{\"keys\":[]{}}}", " ".repeat(1 << 20))),
        ("deep", format!("{{\"keys\":{}", "[".repeat(10_000))),
        ("cut", jwks(&[&signer]).to_string()[..90].to_owned()),
    ] {
        assert!(key_count(document.as_bytes()).is_err(), "{name}");
    }
}

#[test]
fn unusable_keys_are_left_out() {
    let ec = Signer::new(Algorithm::ES256);
    let rsa = Signer::new(Algorithm::RS256);
    let ed = Signer::new(Algorithm::EdDSA);
    let weak: Value = serde_json::from_str(include_str!("weak_rsa.json")).unwrap();
    for (name, document) in [
        (
            "shared secret",
            json!({ "keys": [{ "kty": "oct", "k": "AAAA", "alg": "HS256" }] }),
        ),
        ("for encryption", changed(&ec, &json!({ "use": "enc" }))),
        (
            "for signing only",
            changed(&ec, &json!({ "key_ops": ["sign"] })),
        ),
        ("algorithm none", changed(&ec, &json!({ "alg": "none" }))),
        ("algorithm HS256", changed(&ec, &json!({ "alg": "HS256" }))),
        (
            "algorithm of another kind",
            changed(&ec, &json!({ "alg": "RS256" })),
        ),
        (
            "curve of another length",
            changed(&ec, &json!({ "crv": "P-384", "alg": "ES384" })),
        ),
        (
            "unknown curve",
            changed(&ec, &json!({ "crv": "secp256k1" })),
        ),
        (
            "short coordinate",
            changed(&ec, &json!({ "x": encode([1; 31]) })),
        ),
        (
            "id of another type",
            changed(&ec, &json!({ "kid": { "a": 1 } })),
        ),
        (
            "short Ed25519 key",
            changed(&ed, &json!({ "x": encode([1; 31]) })),
        ),
        ("X25519", changed(&ed, &json!({ "crv": "X25519" }))),
        ("RSA of 1,024 bits", json!({ "keys": [weak["key"]] })),
        (
            "RSA of zeros",
            changed(&rsa, &json!({ "n": encode([0; 256]) })),
        ),
        (
            "RSA of 2,041 bits",
            changed(
                &rsa,
                &json!({ "n": encode([&[1][..], &[3; 255]].concat()) }),
            ),
        ),
        (
            "RSA of 16,384 bits",
            changed(&rsa, &json!({ "n": encode([255; 2_048]) })),
        ),
        ("RSA without exponent", changed(&rsa, &json!({ "e": "" }))),
        (
            "certificate only",
            json!({ "keys": [{ "kty": "RSA", "kid": "a", "x5c": ["MIIB"] }] }),
        ),
        (
            "one id for two keys",
            jwks(&[&ec, &Signer::new(Algorithm::ES256)]),
        ),
        ("numbers", json!({ "keys": [1, null, "a", []] })),
    ] {
        assert_eq!(key_count(document.to_string().as_bytes()), Ok(0), "{name}");
    }
    let modulus = URL_SAFE_NO_PAD.decode(rsa.jwk["n"].as_str().unwrap());
    let padded = [&[0, 0][..], &modulus.unwrap()].concat();
    let document = changed(&rsa, &json!({ "n": encode(padded) }));
    assert_eq!(key_count(document.to_string().as_bytes()), Ok(1));
}

#[tokio::test]
async fn signatures_of_unusable_keys_are_refused() {
    let weak: Value = serde_json::from_str(include_str!("weak_rsa.json")).unwrap();
    let world = World::new("weak", &json!({ "keys": [weak["key"]] }));
    let token = weak["token"].as_str().unwrap();
    assert_eq!(world.refusal(token.as_bytes()), Some(Refusal::UnknownKey));

    // A point that is not on the curve, and an exponent of 1: every message would be a valid signature of
    // itself.
    let ec = Signer::new(Algorithm::ES256);
    let world = World::new("point", &changed(&ec, &json!({ "x": encode([1; 32]) })));
    let refusal = world.refusal(ec.token(&claims()).as_bytes());
    assert_eq!(refusal, Some(Refusal::Signature));
    let rsa = Signer::new(Algorithm::RS256);
    let world = World::new("exponent", &changed(&rsa, &json!({ "e": encode([1]) })));
    let refusal = world.refusal(rsa.token(&claims()).as_bytes());
    assert_eq!(refusal, Some(Refusal::Signature));
}

#[tokio::test]
async fn a_key_without_id_serves_tokens_without_id() {
    let ec = Signer::new(Algorithm::ES256);
    let mut jwk = ec.jwk.clone();
    jwk.as_object_mut().unwrap().remove("kid");
    let world = World::new("no-id", &json!({ "keys": [jwk] }));
    let unnamed = ec.with_header(&json!({ "alg": "ES256" }), &claims());
    world.accept(&unnamed);
    let named = ec.token(&claims());
    assert_eq!(world.refusal(named.as_bytes()), Some(Refusal::UnknownKey));
    let two = World::new(
        "two",
        &jwks(&[&ec, &Signer::with_id(Algorithm::ES256, "b")]),
    );
    assert_eq!(two.refusal(unnamed.as_bytes()), Some(Refusal::UnknownKey));
    two.accept(&named);
}

#[tokio::test]
async fn only_listed_algorithms_are_accepted() {
    let rsa = Signer::new(Algorithm::RS256);
    let world = World::with_settings("listed", &jwks(&[&rsa]), |issuer| {
        issuer.algorithms = vec![Algorithm::PS256, Algorithm::ES256];
    });
    let refusal = world.refusal(rsa.token(&claims()).as_bytes());
    assert_eq!(refusal, Some(Refusal::Algorithm));
}
