//! Tests with tokens and requests of attackers. All of them must be refused.

use super::signer::{Signer, encode};
use super::{NOW, World, claims, claims_with, jwks};
use crate::Refusal;
use crate::signature::Algorithm;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use ring::hmac;
use serde_json::{Value, json};
use tokenweir_request::access::TokenSource;

struct Attack {
    name: &'static str,
    token: Vec<u8>,
    /// The expected refusal. `None`: the text does not look like a token, so it is only looked up among the API
    /// keys.
    expected: Option<Refusal>,
}

struct Signers {
    rsa: Signer,
    ec: Signer,
    ed: Signer,
    foreign: Signer,
}

impl Signers {
    fn new() -> Self {
        Self {
            rsa: Signer::new(Algorithm::RS256),
            ec: Signer::new(Algorithm::ES256),
            ed: Signer::new(Algorithm::EdDSA),
            foreign: Signer::with_id(Algorithm::ES256, "ES256"),
        }
    }

    fn world(&self, name: &str) -> World {
        World::with_settings(name, &jwks(&[&self.rsa, &self.ec, &self.ed]), |issuer| {
            issuer.clients = vec!["app".to_owned()];
            issuer.claims.tier = Some("tier".to_owned());
        })
    }
}

fn valid_claims() -> Value {
    claims_with(&json!({ "azp": "app" }))
}

fn attack(name: &'static str, expected: Option<Refusal>, token: impl Into<Vec<u8>>) -> Attack {
    Attack {
        name,
        token: token.into(),
        expected,
    }
}

/// Signs with HMAC as if the public key was a shared secret.
fn hmac_token(header: &Value, secret: &[u8]) -> String {
    let message = format!(
        "{}.{}",
        encode(header.to_string()),
        encode(valid_claims().to_string())
    );
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let signature = encode(hmac::sign(&key, message.as_bytes()));
    format!("{message}.{signature}")
}

fn unsigned(header: &Value) -> String {
    format!(
        "{}.{}.",
        encode(header.to_string()),
        encode(valid_claims().to_string())
    )
}

/// Changes of the header of a valid token: the reason of the refusal, the member, and its JSON. `-`: the member
/// is absent.
const HEADERS: &str = r#"
algorithm    alg  "none"
algorithm    alg  "None"
algorithm    alg  ""
algorithm    alg  "es256"
algorithm    alg  "HS256"
algorithm    alg  "RS256"
algorithm    alg  "EdDSA"
algorithm    alg  "ES384"
algorithm    alg  "ES256K"
malformed    alg  -
malformed    alg  null
malformed    alg  ["ES256"]
malformed    alg  "none","alg":"ES256"
unknown_key  kid  ""
unknown_key  kid  "../../../../dev/null"
unknown_key  kid  "file:///etc/passwd"
unknown_key  kid  "x' UNION SELECT 'ES256"
unknown_key  kid  "ES256\u0000"
unknown_key  kid  "ES256|id"
unknown_key  kid  "ES\u200b256"
algorithm    kid  "RS256"
algorithm    kid  "EdDSA"
malformed    kid  1
malformed    kid  ["ES256"]
malformed    kid  "none","kid":"ES256"
malformed    crit ["exp"]
malformed    crit []
malformed    crit ["b64"],"b64":false
malformed    b64  false
malformed    typ  "logout+jwt"
malformed    typ  "JWE"
malformed    typ  7
malformed    x    tru
"#;

/// Header members that contain or name a key. The tokens are signed with this key.
const BROUGHT_KEYS: &str = r#"
signature    jku  "http://169.254.169.254/keys"
signature    x5u  "https://evil.test/certificate"
signature    x5c  ["MIIB"]
signature    x5t  "AAAA"
"#;

