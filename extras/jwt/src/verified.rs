//! Stores the digests of verified tokens, so that a further request with the same token costs only one hash.

use lru::LruCache;
use std::sync::{Arc, Weak};
use tokenweir_request::access::{ApiKey, ApiKeys, KeyDigest};

/// Tokens that were verified with the present keys of the issuers, key file and settings.
pub(super) struct VerifiedTokens {
    tokens: LruCache<u64, VerifiedToken>,
    keys: Weak<ApiKeys>,
    version: u64,
}

pub(super) struct VerifiedToken {
    pub(super) key: Arc<ApiKey>,
    /// Expiry time in seconds since 1970.
    pub(super) expires: u64,
}

/// Maximum number of tokens. Each takes about 500 bytes, plus the names of the models that it lists.
const MAX_TOKENS: usize = 1 << 14;

impl VerifiedTokens {
    /// The key of a verified token that has not expired. `version`: the version of the keys of all issuers and of the settings.
    pub(super) fn find(
        &mut self,
        digest: &KeyDigest,
        keys: &Arc<ApiKeys>,
        version: u64,
        now: u64,
    ) -> Option<Arc<ApiKey>> {
        if version != self.version || !self.is_of(keys) {
            // After a change of the keys, a stored token may be invalid or have other rights.
            self.tokens.clear();
            self.keys = Arc::downgrade(keys);
            self.version = version;
        }
        let token = self.tokens.get(&digest.lookup_hash())?;
        let is_valid = token.key.has_digest(digest) && !crate::claims::is_past(token.expires, now);
        is_valid.then(|| token.key.clone())
    }

    /// Stores a token that was verified with the keys of `version`, unless newer keys exist.
    pub(super) fn insert(
        &mut self,
        digest: &KeyDigest,
        keys: &Arc<ApiKeys>,
        version: u64,
        token: VerifiedToken,
    ) {
        if version != self.version || !self.is_of(keys) {
            return;
        }
        self.tokens.push(digest.lookup_hash(), token);
        if self.tokens.len() > MAX_TOKENS {
            self.tokens.pop_lru();
        }
    }

    fn is_of(&self, keys: &Arc<ApiKeys>) -> bool {
        Weak::as_ptr(&self.keys) == Arc::as_ptr(keys)
    }
}

impl Default for VerifiedTokens {
    fn default() -> Self {
        Self {
            tokens: LruCache::unbounded(),
            keys: Weak::new(),
            version: 0,
        }
    }
}
