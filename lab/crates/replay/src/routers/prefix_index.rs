//! LRU set of the blocks that were sent to one backend.

use tokenweir_sim::lru_set::LruSet;

/// The hashes of the blocks that were sent to one backend. When the set is full, the least recently used
/// blocks are removed first.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex(LruSet);

impl PrefixIndex {
    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Number of leading blocks of a prompt that are in the set.
    pub(super) fn matched(&self, blocks: &[u64]) -> usize {
        self.0.matched(blocks)
    }

    /// Adds the blocks of a prompt, and removes the least recently used blocks above `max_blocks`.
    pub(super) fn send(&mut self, blocks: &[u64], max_blocks: usize) {
        for block in blocks {
            self.0.touch(*block);
        }
        self.0.truncate(max_blocks);
    }
}
