//! The public keys of an issuer as a JSON Web Key Set (JWKS, RFC 7517).

use crate::refusal::Refusal;
use crate::signature::{Algorithm, PublicKey};
use crate::token::Token;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The public keys of an issuer for checking signatures.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySet(Vec<PublicKey>);

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

/// Maximum length of a document of an issuer, in bytes.
pub(super) const MAX_DOCUMENT_BYTES: usize = 256 << 10;
/// Maximum number of keys of an issuer.
const MAX_KEYS: usize = 100;

impl KeySet {
    /// Reads a JWKS document. Keys of unsupported kinds, weak keys, and keys that share an id are ignored.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, String> {
        if json.len() > MAX_DOCUMENT_BYTES {
            return Err(format!("it has more than {MAX_DOCUMENT_BYTES} bytes"));
        }
        let document: Document<'_> = serde_json::from_slice(json)
            .map_err(|error| format!("this is no JWKS: line {}", error.line()))?;
        if document.keys.len() > MAX_KEYS {
            return Err(format!("it has more than {MAX_KEYS} keys"));
        }
        let parsed = document.keys.iter().map(|key| PublicKey::parse(key.get()));
        let keys: Vec<PublicKey> = parsed.flatten().collect();
        let is_unique = |key: &&PublicKey| {
            let same = keys.iter().filter(|other| key.is_ambiguous_with(other));
            same.count() <= 1
        };
        Ok(Self(keys.iter().filter(is_unique).cloned().collect()))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Checks the signature of a token with the key that the token names, or with the only key for its
    /// algorithm. The algorithm must fit the key and be in `allowed`, so the token alone never chooses it.
    pub(super) fn check_signature(
        &self,
        token: &Token<'_>,
        allowed: &[Algorithm],
    ) -> Result<(), Refusal> {
        if !allowed.contains(&token.algorithm) {
            return Err(Refusal::Algorithm);
        }
        let named = |key: &&PublicKey| token.key_id.is_none() || token.key_id == key.id;
        if !self.0.iter().any(|key| named(&key)) {
            return Err(Refusal::UnknownKey);
        }
        let mut usable = self.0.iter().filter(named);
        let key = usable.find(|key| key.has(token.algorithm));
        let key = key.ok_or(Refusal::Algorithm)?;
        if usable.any(|other| other.has(token.algorithm)) {
            return Err(Refusal::UnknownKey);
        }
        if key.verify(token.algorithm, token.message, &token.signature) {
            Ok(())
        } else {
            Err(Refusal::Signature)
        }
    }
}
