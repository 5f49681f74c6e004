//! Derives the `cache_salt` of each tenant. Engines share cached prefixes only among requests with
//! the same salt.

use super::digest::KeyDigest;
use ring::hmac;

/// Key from which salts are derived. Gateways with the same secret derive the same salts, so a tenant's prefix
/// that one gateway sent can be reused through another.
#[derive(Debug, Clone)]
pub struct SaltKey(hmac::Key);

impl SaltKey {
    /// A salt key from the digest of a secret that all gateways of a deployment share.
    pub fn new(secret: KeyDigest) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.bytes()))
    }

    /// The salt of a request: 64 hexadecimal digits, a format that vLLM accepts. `client_salt`: the
    /// `cache_salt` in the request of the client. `None`: the request has no `cache_salt`.
    pub fn derive(&self, tenant: &str, client_salt: Option<&str>) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        // The length marks where the tenant name ends and the client salt begins.
        context.update(&(tenant.len() as u64).to_le_bytes());
        context.update(tenant.as_bytes());
        context.update(&[u8::from(client_salt.is_some())]);
        context.update(client_salt.unwrap_or_default().as_bytes());
        hex::encode(context.sign().as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn different_tenants_and_client_salts_give_different_salts() {
        let key = SaltKey::new(KeyDigest::from_key(b"one"));
        let pairs = [
            ("a", None),
            ("b", None),
            ("a", Some("")),
            ("a", Some("s")),
            ("as", None),
            ("as", Some("")),
            ("b", Some("s")),
        ];
        let salts: BTreeSet<String> = pairs
            .iter()
            .map(|(tenant, salt)| key.derive(tenant, *salt))
            .collect();
        assert_eq!(salts.len(), pairs.len());
        assert!(salts.iter().all(|salt| salt.len() == 64 && salt.is_ascii()));
    }

    #[test]
    fn equal_secrets_derive_equal_salts() {
        let derive =
            |secret: &[u8]| SaltKey::new(KeyDigest::from_key(secret)).derive("a", Some("s"));
        assert_eq!(derive(b"one"), derive(b"one"));
        assert_ne!(derive(b"one"), derive(b"two"));
        let debug = |secret: &[u8]| format!("{:?}", SaltKey::new(KeyDigest::from_key(secret)));
        assert_eq!(debug(b"one"), debug(b"two"), "it has no part of the secret");
    }
}
