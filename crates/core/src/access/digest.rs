//! What is kept of a key: its SHA-256, and never the key itself.

use serde::de::{Deserialize, Deserializer, Error};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// The SHA-256 of a key, written as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyDigest([u8; 32]);

const PREFIX: &str = "sha256:";

/// How a new key begins, so that people and scanners know one when they see it.
const KEY_PREFIX: &str = "sk-tw-";

const NOT_A_HASH: &str =
    "this is not the hash of a key; `tokenweir key` prints one, as sha256:, and 64 digits";

/// A new key, made of 256 bits that must be random.
pub fn mint(random: [u8; 32]) -> String {
    format!("{KEY_PREFIX}{}", hexadecimal(&random))
}

// === impl KeyDigest ===

impl KeyDigest {
    /// Of a key.
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// Whether both are of one key. The time that it takes tells nothing of where they differ.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Where it stands in a table: its first 64 bits. Who knows them knows nothing of the key.
    pub(super) fn place(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(first)
    }

    /// All of it, as a key for something else.
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?.as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
        }
        Some(Self(bytes))
    }
}

fn digit(character: u8) -> Option<u32> {
    char::from(character).to_digit(16)
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let halves = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    halves.filter_map(|half| char::from_digit(half.into(), 16)).collect()
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hexadecimal(&self.0))
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[digest]")
    }
}

impl<'de> Deserialize<'de> for KeyDigest {
    /// The message must not quote what it refuses: it may be a key that was put where its hash
    /// belongs.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from).map_err(|_| D::Error::custom(NOT_A_HASH))?;
        Self::parse(&text).ok_or_else(|| D::Error::custom(NOT_A_HASH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From FIPS 180-2, appendix B.1.
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_is_what_other_programs_make_of_the_key() {
        assert_eq!(KeyDigest::of(b"abc").to_string(), ABC);
        assert!(KeyDigest::parse(ABC).unwrap().is_same(&KeyDigest::of(b"abc")));
        assert!(KeyDigest::parse(&ABC.to_uppercase().replace("SHA", "sha")).is_some());
    }

    #[test]
    fn only_a_hash_is_one() {
        for text in [
            "",
            "sha256:",
            "sk-tw-123",
            &ABC[..ABC.len() - 1],
            &format!("{ABC}0"),
            &ABC.replace('b', "g"),
            &ABC.replace("sha256", "sha512"),
            &ABC.replacen("ba", "+a", 1),
        ] {
            assert_eq!(KeyDigest::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_new_key_has_all_of_the_bits_that_it_is_made_of() {
        let key = mint(std::array::from_fn(|index| index as u8));
        assert!(key.starts_with("sk-tw-000102030405") && key.ends_with("1e1f"), "{key}");
        assert_eq!(key.len(), 6 + 64);
    }
}
