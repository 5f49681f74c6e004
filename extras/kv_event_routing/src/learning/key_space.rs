//! Engines that give equal blocks the same hash share a key space: what the gateway learned about a text
//! from one request holds for all these engines. All vLLM processes since version 0.30 with the default
//! hash function share one key space. Older versions and other hash functions begin with a random seed
//! in each process.
//!
//! A backend begins with a key space of its own. It joins another key space when its engine stores
//! a block whose hash an engine of that key space has stored too. An equal hash is evidence of
//! equal hashing; an equal version is not.

use std::sync::{Arc, Mutex};
use tokenweir_kv_events::correlation::TextIndex;
use tokenweir_kv_events::residency::StoredChain;
use tokenweir_protocol::mutex::{SharedLock, lock};

/// The knowledge about texts and blocks of all engines that give equal blocks the same hash. Requests do not
/// wait for a writer, and only background tasks write.
pub(crate) type KeySpace = SharedLock<TextIndex>;

/// All key spaces of a gateway. The engines of one key space give equal blocks the same hash.
#[derive(Debug, Default)]
pub(crate) struct KeySpaces(Mutex<Vec<Arc<KeySpace>>>);

/// Positions of the blocks of a prompt that are searched in other key spaces. Earlier blocks can be
/// equal for unrelated prompts, or have no predecessor in an index.
const COMPARED_BLOCKS: std::ops::Range<usize> = 4..12;

impl KeySpaces {
    /// Adds an empty key space for at most `entries` text blocks and as many engine blocks.
    pub(crate) fn add(&self, entries: usize) -> Arc<KeySpace> {
        let index = TextIndex::new(entries, entries, fastrand::u64(..));
        let space = Arc::new(KeySpace::new(index));
        let mut spaces = lock(&self.0);
        // A key space to which only this list refers is used by no backend, and is removed.
        spaces.retain(|space| Arc::strong_count(space) > 1);
        spaces.push(space.clone());
        space
    }

    /// The key space, other than `own`, of an engine that has stored a block of this chain at one of the
    /// positions in [`COMPARED_BLOCKS`]. `None`: there is no such key space.
    pub(crate) fn other_with(
        &self,
        own: &Arc<KeySpace>,
        chain: &StoredChain<'_>,
    ) -> Option<Arc<KeySpace>> {
        if chain.first_depth > 0 {
            return None;
        }
        let mut spaces = lock(&self.0);
        let hashes = || chain.event.block_hashes.iter();
        let compared = || {
            hashes()
                .take(COMPARED_BLOCKS.end)
                .skip(COMPARED_BLOCKS.start)
        };
        let has_one = |space: &&Arc<KeySpace>| {
            let index = space.read();
            !Arc::ptr_eq(space, own) && compared().any(|hash| index.has_block(hash))
        };
        let other = spaces.iter().find(has_one).cloned()?;
        // The key space that this backend leaves is removed from the list, so that no backend joins
        // it.
        spaces.retain(|space| !Arc::ptr_eq(space, own));
        Some(other)
    }

    /// Allocated bytes of the indexes of all key spaces.
    pub(crate) fn bytes(&self) -> usize {
        let spaces = lock(&self.0);
        spaces.iter().map(|space| space.read().bytes()).sum()
    }
}
