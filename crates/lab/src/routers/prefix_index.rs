//! LRU set of the blocks that were sent to one backend.

use std::collections::{BTreeMap, HashMap};

/// LRU set of blocks.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    /// Number of the last use of each block.
    last_uses: HashMap<u64, u64>,
    blocks_by_use: BTreeMap<u64, u64>,
    use_count: u64,
}

impl PrefixIndex {
    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.last_uses.len()
    }

    /// Number of leading blocks of a prompt that are in the set.
    pub(super) fn matched(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.last_uses.contains_key(block)).count()
    }

    /// Adds the blocks of a prompt, and removes the least recently used blocks above `max_blocks`.
    pub(super) fn send(&mut self, blocks: &[u64], max_blocks: usize) {
        for block in blocks {
            self.use_count += 1;
            if let Some(previous_use) = self.last_uses.insert(*block, self.use_count) {
                self.blocks_by_use.remove(&previous_use);
            }
            self.blocks_by_use.insert(self.use_count, *block);
        }
        while self.last_uses.len() > max_blocks {
            let Some((_, oldest)) = self.blocks_by_use.pop_first() else { return };
            self.last_uses.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_blocks_are_removed_first() {
        let mut sent = PrefixIndex::default();
        sent.send(&[1, 2, 3], 4);
        sent.send(&[1, 9], 4);
        assert_eq!((sent.len(), sent.matched(&[1, 2, 3])), (4, 3));
        sent.send(&[8], 4);
        assert_eq!(sent.matched(&[1, 2, 3]), 1, "2 was removed, 1 was used again");
    }
}
