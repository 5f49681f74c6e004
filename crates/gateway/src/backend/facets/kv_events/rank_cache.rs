//! The prefix cache of one data-parallel rank of a backend, as its KV events show it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tokenweir_kv_events::residency::{CacheContents, StreamState};
use tokenweir_protocol::mutex::SharedLock;

/// The contents of the prefix cache of one data-parallel rank, as far as its KV events show them.
#[derive(Debug)]
pub(crate) struct RankCache {
    /// The contents of the cache. Requests do not wait for a writer, and only background tasks write.
    pub(crate) contents: SharedLock<CacheContents>,
    /// How far the contents can be trusted: a [`StreamState`] as its index in `StreamState::ALL`.
    pub(super) state: AtomicU8,
    pub(super) batches: AtomicU64,
}

impl RankCache {
    pub(super) fn new(max_blocks: usize) -> Self {
        Self {
            contents: SharedLock::new(CacheContents::new(max_blocks, fastrand::u64(..))),
            state: AtomicU8::new(StreamState::Off as u8),
            batches: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_state(&self, state: StreamState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn count_batch(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
    }
}
