//! The blocks that one cache contains, with their number of copies and their depths.
//!
//! An engine announces a block once for each copy: two requests that fill the same block at the same
//! time store two copies with one hash, and the cache removes them one by one. Copies are rare, so
//! only their numbers beyond the first are stored, in a map of their own.

use crate::decoder::BlockHash;
use crate::key_hash::position;
use hashbrown::HashTable;
use std::collections::HashMap;

/// Blocks of one cache.
#[derive(Debug)]
pub struct BlockSet {
    blocks: HashTable<Block>,
    /// Copies beyond the first.
    copies: HashMap<BlockHash, u32>,
    max_blocks: usize,
    /// Mixed into the positions in the table, so that nobody can choose prompts whose blocks collide.
    seed: u64,
}

/// A block in 12 bytes: two halves of the hash, so that the alignment is 4, and the depth.
#[derive(Debug, Clone, Copy)]
struct Block {
    hash: [u32; 2],
    depth: u32,
}

/// Depth of a block whose parent is not known.
pub const UNKNOWN_DEPTH: u32 = u32::MAX;

/// An engine announced more blocks than a cache can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine announced more than {0} blocks")]
pub struct TooManyBlocks(pub usize);

impl BlockSet {
    /// An empty set for at most `max_blocks` blocks.
    pub fn new(max_blocks: usize, seed: u64) -> Self {
        Self { blocks: HashTable::new(), copies: HashMap::new(), max_blocks, seed }
    }

    /// Number of different blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        let copy_bytes = size_of::<(BlockHash, u32)>() + 1;
        self.blocks.allocation_size() + self.copies.capacity() * copy_bytes
    }

    /// Whether the set contains a block.
    pub fn contains(&self, hash: BlockHash) -> bool {
        self.depth(hash).is_some()
    }

    /// Number of blocks of the prompt before a block, or [`UNKNOWN_DEPTH`]. `None`: the set does not
    /// contain the block.
    pub fn depth(&self, hash: BlockHash) -> Option<u32> {
        let key = halves(hash);
        let block = self.blocks.find(position(hash, self.seed), |block| block.hash == key);
        block.map(|block| block.depth)
    }

    /// Adds a block, or a copy of it if `counts_copy`.
    pub fn store(
        &mut self,
        hash: BlockHash,
        depth: u32,
        counts_copy: bool,
    ) -> Result<(), TooManyBlocks> {
        let (key, seed) = (halves(hash), self.seed);
        if let Some(block) = self.blocks.find_mut(position(hash, seed), |block| block.hash == key) {
            if block.depth == UNKNOWN_DEPTH {
                block.depth = depth;
            }
            if counts_copy {
                let copies = self.copies.entry(hash).or_default();
                *copies = copies.saturating_add(1);
            }
            return Ok(());
        }
        if self.blocks.len() >= self.max_blocks {
            return Err(TooManyBlocks(self.max_blocks));
        }
        let rehash = |block: &Block| position(block.hash(), seed);
        self.blocks.insert_unique(position(hash, seed), Block { hash: key, depth }, rehash);
        Ok(())
    }

    /// Removes one copy of a block. An unknown block is ignored.
    pub fn remove(&mut self, hash: BlockHash) {
        if let Some(copies) = self.copies.get_mut(&hash) {
            *copies -= 1;
            if *copies == 0 {
                self.copies.remove(&hash);
            }
            return;
        }
        let key = halves(hash);
        let found = self.blocks.find_entry(position(hash, self.seed), |block| block.hash == key);
        if let Ok(entry) = found {
            entry.remove();
        }
    }

    /// Removes all blocks and frees their memory.
    pub fn clear(&mut self) {
        *self = Self::new(self.max_blocks, self.seed);
    }
}

impl Block {
    fn hash(self) -> BlockHash {
        u64::from(self.hash[0]) << 32 | u64::from(self.hash[1])
    }
}

fn halves(hash: BlockHash) -> [u32; 2] {
    [(hash >> 32) as u32, hash as u32]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_takes_at_most_32_bytes_at_every_size() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut set = BlockSet::new(usize::MAX, 7);
        let mut greatest = 0.0_f64;
        for count in 1..=600_000 {
            set.store(random.u64(..), count, true).unwrap();
            if count > 1_000 {
                greatest = greatest.max(set.bytes() as f64 / f64::from(count));
            }
        }
        // Largest just after the table has grown.
        assert!((25.0..32.0).contains(&greatest), "{greatest} bytes per block");
    }

    #[test]
    fn a_block_is_gone_when_as_many_copies_were_removed_as_were_stored() {
        let mut set = BlockSet::new(10, 0);
        for _ in 0..3 {
            set.store(5, 2, true).unwrap();
        }
        set.remove(5);
        set.remove(5);
        assert_eq!((set.depth(5), set.len()), (Some(2), 1));
        set.remove(5);
        assert!(!set.contains(5) && set.is_empty());
        set.remove(5);
        assert!(set.is_empty(), "an unknown block is ignored");
    }

    #[test]
    fn an_announcement_that_is_no_copy_is_not_counted_and_can_tell_the_depth() {
        let mut set = BlockSet::new(10, 0);
        set.store(5, UNKNOWN_DEPTH, true).unwrap();
        set.store(5, 3, false).unwrap();
        assert_eq!(set.depth(5), Some(3));
        set.remove(5);
        assert!(set.is_empty());
    }

    #[test]
    fn a_set_does_not_grow_beyond_its_limit() {
        let mut set = BlockSet::new(2, 0);
        set.store(1, 0, true).unwrap();
        set.store(2, 1, true).unwrap();
        assert_eq!(set.store(3, 2, true), Err(TooManyBlocks(2)));
        assert_eq!(set.store(2, 1, true), Ok(()));
        set.clear();
        assert_eq!((set.store(3, 2, true), set.contains(1)), (Ok(()), false));
    }

    proptest! {
        #[test]
        fn the_set_equals_a_map_of_counts(
            operations in proptest::collection::vec((0_u64..12, any::<bool>()), 0..300), seed: u64,
        ) {
            let mut set = BlockSet::new(100, seed);
            let mut counts = HashMap::<u64, u32>::new();
            for (hash, is_stored) in operations {
                if is_stored {
                    set.store(hash, hash as u32, true).unwrap();
                    *counts.entry(hash).or_default() += 1;
                } else {
                    set.remove(hash);
                    counts.entry(hash).and_modify(|count| *count = count.saturating_sub(1));
                }
                for hash in 0..12 {
                    prop_assert_eq!(set.contains(hash), counts.get(&hash).is_some_and(|c| *c > 0));
                }
            }
        }
    }
}
