//! A set of block hashes in the order of their last use.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// A map by block hash. The keys are hashes already, so a [`BlockHasher`] is enough.
pub(super) type BlockMap<V> = HashMap<u64, V, BuildHasherDefault<BlockHasher>>;

/// A fast hasher for keys that are hashes already. It only spreads their bits.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        // The product makes small numbers, which tests use as hashes, differ in the high bits too.
        self.0 = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// A set of block hashes that can remove the least recently used hashes.
#[derive(Debug, Default)]
pub struct LruSet {
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
    pub fn len(&self) -> usize {
        self.last_uses.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.last_uses.is_empty()
    }

    /// Number of leading hashes that are in the set.
    pub fn matched(&self, hashes: &[u64]) -> usize {
        hashes.iter().take_while(|hash| self.last_uses.contains_key(hash)).count()
    }

    /// Adds a block, or marks it as used.
    pub fn touch(&mut self, hash: u64) {
        self.use_count += 1;
        self.last_uses.insert(hash, self.use_count);
        self.uses.push_back((self.use_count, hash));
        if self.uses.len() > 2 * self.last_uses.len() + MIN_USES {
            self.uses.retain(|(number, hash)| self.last_uses.get(hash) == Some(number));
        }
    }

    /// Removes the least recently used blocks until at most `max_blocks` are left.
    pub fn truncate(&mut self, max_blocks: usize) {
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
