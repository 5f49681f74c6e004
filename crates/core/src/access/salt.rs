//! The `cache_salt` of a tenant: engines share cached prefixes among requests of one salt only.

use super::digest::{KeyDigest, hexadecimal};
use ring::hmac;
use std::fmt;

/// Derives salts from tenants. Gateways with the same secret derive the same salts, so that a
/// tenant's prefixes are found whichever gateway its requests come through.
#[derive(Clone)]
pub struct SaltKey(hmac::Key);

/// The key without a secret. Salts are then no secret either, but no tenant can choose another's.
const NO_SECRET: [u8; 32] = [0; 32];

impl SaltKey {
    /// Of the digest of a secret that all gateways of a deployment have.
    pub fn new(secret: Option<KeyDigest>) -> Self {
        let bytes = secret.map_or(NO_SECRET, |digest| *digest.bytes());
        Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }

    /// The salt of a tenant's requests that have this salt of the client: 64 hexadecimal digits,
    /// which vLLM's rules for salts allow.
    pub fn derive(&self, tenant: &str, clients: Option<&str>) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        // The length in front separates the name from the salt.
        context.update(&(tenant.len() as u64).to_le_bytes());
        context.update(tenant.as_bytes());
        context.update(&[u8::from(clients.is_some())]);
        context.update(clients.unwrap_or_default().as_bytes());
        hexadecimal(context.sign().as_ref())
    }
}

impl fmt::Debug for SaltKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[salt key]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn tenants_and_client_salts_that_differ_have_salts_that_differ() {
        let key = SaltKey::new(None);
        let pairs = [
            ("a", None),
            ("b", None),
            ("a", Some("")),
            ("a", Some("s")),
            ("as", None),
            ("as", Some("")),
            ("b", Some("s")),
        ];
        let salts: BTreeSet<String> =
            pairs.iter().map(|(tenant, clients)| key.derive(tenant, *clients)).collect();
        assert_eq!(salts.len(), pairs.len());
        assert!(salts.iter().all(|salt| salt.len() == 64 && salt.is_ascii()));
    }

    #[test]
    fn gateways_with_the_same_secret_derive_the_same_salts() {
        let of = |secret: &[u8]| SaltKey::new(Some(KeyDigest::of(secret))).derive("a", Some("s"));
        assert_eq!(of(b"one"), of(b"one"));
        assert_ne!(of(b"one"), of(b"two"));
        assert_ne!(of(b"one"), SaltKey::new(None).derive("a", Some("s")));
        assert!(!format!("{:?}", SaltKey::new(Some(KeyDigest::of(b"one")))).contains("one"));
    }
}