/// Changes of the claims of a valid token, as for the header. The present time is 1800000000.
const CLAIMS: &str = r#"
issuer        iss  "https://evil.test"
issuer        iss  "https://issuer.test/"
issuer        iss  "HTTPS://ISSUER.TEST"
issuer        iss  "https://issuer.test\u0000"
malformed     iss  ["https://issuer.test","https://evil.test"]
malformed     iss  "https://evil.test","iss":"https://issuer.test"
malformed     iss  -
audience      aud  "other"
audience      aud  "tokenweir-2"
audience      aud  "tokenweir other"
audience      aud  ["other","another"]
audience      aud  []
malformed     aud  [["tokenweir"]]
malformed     aud  ["tokenweir",1]
malformed     aud  {"tokenweir":1}
malformed     aud  1
malformed     aud  null
malformed     aud  -
client        azp  "other"
client        azp  "app","client_id":"other"
client        azp  -
malformed     azp  ["app"]
expired       exp  1799999939
expired       exp  0
expired       exp  18446744073709551615
malformed     exp  18446744073709551616
malformed     exp  1e999
malformed     exp  1900000000.5
malformed     exp  -1
malformed     exp  "1900000000"
malformed     exp  true
malformed     exp  null
malformed     exp  1800000600,"exp":1800000601
malformed     exp  -
not_yet_valid nbf  1800000061
not_yet_valid nbf  18446744073709551615
malformed     nbf  "0"
malformed     nbf  -1
not_yet_valid iat  1800000061
malformed     iat  "now"
malformed     sub  ["a"]
malformed     sub  "\ud800"
tenant        tenant "root"
claims        tenant ["a"]
tenant        tenant "A"
tenant        tenant -
claims        tier "root"
claims        tier 1
"#;

/// The JSON of `members` with the change that a line of a table has after its first word.
fn change(members: &Value, line: &str) -> String {
    let (name, value) = line.split_once(' ').unwrap();
    let mut texts = vec![format!("\"{name}\":{}", value.trim())];
    if value.trim() == "-" {
        texts.clear();
    }
    for (other, value) in members.as_object().unwrap() {
        if other != name {
            texts.push(format!("\"{other}\":{value}"));
        }
    }
    format!("{{{}}}", texts.join(","))
}

fn table(lines: &'static str, make: impl Fn(&str) -> String) -> Vec<Attack> {
    let attack_of = |line: &'static str| {
        let (reason, change) = line.split_once(' ').unwrap();
        let mut reasons = Refusal::ALL.into_iter();
        let expected = reasons.find(|refusal| refusal.as_str() == reason);
        assert!(expected.is_some(), "{line}");
        attack(line, expected, make(change.trim()))
    };
    lines.trim().lines().map(attack_of).collect()
}

fn header_attacks(signers: &Signers) -> Vec<Attack> {
    let header = json!({ "alg": "ES256", "kid": "ES256" });
    let claims = valid_claims().to_string();
    let sign = |signer: &Signer, line: &str| signer.with_texts(&change(&header, line), &claims);
    let mut attacks = table(HEADERS, |line| sign(&signers.ec, line));
    attacks.extend(table(BROUGHT_KEYS, |line| sign(&signers.foreign, line)));
    let own = format!("jwk {}", signers.foreign.jwk);
    let signature = Some(Refusal::Signature);
    attacks.push(attack("jwk", signature, sign(&signers.foreign, &own)));
    let long = format!("kid \"{}\"", "k".repeat(8_000));
    attacks.push(attack(
        "kid long",
        Some(Refusal::UnknownKey),
        sign(&signers.ec, &long),
    ));
    let deep = format!("x {}", "[".repeat(5_000));
    attacks.push(attack(
        "deep",
        Some(Refusal::Malformed),
        sign(&signers.ec, &deep),
    ));
    attacks
}

