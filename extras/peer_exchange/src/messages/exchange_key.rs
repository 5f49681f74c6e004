//! The key that all gateways of an exchange share, and the keys that are derived from it.

use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::hmac;

/// Identifies one gateway from its start to its end. Each gateway chooses it at random when it starts.
pub type SessionId = [u8; 16];

/// The key that all gateways of an exchange share. Its `Debug` output is redacted.
#[derive(Clone)]
pub struct ExchangeKey {
    shared: Prk,
    prompt_seeds: hmac::Key,
    store_keys: hmac::Key,
    /// Identifies the channel of the gateways with this key.
    channel: u64,
}

/// The shared key has fewer than [`MIN_KEY_BYTES`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the key has {0} bytes; at least {MIN_KEY_BYTES} are needed, such as those of `openssl rand -hex 32`"
)]
pub struct KeyTooShort(usize);

/// Minimum length of the shared key, in bytes.
pub const MIN_KEY_BYTES: usize = 32;
/// Makes the derived keys differ from those that other protocols derive from the same secret. Raise the
/// number at the end of this text when the hashes of prompts change.
const SALT: &[u8] = b"tokenweir peer exchange 1";

impl ExchangeKey {
    /// Creates the shared key from its bytes. Fails if there are too few.
    pub fn new(secret: &[u8]) -> Result<Self, KeyTooShort> {
        if secret.len() < MIN_KEY_BYTES {
            return Err(KeyTooShort(secret.len()));
        }
        let shared = Salt::new(HKDF_SHA256, SALT).extract(secret);
        // The label and the length are constants that HKDF accepts, so this does not fail.
        let derived = |label: &[u8]| {
            let key = shared
                .expand(&[label], hmac::HMAC_SHA256)
                .map(hmac::Key::from);
            key.map_err(|_| KeyTooShort(secret.len()))
        };
        let prompt_seeds = derived(b"prompt seeds")?;
        let store_keys = derived(b"store keys")?;
        let channel = leading_bits(hmac::sign(&derived(b"channel")?, b""));
        Ok(Self {
            shared,
            prompt_seeds,
            store_keys,
            channel,
        })
    }

    /// The name of the channel of the message bus. Gateways with another key have another
    /// channel.
    pub fn channel(&self) -> String {
        format!("tokenweir:{:016x}", self.channel)
    }

    /// The seed of the hashes of a prompt for `model` with the `cache_salt` `salt`. Gateways hash
    /// prompts equally only with equal keys, and without the key no hash can be computed.
    pub fn prompt_seed(&self, model: Option<&str>, salt: Option<&str>) -> u64 {
        let mut context = hmac::Context::with_key(&self.prompt_seeds);
        for part in [model, salt] {
            // The length separates the parts, and distinguishes an empty part from an absent one.
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            context.update(&length.to_le_bytes());
            context.update(part.unwrap_or_default().as_bytes());
        }
        leading_bits(context.sign())
    }

    /// The name under which the gateways store the value of `parts` at the server. The braces let Redis Cluster keep
    /// all values on one node. Without the key, no name can be computed.
    pub fn store_key(&self, parts: &[&str]) -> String {
        let mut context = hmac::Context::with_key(&self.store_keys);
        for part in parts {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part.as_bytes());
        }
        let tag = context.sign();
        let bytes = tag.as_ref().first_chunk::<16>().copied();
        let name = u128::from_le_bytes(bytes.unwrap_or_default());
        format!("{{{}}}:{name:032x}", self.channel())
    }

    /// The key that encrypts the messages of one session. `None`: the derivation failed. Because each
    /// session has its own key, it can use its message numbers, from 0, as nonces.
    pub(crate) fn message_key(&self, session: &SessionId) -> Option<LessSafeKey> {
        let info = [&b"messages"[..], session];
        let derived = self.shared.expand(&info, &CHACHA20_POLY1305).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }
}

fn leading_bits(tag: hmac::Tag) -> u64 {
    tag.as_ref()
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl std::fmt::Debug for ExchangeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keys_are_refused_and_equal_keys_agree() {
        assert_eq!(ExchangeKey::new(&[7; 31]).unwrap_err(), KeyTooShort(31));
        let key = |byte| ExchangeKey::new(&[byte; 32]).unwrap();
        let seed = |byte| key(byte).prompt_seed(Some("m"), None);
        assert_eq!(seed(1), seed(1));
        assert_ne!(seed(1), seed(2));
        assert_eq!(key(1).channel(), key(1).channel());
        assert_ne!(key(1).channel(), key(2).channel());
    }

    #[test]
    fn models_and_cache_salts_have_different_seeds() {
        let key = ExchangeKey::new(&[1; 32]).unwrap();
        let pairs = [
            (None, None),
            (Some(""), None),
            (None, Some("")),
            (Some("a"), Some("bc")),
        ];
        let pairs = pairs
            .into_iter()
            .chain([(Some("ab"), Some("c")), (Some("abc"), None)]);
        let mut seeds: Vec<u64> = pairs
            .map(|(model, salt)| key.prompt_seed(model, salt))
            .collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 6);
    }

    #[test]
    fn debug_output_does_not_contain_the_key() {
        let key = ExchangeKey::new(b"a secret of thirty-two characters").unwrap();
        assert_eq!(format!("{key:?}"), "[redacted]");
    }
}
