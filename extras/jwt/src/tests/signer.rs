//! Signs the tokens of tests.

use crate::signature::Algorithm;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{self as scheme, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair};
use serde_json::{Value, json};

/// The private key of an issuer, with its public key as JWK.
pub(super) struct Signer {
    pub(super) id: String,
    pub(super) algorithm: Algorithm,
    pub(super) jwk: Value,
    key: PrivateKey,
}

enum PrivateKey {
    Rsa(RsaKeyPair),
    Ecdsa(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

pub(super) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    /// A key that is used for one algorithm. Its id is the name of the algorithm.
    pub(super) fn new(algorithm: Algorithm) -> Self {
        Self::with_id(algorithm, &format!("{algorithm:?}"))
    }

    pub(super) fn with_id(algorithm: Algorithm, id: &str) -> Self {
        let random = SystemRandom::new();
        let ecdsa = |kind: &'static scheme::EcdsaSigningAlgorithm| {
            let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
            EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap()
        };
        let key = match algorithm {
            Algorithm::ES256 => PrivateKey::Ecdsa(ecdsa(&scheme::ECDSA_P256_SHA256_FIXED_SIGNING)),
            Algorithm::ES384 => PrivateKey::Ecdsa(ecdsa(&scheme::ECDSA_P384_SHA384_FIXED_SIGNING)),
            Algorithm::EdDSA => {
                let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
                PrivateKey::Ed(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
            }
            _ => {
                let text = include_str!("rsa_2048.txt").replace('\n', "");
                let der = STANDARD.decode(text).unwrap();
                PrivateKey::Rsa(RsaKeyPair::from_der(&der).unwrap())
            }
        };
        let mut jwk = match &key {
            PrivateKey::Rsa(key) => {
                let public: scheme::RsaPublicKeyComponents<Vec<u8>> = key.public().into();
                json!({ "kty": "RSA", "n": encode(public.n), "e": encode(public.e) })
            }
            PrivateKey::Ecdsa(key) => {
                let point = &key.public_key().as_ref()[1..];
                let half = point.len() / 2;
                let curve = if half == 32 { "P-256" } else { "P-384" };
                let [x, y] = [&point[..half], &point[half..]].map(encode);
                json!({ "kty": "EC", "crv": curve, "x": x, "y": y })
            }
            PrivateKey::Ed(key) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(key.public_key()) })
            }
        };
        jwk["kid"] = id.into();
        jwk["alg"] = json!(algorithm);
        jwk["use"] = "sig".into();
        Self {
            id: id.to_owned(),
            algorithm,
            jwk,
            key,
        }
    }

    pub(super) fn token(&self, claims: &Value) -> String {
        let header = json!({ "alg": self.algorithm, "kid": self.id, "typ": "JWT" });
        self.with_header(&header, claims)
    }

    pub(super) fn with_header(&self, header: &Value, claims: &Value) -> String {
        self.with_texts(&header.to_string(), &claims.to_string())
    }

    /// A signed token with a header and claims that need not be valid JSON.
    pub(super) fn with_texts(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", encode(header), encode(claims));
        let signature = encode(self.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }

    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.key {
            PrivateKey::Rsa(key) => {
                let padding: &dyn scheme::RsaEncoding = match self.algorithm {
                    Algorithm::RS256 => &scheme::RSA_PKCS1_SHA256,
                    Algorithm::RS384 => &scheme::RSA_PKCS1_SHA384,
                    Algorithm::RS512 => &scheme::RSA_PKCS1_SHA512,
                    Algorithm::PS256 => &scheme::RSA_PSS_SHA256,
                    Algorithm::PS384 => &scheme::RSA_PSS_SHA384,
                    _ => &scheme::RSA_PSS_SHA512,
                };
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(padding, &random, message, &mut signature).unwrap();
                signature
            }
            PrivateKey::Ecdsa(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            PrivateKey::Ed(key) => key.sign(message).as_ref().to_vec(),
        }
    }
}