fn confusions(signers: &Signers) -> Vec<Attack> {
    let modulus = signers.rsa.jwk["n"].as_str().unwrap().as_bytes();
    let jwk = signers.rsa.jwk.to_string();
    let rsa = |algorithm: &str| json!({ "alg": algorithm, "kid": "RS256" });
    let by_rsa = |algorithm: &str| signers.rsa.with_header(&rsa(algorithm), &valid_claims());
    let algorithm = Some(Refusal::Algorithm);
    let signature = Some(Refusal::Signature);
    vec![
        attack(
            "HMAC with the modulus",
            algorithm,
            hmac_token(&rsa("HS256"), modulus),
        ),
        attack(
            "HMAC with the JWK",
            algorithm,
            hmac_token(&rsa("HS256"), jwk.as_bytes()),
        ),
        attack(
            "HMAC as RS256",
            signature,
            hmac_token(&rsa("RS256"), modulus),
        ),
        attack("RSA key for ES256", algorithm, by_rsa("ES256")),
        attack("key of RS256 for PS256", algorithm, by_rsa("PS256")),
        attack(
            "foreign key",
            signature,
            signers.foreign.token(&valid_claims()),
        ),
        attack("none without signature", algorithm, unsigned(&rsa("none"))),
        attack(
            "RS256 without signature",
            signature,
            unsigned(&rsa("RS256")),
        ),
    ]
}

fn claim_attacks(signers: &Signers) -> Vec<Attack> {
    let header = r#"{"alg":"ES256","kid":"ES256"}"#;
    let sign = |claims: &str| signers.ec.with_texts(header, claims);
    let mut attacks = table(CLAIMS, |line| sign(&change(&valid_claims(), line)));
    let nested = signers.ec.token(&valid_claims());
    let twice = valid_claims().to_string().repeat(2);
    for claims in ["[]", "null", "iss=a", "{\"iss\":", &twice, &nested] {
        attacks.push(attack("no claims", Some(Refusal::Malformed), sign(claims)));
    }
    for header in ["[\"ES256\"]", "7", ""] {
        let token = signers.ec.with_texts(header, &valid_claims().to_string());
        attacks.push(attack("no header", None, token));
    }
    attacks
}

fn text_attacks(signers: &Signers) -> Vec<Attack> {
    use Refusal::{Malformed, Signature};
    let valid = signers.ec.token(&valid_claims());
    let (message, signature) = valid.rsplit_once('.').unwrap();
    let (header, payload) = message.split_once('.').unwrap();
    let other = claims().to_string();
    let signed = |bytes: &[u8]| format!("{message}.{}", encode(bytes));
    let bytes = signers.ec.sign(message.as_bytes());
    let mut der = vec![0x30, 0x44, 0x02, 0x20];
    der.extend(&bytes);
    let last = valid.chars().last().unwrap();
    // The last character of 64 bytes has 4 unused bits, which must be 0.
    let malleable = format!(
        "{}{}",
        &valid[..valid.len() - 1],
        char::from(last as u8 + 1)
    );
    let mut flipped = bytes.clone();
    flipped[10] ^= 1;
    vec![
        attack("signature of zeros", Some(Signature), signed(&[0; 64])),
        attack("signature short", Some(Signature), signed(&bytes[..63])),
        attack(
            "signature long",
            Some(Signature),
            signed(&[bytes.as_slice(), &[0]].concat()),
        ),
        attack("signature half", Some(Signature), signed(&bytes[..32])),
        attack("signature in DER", Some(Signature), signed(&der)),
        attack("signature flipped", Some(Signature), signed(&flipped)),
        attack("signature empty", Some(Signature), format!("{message}.")),
        attack("signature with other bits", Some(Malformed), malleable),
        attack(
            "claims exchanged",
            Some(Signature),
            format!("{header}.{}.{signature}", encode(other)),
        ),
        attack("trailing dot", None, format!("{valid}.")),
        attack("leading dot", None, format!(".{valid}")),
        attack("four parts", None, format!("{valid}.{signature}")),
        attack(
            "five parts",
            None,
            format!("{header}.{payload}.{payload}.{payload}.{signature}"),
        ),
        attack("two parts", None, message),
        attack("no header", None, format!(".{payload}.{signature}")),
        attack(
            "no claims",
            Some(Malformed),
            format!("{header}..{signature}"),
        ),
        attack(
            "padding",
            Some(Malformed),
            format!("{message}.{signature}=="),
        ),
        attack(
            "padded claims",
            Some(Malformed),
            format!("{header}.{payload}=.{signature}"),
        ),
        attack(
            "space inside",
            Some(Malformed),
            format!("{header}. {payload}.{signature}"),
        ),
        attack(
            "line break",
            Some(Malformed),
            format!("{header}.{payload}\n.{signature}"),
        ),
        attack(
            "base64 of other characters",
            Some(Malformed),
            format!("{header}.{payload}+/.{signature}"),
        ),
        attack(
            "not UTF-8",
            Some(Malformed),
            [valid.as_bytes(), &[0xff]].concat(),
        ),
        attack(
            "full-width letters",
            Some(Malformed),
            format!("{header}.{payload}Ａ.{signature}"),
        ),
        attack(
            "1 MiB",
            Some(Malformed),
            format!("{header}.{}.{signature}", "A".repeat(1 << 20)),
        ),
        attack("1 MiB of key", None, "sk-".repeat(350_000)),
        attack("bearer twice", None, format!("Bearer {valid}")),
        attack("comma", Some(Malformed), format!("{valid},{}", "sk-tw")),
        attack("query", None, format!("?access_token={valid}")),
    ]
}

