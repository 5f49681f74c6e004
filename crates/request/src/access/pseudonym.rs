//! Pseudonyms of users, sessions and conversations. Equal values have equal pseudonyms, and a pseudonym does
//! not reveal its value.

use super::digest::KeyDigest;
use ring::hmac;

/// Key from which pseudonyms are derived. Gateways with the same secret derive the same pseudonyms.
#[derive(Debug, Clone)]
pub struct PseudonymKey(hmac::Key);

/// Length of a pseudonym in bytes, before it is written in hexadecimal.
const PSEUDONYM_BYTES: usize = 16;

impl PseudonymKey {
    /// A key from the digest of a secret that all gateways of a deployment share.
    pub fn new(secret: KeyDigest) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.bytes()))
    }

    /// The pseudonym of a value: 32 hexadecimal digits. Equal values of different kinds have
    /// different pseudonyms.
    pub fn pseudonym(&self, kind: &str, value: &str) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        // The length marks where the kind ends and the value begins.
        context.update(&(kind.len() as u64).to_le_bytes());
        context.update(kind.as_bytes());
        context.update(value.as_bytes());
        hex::encode(&context.sign().as_ref()[..PSEUDONYM_BYTES])
    }
}

impl Default for PseudonymKey {
    /// The key of an empty secret, for which everybody can compute the pseudonyms.
    fn default() -> Self {
        Self::new(KeyDigest::from_key(b""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_kind_and_secret_decide_the_pseudonym() {
        let key = PseudonymKey::default();
        let alice = key.pseudonym("user", "alice@example.com");
        assert_eq!(
            alice,
            PseudonymKey::default().pseudonym("user", "alice@example.com")
        );
        assert!(alice.len() == 32 && !alice.contains("alice"), "{alice}");
        let secret = PseudonymKey::new(KeyDigest::from_key(b"secret"));
        for other in [
            key.pseudonym("user", "bob@example.com"),
            key.pseudonym("session", "alice@example.com"),
            secret.pseudonym("user", "alice@example.com"),
        ] {
            assert_ne!(alice, other);
        }
        assert!(!format!("{secret:?}").contains("secret"));
    }
}
