//! Engines that give equal blocks equal names share a key space: what the gateway learned about a text
//! from one request holds for all these engines. Processes of vLLM since 0.30 with the default hash do;
//! older versions and other hashes begin with a random seed for each process.
//!
//! A backend begins with a key space of its own. It joins another key space when its engine stores a
//! block that an engine of that key space has stored: equal names are evidence, equal versions are not.

use std::sync::{Arc, RwLockWriteGuard};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use tokenweir_kv_events::correlation::TextIndex;
use tokenweir_kv_events::residency::StoredChain;

/// What the gateway has learned about texts and blocks, for engines that name equal blocks equally.
#[derive(Debug)]
pub(in crate::backend) struct KeySpace {
    index: RwLock<TextIndex>,
}

/// All key spaces of a gateway.
#[derive(Debug, Default)]
pub(super) struct KeySpaces(Mutex<Vec<Arc<KeySpace>>>);

/// Numbers of the blocks of a prompt that are compared with those of other engines. The blocks before
/// them can be equal for unrelated prompts, or have no predecessor in an index.
const COMPARED_BLOCKS: std::ops::Range<usize> = 4..12;

impl KeySpace {
    /// The index. `None`: a writer holds it, and requests do not wait.
    pub(super) fn try_index(&self) -> Option<RwLockReadGuard<'_, TextIndex>> {
        match self.index.try_read() {
            Ok(index) => Some(index),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The index, for background tasks.
    pub(super) fn index(&self) -> RwLockReadGuard<'_, TextIndex> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index, locked for changes. Only background tasks call this.
    pub(in crate::backend) fn index_mut(&self) -> RwLockWriteGuard<'_, TextIndex> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeySpaces {
    /// Adds an empty key space for at most `entries` text blocks and of engines each.
    pub(super) fn add(&self, entries: usize) -> Arc<KeySpace> {
        let index = TextIndex::new(entries, entries, fastrand::u64(..));
        let space = Arc::new(KeySpace { index: RwLock::new(index) });
        let mut spaces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // No backend uses a key space any more if only this list refers to it.
        spaces.retain(|space| Arc::strong_count(space) > 1);
        spaces.push(space.clone());
        space
    }

    /// The key space, other than `own`, of an engine that has stored one of the compared blocks of this
    /// chain.
    pub(super) fn other_with(
        &self,
        own: &Arc<KeySpace>,
        chain: &StoredChain<'_>,
    ) -> Option<Arc<KeySpace>> {
        if chain.first_depth > 0 {
            return None;
        }
        let mut spaces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hashes = || chain.event.block_hashes.iter();
        let compared = || hashes().take(COMPARED_BLOCKS.end).skip(COMPARED_BLOCKS.start);
        let has_one = |space: &&Arc<KeySpace>| {
            let index = space.index();
            !Arc::ptr_eq(space, own) && compared().any(|hash| index.has_block(hash))
        };
        let other = spaces.iter().find(has_one).cloned()?;
        // No backend may join the space that this backend leaves.
        spaces.retain(|space| !Arc::ptr_eq(space, own));
        Some(other)
    }

    /// Allocated bytes of all indexes.
    pub(super) fn bytes(&self) -> usize {
        let spaces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spaces.iter().map(|space| space.index().bytes()).sum()
    }
}
