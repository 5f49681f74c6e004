//! Public keys of issuers (JWK, RFC 7517) and the signatures that they check (JWA, RFC 7518).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self as scheme, RsaPublicKeyComponents, UnparsedPublicKey};
use schemars::JsonSchema;
use serde::Deserialize;
use tokenweir_protocol::named_enum;

named_enum! {
    /// An algorithm of a signature with a public key. Algorithms with a shared secret do not exist here.
    #[derive(Deserialize, JsonSchema)]
    pub enum Algorithm {
        RS256 = "RS256",
        RS384 = "RS384",
        RS512 = "RS512",
        PS256 = "PS256",
        PS384 = "PS384",
        PS512 = "PS512",
        ES256 = "ES256",
        ES384 = "ES384",
        EdDSA = "EdDSA",
    }
}

/// The kind of a key. A key and a signature must have the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublicKey {
    /// `None`: the issuer gives it no id.
    pub(super) id: Option<String>,
    kind: KeyKind,
    /// The only algorithm for which the issuer uses the key. `None`: each algorithm of its kind.
    algorithm: Option<Algorithm>,
    /// The modulus of an RSA key, otherwise the point.
    bytes: Vec<u8>,
    /// The exponent of an RSA key, otherwise empty.
    exponent: Vec<u8>,
}

/// A key in the document of an issuer. Further members are ignored.
#[derive(Deserialize)]
struct Jwk<'a> {
    kty: &'a str,
    #[serde(rename = "use")]
    usage: Option<&'a str>,
    key_ops: Option<Vec<&'a str>>,
    alg: Option<&'a str>,
    kid: Option<String>,
    crv: Option<&'a str>,
    n: Option<&'a str>,
    e: Option<&'a str>,
    x: Option<&'a str>,
    y: Option<&'a str>,
}

/// Accepted lengths of RSA keys, in bits. Shorter keys can be factored. Signatures of longer keys take long to
/// check.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

impl Algorithm {
    /// The algorithm of this name in a header. `None`: none of these, such as `none` and `HS256`.
    pub(super) fn parse(name: &str) -> Option<Self> {
        // RFC 9864 names the curve.
        if name == "Ed25519" {
            return Some(Self::EdDSA);
        }
        serde_json::from_value(name.into()).ok()
    }

    fn kind(self) -> KeyKind {
        match self {
            Self::ES256 => KeyKind::P256,
            Self::ES384 => KeyKind::P384,
            Self::EdDSA => KeyKind::Ed25519,
            _ => KeyKind::Rsa,
        }
    }
}

impl PublicKey {
    /// Reads a key. `None`: the key is not one of these kinds, is weak, or is not for signatures.
    pub(super) fn parse(json: &str) -> Option<Self> {
        let jwk: Jwk<'_> = serde_json::from_str(json).ok()?;
        let is_for_signatures = jwk.usage.is_none_or(|usage| usage == "sig")
            && jwk
                .key_ops
                .as_ref()
                .is_none_or(|uses| uses.contains(&"verify"));
        let kind = jwk.kind()?;
        let algorithm = match jwk.alg {
            Some(name) => Some(Algorithm::parse(name)?),
            None => None,
        };
        if !is_for_signatures || algorithm.is_some_and(|algorithm| algorithm.kind() != kind) {
            return None;
        }
        let bytes = match kind {
            KeyKind::Rsa => unsigned(jwk.n?)?,
            KeyKind::P256 => jwk.point(32)?,
            KeyKind::P384 => jwk.point(48)?,
            KeyKind::Ed25519 => coordinate(jwk.x?, 32)?,
        };
        let mut exponent = Vec::new();
        if kind == KeyKind::Rsa {
            exponent = unsigned(jwk.e?)?;
            let unused_bits = bytes.first()?.leading_zeros() as usize;
            if !RSA_BITS.contains(&(bytes.len() * 8 - unused_bits)) {
                return None;
            }
        }
        Some(Self {
            id: jwk.kid,
            kind,
            algorithm,
            bytes,
            exponent,
        })
    }

    pub(super) fn has(&self, algorithm: Algorithm) -> bool {
        algorithm.kind() == self.kind && self.algorithm.is_none_or(|own| own == algorithm)
    }

    /// Whether both keys have one id and kind, so that a token cannot name one of them.
    pub(super) fn is_ambiguous_with(&self, other: &Self) -> bool {
        self.id.is_some() && self.id == other.id && self.kind == other.kind
    }

    pub(super) fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let parameters = match algorithm {
            Algorithm::RS256 => &scheme::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::RS384 => &scheme::RSA_PKCS1_2048_8192_SHA384,
            Algorithm::RS512 => &scheme::RSA_PKCS1_2048_8192_SHA512,
            Algorithm::PS256 => &scheme::RSA_PSS_2048_8192_SHA256,
            Algorithm::PS384 => &scheme::RSA_PSS_2048_8192_SHA384,
            Algorithm::PS512 => &scheme::RSA_PSS_2048_8192_SHA512,
            Algorithm::ES256 => {
                return self.verify_point(&scheme::ECDSA_P256_SHA256_FIXED, message, signature);
            }
            Algorithm::ES384 => {
                return self.verify_point(&scheme::ECDSA_P384_SHA384_FIXED, message, signature);
            }
            Algorithm::EdDSA => return self.verify_point(&scheme::ED25519, message, signature),
        };
        let key = RsaPublicKeyComponents {
            n: &self.bytes,
            e: &self.exponent,
        };
        key.verify(parameters, message, signature).is_ok()
    }

    fn verify_point(
        &self,
        algorithm: &'static dyn scheme::VerificationAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let key = UnparsedPublicKey::new(algorithm, &self.bytes);
        key.verify(message, signature).is_ok()
    }
}

impl Jwk<'_> {
    fn kind(&self) -> Option<KeyKind> {
        match (self.kty, self.crv) {
            ("RSA", _) => Some(KeyKind::Rsa),
            ("EC", Some("P-256")) => Some(KeyKind::P256),
            ("EC", Some("P-384")) => Some(KeyKind::P384),
            ("OKP", Some("Ed25519")) => Some(KeyKind::Ed25519),
            _ => None,
        }
    }

    /// The uncompressed point of an elliptic curve (SEC 1, 2.3.3).
    fn point(&self, length: usize) -> Option<Vec<u8>> {
        let mut point = vec![4];
        point.extend(coordinate(self.x?, length)?);
        point.extend(coordinate(self.y?, length)?);
        Some(point)
    }
}

fn coordinate(text: &str, length: usize) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    (bytes.len() == length).then_some(bytes)
}

/// A big-endian number without the zeros before it, which some issuers write.
fn unsigned(text: &str) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let first = bytes.iter().position(|byte| *byte != 0)?;
    Some(bytes[first..].to_vec())
}
