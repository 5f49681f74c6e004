//! A set of block hashes in the order of their last use.

use std::collections::VecDeque;
use tokenweir_sim::blocks::BlockMap;

/// A set of block hashes that can remove the least recently used hashes.
#[derive(Debug, Default)]
pub(super) struct LruSet {
    /// The number of the last use of each block. Uses are counted over all blocks.
    last_uses: BlockMap<u64>,
    /// All uses, oldest first: the number of the use and the hash of the block. A use that is not the last
    /// one of its block is ignored.
    uses: VecDeque<(u64, u64)>,
    use_count: u64,
}

/// Outdated entries of [`LruSet::uses`] are removed when there are more entries than this number plus twice
/// the number of blocks.
const MIN_USES: usize = 64;

impl LruSet {
    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.last_uses.len()
    }

    /// Number of leading hashes that are in the set.
    pub(super) fn matched(&self, hashes: &[u64]) -> usize {
        hashes.iter().take_while(|hash| self.last_uses.contains_key(hash)).count()
    }

    /// Adds a block, or marks it as used.
    pub(super) fn touch(&mut self, hash: u64) {
        self.use_count += 1;
        self.last_uses.insert(hash, self.use_count);
        self.uses.push_back((self.use_count, hash));
        if self.uses.len() > 2 * self.last_uses.len() + MIN_USES {
            self.uses.retain(|(number, hash)| self.last_uses.get(hash) == Some(number));
        }
    }

    /// Removes the least recently used blocks until at most `max_blocks` are left.
    pub(super) fn truncate(&mut self, max_blocks: usize) {
        while self.last_uses.len() > max_blocks {
            let Some((number, hash)) = self.uses.pop_front() else { return };
            if self.last_uses.get(&hash) == Some(&number) {
                self.last_uses.remove(&hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_blocks_are_removed_first() {
        let mut set = LruSet::default();
        for hash in [1, 2, 3, 1, 9] {
            set.touch(hash);
        }
        set.truncate(3);
        assert_eq!((set.len(), set.matched(&[1, 3, 9]), set.matched(&[2])), (3, 3, 0));
    }

    #[test]
    fn many_uses_of_few_blocks_need_little_memory() {
        let mut set = LruSet::default();
        for number in 0..10_000 {
            set.touch(number % 10);
        }
        assert!(set.uses.len() <= 2 * 10 + MIN_USES);
        set.truncate(5);
        assert_eq!(set.matched(&[5, 6, 7, 8, 9]), 5);
    }
}