#[tokio::test]
async fn no_attack_is_accepted() {
    let signers = Signers::new();
    let world = signers.world("attacks");
    let mut attacks = header_attacks(&signers);
    attacks.extend(confusions(&signers));
    attacks.extend(claim_attacks(&signers));
    attacks.extend(text_attacks(&signers));
    assert!(attacks.len() >= 100, "{}", attacks.len());
    // A valid token with the same claims is accepted before and after the attacks.
    world.accept(&signers.ec.token(&valid_claims()));
    for Attack {
        name,
        token,
        expected,
    } in &attacks
    {
        for time in ["first", "second"] {
            let refusal = world.check(token).map(Result::err);
            assert_eq!(refusal, expected.map(Some), "{name}, {time} time");
        }
    }
    world.accept(&signers.rsa.token(&valid_claims()));
}

#[tokio::test]
async fn only_one_token_in_the_header_counts() {
    let signers = Signers::new();
    let world = signers.world("headers");
    let token = signers.ec.token(&valid_claims());
    let send = |values: &[(http::HeaderName, String)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(name, value.parse().unwrap());
        }
        let now = super::at(NOW);
        let result = world.verifier.authenticate(&headers, &world.keys, now);
        result.map(|result| result.map(drop).map_err(|refusal| refusal.reason))
    };
    let x_api_key = || http::HeaderName::from_static("x-api-key");
    // The authentication scheme is case-insensitive (RFC 9110).
    for scheme in ["Bearer ", "bearer ", "BEARER   "] {
        let accepted = send(&[(AUTHORIZATION, format!("{scheme}{token}"))]);
        assert_eq!(accepted, Some(Ok(())), "{scheme}");
    }
    assert_eq!(send(&[(x_api_key(), token.clone())]), Some(Ok(())));
    let valid = (AUTHORIZATION, format!("Bearer {token}"));
    assert_eq!(
        send(&[valid.clone(), valid.clone()]),
        Some(Err("malformed"))
    );
    let key = (AUTHORIZATION, "Bearer sk-tw-1".to_owned());
    assert_eq!(send(&[valid.clone(), key.clone()]), Some(Err("malformed")));
    for other in [
        vec![key, valid],
        vec![],
        vec![(AUTHORIZATION, token.clone())],
        vec![(AUTHORIZATION, format!("Basic {token}"))],
        vec![(AUTHORIZATION, format!("Bearer{token}"))],
        vec![(http::header::COOKIE, format!("access_token={token}"))],
    ] {
        assert_eq!(send(&other), None, "{other:?}");
    }
    let counts = world.verifier.refusals.list();
    assert!(counts.contains(&("malformed", 2)), "{counts:?}");
}
