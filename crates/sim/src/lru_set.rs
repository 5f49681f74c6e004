//! A set of block hashes in the order of their last use.

use lru::LruCache;
use std::collections::HashMap;
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
#[derive(Debug)]
pub struct LruSet(LruCache<u64, (), BuildHasherDefault<BlockHasher>>);

impl LruSet {
    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of leading hashes that are in the set.
    pub fn matched(&self, hashes: &[u64]) -> usize {
        hashes.iter().take_while(|hash| self.0.contains(hash)).count()
    }

    /// Adds a block, or marks it as used.
    pub fn touch(&mut self, hash: u64) {
        self.0.put(hash, ());
    }

    /// Removes the least recently used blocks until at most `max_blocks` are left.
    pub fn truncate(&mut self, max_blocks: usize) {
        while self.len() > max_blocks {
            self.0.pop_lru();
        }
    }
}

impl Default for LruSet {
    fn default() -> Self {
        Self(LruCache::unbounded_with_hasher(BuildHasherDefault::default()))
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
        for number in 0..10_000 {
            set.touch(number % 10);
        }
        set.truncate(5);
        assert_eq!((set.len(), set.matched(&[5, 6, 7, 8, 9])), (5, 5));
    }
}
