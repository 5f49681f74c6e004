//! Derives the `cache_salt` of each tenant. Engines share cached prefixes only among requests with
//! the same salt.

use super::digest::{KeyDigest, to_hex};
use ring::hmac;
use std::fmt;

/// Key from which salts are derived. Gateways with the same secret derive the same salts, so a
/// prefix that a tenant sent through one gateway is also reused through another.
#[derive(Clone)]
pub struct SaltKey(hmac::Key);

/// Secret of a gateway without a configured secret. Anyone can compute the salts that follow from
/// it, but a tenant cannot make the gateway use the salt of another tenant.
const DEFAULT_SECRET: [u8; 32] = [0; 32];

impl SaltKey {
    /// A salt key from the digest of a secret that all gateways of a deployment share. `None`: no
    /// secret is configured.
    pub fn new(secret: Option<KeyDigest>) -> Self {
        let bytes = secret.map_or(DEFAULT_SECRET, |digest| *digest.bytes());
        Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }

    /// The salt of a request: 64 hexadecimal digits, a format that vLLM accepts. `client_salt`: the
    /// `cache_salt` in the request of the client. `None`: the request has no `cache_salt`.
    pub fn derive(&self, tenant: &str, client_salt: Option<&str>) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        // The length separates the tenant name from the client salt.
        context.update(&(tenant.len() as u64).to_le_bytes());
        context.update(tenant.as_bytes());
        context.update(&[u8::from(client_salt.is_some())]);
        context.update(client_salt.unwrap_or_default().as_bytes());
        to_hex(context.sign().as_ref())
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
    fn different_tenants_and_client_salts_give_different_salts() {
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
            pairs.iter().map(|(tenant, salt)| key.derive(tenant, *salt)).collect();
        assert_eq!(salts.len(), pairs.len());
        assert!(salts.iter().all(|salt| salt.len() == 64 && salt.is_ascii()));
    }

    #[test]
    fn gateways_with_the_same_secret_derive_the_same_salts() {
        let derive =
            |secret: &[u8]| SaltKey::new(Some(KeyDigest::from_key(secret))).derive("a", Some("s"));
        assert_eq!(derive(b"one"), derive(b"one"));
        assert_ne!(derive(b"one"), derive(b"two"));
        assert_ne!(derive(b"one"), SaltKey::new(None).derive("a", Some("s")));
        assert!(!format!("{:?}", SaltKey::new(Some(KeyDigest::from_key(b"one")))).contains("one"));
    }
}
