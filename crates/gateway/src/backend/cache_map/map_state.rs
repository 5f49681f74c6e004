//! The state that the cache map keeps about ended requests: the first client of each group, and the
//! requests to each backend.

use super::backend_use::BackendUse;
use super::prompt_use::PromptUse;
use crate::backend::pool::BackendPool;
use lru::LruCache;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_engine::address::BackendId;
use tokenweir_request::record::ClientIdentity;

/// What the cache map keeps about ended requests: the first client of each group of prompts, and
/// the requests to each backend.
#[derive(Debug)]
pub(super) struct MapState {
    /// For each text block with which prompts begin: who used it first, and when it was used. The key is
    /// the hash of the block. If there are more than [`MAX_TEXTS`] blocks, the least recently used entry
    /// is removed.
    pub(super) texts: LruCache<u64, TextUse>,
    pub(super) backends: HashMap<BackendId, BackendUse>,
}

/// The use of a text at all backends: the requests whose prompts begin with the text.
#[derive(Debug)]
pub(super) struct TextUse {
    /// The client that sent the first prompt that begins with the text.
    pub(super) first_caller: Option<Arc<ClientIdentity>>,
    pub(super) first_used: Instant,
    pub(super) last_used: Instant,
}

/// Maximum number of groups of prompts whose first client is known.
const MAX_TEXTS: usize = 4_096;
/// Estimated memory for each group whose first client is known, in bytes.
const TEXT_BYTES: usize = 120;
/// Maximum number of backends whose caches are modelled.
const MAX_BACKENDS: usize = 256;

impl MapState {
    pub(super) fn new() -> Self {
        Self { texts: LruCache::unbounded(), backends: HashMap::new() }
    }

    /// Approximate memory of this value, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let backends: usize = self.backends.values().map(BackendUse::bytes).sum();
        backends + self.texts.len() * TEXT_BYTES
    }

    /// Adds a prompt that a backend of `pool` has computed.
    pub(super) fn add(&mut self, used: &PromptUse<'_>, pool: &BackendPool) {
        if !self.backends.contains_key(used.backend) {
            let listed = pool.find_backend(used.backend.as_str());
            let Some(backend) = listed.filter(|_| self.backends.len() < MAX_BACKENDS) else {
                return;
            };
            self.backends.insert(used.backend.clone(), BackendUse::new(backend));
        }
        if let Some(backend) = self.backends.get_mut(used.backend) {
            backend.add(used);
        }
        self.add_text(used);
    }

    fn add_text(&mut self, used: &PromptUse<'_>) {
        let Some(text) = used.prompt.blocks.first() else { return };
        let first = || TextUse {
            first_caller: used.caller.cloned(),
            first_used: used.ended,
            last_used: used.ended,
        };
        self.texts.get_or_insert_mut(*text, first).last_used = used.ended;
        if self.texts.len() > MAX_TEXTS {
            self.texts.pop_lru();
        }
    }
}
