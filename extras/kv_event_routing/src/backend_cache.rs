//! The prefix cache of one backend as its KV events show it: the known contents of each part (a data-parallel rank),
//! and how far these can be trusted.

use crate::learning::{CacheKnowledge, KeySpace};
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokenweir_kv_events::residency::{CacheContents, StoredChain, StreamState};
use tokenweir_protocol::atomic::{AtomicCounter, AtomicFlag};
use tokenweir_protocol::mutex::SharedLock;

/// The contents of the prefix cache of one part, as far as its KV events show them.
#[derive(Debug)]
pub(crate) struct PartCache {
    /// The contents of the cache. Requests do not wait for a writer, and only background tasks write.
    pub(crate) contents: SharedLock<CacheContents>,
    /// How far the contents can be trusted, as the index of a [`StreamState`] in `StreamState::ALL`.
    pub(crate) state: AtomicU8,
    pub(crate) batches: AtomicCounter,
}

/// The contents of the prefix cache of one backend, as far as its KV events show them.
#[derive(Debug)]
pub struct BackendCache {
    pub(crate) knowledge: Arc<CacheKnowledge>,
    /// Number that identifies the backend in [`RequestKey`](tokenweir_kv_events::correlation::RequestKey).
    pub(crate) number: u32,
    /// The caches of the parts. Hold a guard only during a lookup.
    pub(crate) parts: ArcSwap<Vec<Arc<PartCache>>>,
    /// The knowledge about the texts of the backend's blocks. Hold a guard only during a lookup.
    pub(crate) space: ArcSwap<KeySpace>,
    /// Whether the backend shares the key space of another backend.
    has_joined: AtomicFlag,
    /// Whether the gateway no longer expects events from the backend, because the backend lists no
    /// publisher any more.
    pub(crate) is_withdrawn: AtomicFlag,
    errors: AtomicCounter,
}

/// The state of the cache of a backend, for metrics and status. `None`: the gateway does not subscribe to the KV
/// events of the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct CacheStatus {
    /// How far the known contents of the cache can be trusted, for all parts together.
    pub state: &'static str,
    /// Number of blocks in the KV caches on the GPUs of all parts.
    pub blocks: usize,
    /// Memory of the gateway for the known contents of the cache, in bytes.
    pub bytes: usize,
    /// Number of batches of KV events that were applied.
    pub batches: u64,
    /// Number of failed connections to publishers, failed requests of `/kv_event_sources`, and
    /// batches that could not be applied.
    pub errors: u64,
}

impl PartCache {
    pub(crate) fn new(max_blocks: usize) -> Self {
        Self {
            contents: SharedLock::new(CacheContents::new(max_blocks, fastrand::u64(..))),
            state: AtomicU8::new(StreamState::Off as u8),
            batches: AtomicCounter::new(),
        }
    }

    pub(crate) fn set_state(&self, state: StreamState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }
}

impl BackendCache {
    /// The cache of a new backend. Nothing is known about its contents.
    pub fn new(knowledge: Arc<CacheKnowledge>) -> Self {
        let number = knowledge.next_backend.fetch_add(1, Ordering::Relaxed);
        let space = knowledge.spaces.add(knowledge.settings.max_blocks);
        Self {
            knowledge,
            number,
            parts: ArcSwap::default(),
            space: ArcSwap::new(space),
            has_joined: AtomicFlag::default(),
            is_withdrawn: AtomicFlag::default(),
            errors: AtomicCounter::new(),
        }
    }

    /// How far the known contents can be trusted. It is the state of the least trustworthy part.
    pub fn state(&self) -> StreamState {
        Self::least_state(&self.parts.load())
    }

    pub(super) fn least_state(parts: &[Arc<PartCache>]) -> StreamState {
        let least = parts
            .iter()
            .map(|part| part.state.load(Ordering::Relaxed))
            .min();
        let index = usize::from(least.unwrap_or(0));
        StreamState::ALL.get(index).copied().unwrap_or_default()
    }

    /// Returns the state of the cache for metrics and status pages.
    pub fn status(&self) -> CacheStatus {
        let parts = self.parts.load();
        let contents = |part: &Arc<PartCache>| {
            let contents = part.contents.read();
            (contents.len(), contents.bytes())
        };
        let sizes: Vec<(usize, usize)> = parts.iter().map(contents).collect();
        CacheStatus {
            state: self.state().as_str(),
            blocks: sizes.iter().map(|(blocks, _)| blocks).sum(),
            bytes: sizes.iter().map(|(_, bytes)| bytes).sum(),
            batches: parts.iter().map(|part| part.batches.get()).sum(),
            errors: self.errors.get(),
        }
    }

    /// Replaces the known caches of the parts by `count` empty ones, and returns
    /// these.
    pub(crate) fn set_part_count(&self, count: usize) -> Arc<Vec<Arc<PartCache>>> {
        let max_blocks = self.knowledge.settings.max_blocks;
        let parts = std::iter::repeat_with(|| Arc::new(PartCache::new(max_blocks))).take(count);
        let parts: Arc<Vec<Arc<PartCache>>> = Arc::new(parts.collect());
        self.parts.store(parts.clone());
        self.is_withdrawn.set(false);
        parts
    }

    /// Forgets the known contents of the cache. The backend counts as one without KV events until
    /// [`Self::set_part_count`] sets parts again.
    pub(crate) fn withdraw(&self) {
        self.set_part_count(0);
        self.is_withdrawn.set(true);
    }

    /// Replaces the key space by an empty one, which forgets the texts of the blocks. The engine may have
    /// restarted with another seed of its hashes.
    pub(crate) fn leave_space(&self) {
        self.space.store(
            self.knowledge
                .spaces
                .add(self.knowledge.settings.max_blocks),
        );
        self.has_joined.set(false);
    }

    /// Joins the key space of another backend if both engines have stored a block with the same hash.
    /// This shows that both engines give equal blocks the same hash.
    pub(crate) fn join_space(&self, chain: &StoredChain<'_>) {
        if self.has_joined.get() {
            return;
        }
        if let Some(other) = self.knowledge.spaces.other_with(&self.space.load(), chain) {
            self.space.store(other);
            self.has_joined.set(true);
        }
    }

    /// Number of tokens in a block. 0: the size is not known, or a writer has locked the contents.
    pub(crate) fn block_size(&self) -> u32 {
        let parts = self.parts.load();
        let contents = parts.first().and_then(|part| part.contents.try_read());
        contents.map_or(0, |contents| contents.block_size())
    }

    pub(crate) fn count_error(&self) {
        self.errors.add(1);
    }
}

impl Drop for BackendCache {
    fn drop(&mut self) {
        self.knowledge.chains().remove_backend(self.number);
    }
}
