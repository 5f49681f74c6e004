//! SHA-256 digests of API keys and secrets. The gateway stores only digests, never the keys.

use ring::digest;
use serde::de::{Deserialize, Deserializer, Error};
use std::fmt;
use subtle::ConstantTimeEq;

/// SHA-256 of a key or a secret, written as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyDigest([u8; 32]);

/// Prefix of a digest in text form.
const DIGEST_PREFIX: &str = "sha256:";

/// The prefix of generated keys, which people and secret scanners recognize.
const KEY_PREFIX: &str = "sk-tw-";

const INVALID_DIGEST_MESSAGE: &str =
    "this is not the hash of a key; use a sha256: hash from tokenweir keygen";

/// Formats a new API key from random bytes. `random` must come from a cryptographic random number
/// generator.
pub fn mint(random: [u8; 32]) -> String {
    format!("{KEY_PREFIX}{}", hex::encode(random))
}

impl KeyDigest {
    /// The SHA-256 of the bytes of a key.
    pub fn from_key(key: &[u8]) -> Self {
        let digest = digest::digest(&digest::SHA256, key);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Self(bytes)
    }

    /// Compares two digests in constant time.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// First 64 bits of the digest, as a hash table key. These bits reveal nothing about the API key.
    pub fn lookup_hash(&self) -> u64 {
        let mut first_bytes = [0; 8];
        first_bytes.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(first_bytes)
    }

    /// The 32 bytes of the digest, as a key for another algorithm.
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text.strip_prefix(DIGEST_PREFIX)?, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{DIGEST_PREFIX}{}", hex::encode(self.0))
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[digest]")
    }
}

impl<'de> Deserialize<'de> for KeyDigest {
    /// The error message must not quote the value, because an operator may have entered the key itself instead
    /// of its hash.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text =
            String::deserialize(from).map_err(|_| D::Error::custom(INVALID_DIGEST_MESSAGE))?;
        Self::parse(&text).ok_or_else(|| D::Error::custom(INVALID_DIGEST_MESSAGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of `abc` from FIPS 180-2, appendix B.1.
    const DIGEST_OF_ABC: &str =
        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_is_the_sha256_of_the_key() {
        assert_eq!(KeyDigest::from_key(b"abc").to_string(), DIGEST_OF_ABC);
        assert!(
            KeyDigest::parse(DIGEST_OF_ABC)
                .unwrap()
                .is_same(&KeyDigest::from_key(b"abc"))
        );
        assert!(KeyDigest::parse(&DIGEST_OF_ABC.to_uppercase().replace("SHA", "sha")).is_some());
    }

    #[test]
    fn only_a_complete_sha256_hash_is_parsed() {
        for text in [
            "",
            "sha256:",
            "sk-tw-123",
            &DIGEST_OF_ABC[..DIGEST_OF_ABC.len() - 1],
            &format!("{DIGEST_OF_ABC}0"),
            &DIGEST_OF_ABC.replace('b', "g"),
            &DIGEST_OF_ABC.replace("sha256", "sha512"),
            &DIGEST_OF_ABC.replacen("ba", "+a", 1),
        ] {
            assert_eq!(KeyDigest::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_generated_key_contains_all_random_bits() {
        let key = mint(std::array::from_fn(|index| index as u8));
        assert!(
            key.starts_with("sk-tw-000102030405") && key.ends_with("1e1f"),
            "{key}"
        );
        assert_eq!(key.len(), 6 + 64);
    }
}
