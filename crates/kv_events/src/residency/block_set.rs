//! The blocks that one cache contains. For each block, the set has the number of copies and the depth in its
//! prompt.
//!
//! An engine announces a block once for each copy. Two requests that fill the same block at the same time store
//! two copies with one hash, and the cache later removes the copies one by one. Copies are rare, so a separate
//! map stores the number of further copies.

use crate::decoder::BlockHash;
use crate::key_hash::position;
use hashbrown::HashTable;
use std::collections::HashMap;

/// The blocks that one prefix cache contains.
#[derive(Debug)]
pub struct BlockSet {
    blocks: HashTable<Block>,
    /// Number of copies of a block beyond the first. No entry: the block has one copy.
    copies: HashMap<BlockHash, u32>,
    max_blocks: usize,
    /// A random number that changes the positions in the table, so that clients cannot choose prompts whose
    /// blocks collide.
    seed: u64,
}

/// A block of the set, in 12 bytes.
#[derive(Debug, Clone, Copy)]
#[repr(Rust, packed(4))] // an alignment to 8 bytes would take 16 bytes
struct Block {
    hash: BlockHash,
    /// Number of blocks of the prompt before the block, or [`UNKNOWN_DEPTH`].
    depth: u32,
}

/// Depth of a block if the depth of its parent is unknown. It is the greatest number, so that the depths of the
/// following blocks become unknown too.
pub const UNKNOWN_DEPTH: u32 = u32::MAX;

/// An engine announced more blocks than `kv_events.max_blocks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the engine announced more than {0} blocks: its blocks are forgotten; raise kv_events.max_blocks"
)]
pub struct TooManyBlocks(pub usize);

impl BlockSet {
    /// An empty set for at most `max_blocks` blocks.
    pub fn new(max_blocks: usize, seed: u64) -> Self {
        Self {
            blocks: HashTable::new(),
            copies: HashMap::new(),
            max_blocks,
            seed,
        }
    }

    /// Number of different blocks in the set.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the set has no block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Number of bytes that the set has allocated.
    pub fn bytes(&self) -> usize {
        let copy_bytes = size_of::<(BlockHash, u32)>() + 1;
        self.blocks.allocation_size() + self.copies.capacity() * copy_bytes
    }

    /// Whether the set contains a block.
    pub fn contains(&self, hash: BlockHash) -> bool {
        self.depth(hash).is_some()
    }

    /// Number of blocks of the prompt before a block, or [`UNKNOWN_DEPTH`]. `None`: the set does not contain
    /// the block.
    pub fn depth(&self, hash: BlockHash) -> Option<u32> {
        let block = self
            .blocks
            .find(position(hash, self.seed), |block| block.hash == hash);
        block.map(|block| block.depth)
    }

    /// Adds a block. If the set already contains the block and `counts_copy` is true, adds a copy of the block.
    pub fn store(
        &mut self,
        hash: BlockHash,
        depth: u32,
        counts_copy: bool,
    ) -> Result<(), TooManyBlocks> {
        let seed = self.seed;
        if let Some(block) = self
            .blocks
            .find_mut(position(hash, seed), |block| block.hash == hash)
        {
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
        let rehash = |block: &Block| position(block.hash, seed);
        self.blocks
            .insert_unique(position(hash, seed), Block { hash, depth }, rehash);
        Ok(())
    }

    /// Removes one copy of a block, if the set contains the block.
    pub fn remove(&mut self, hash: BlockHash) {
        if let Some(copies) = self.copies.get_mut(&hash) {
            *copies -= 1;
            if *copies == 0 {
                self.copies.remove(&hash);
            }
            return;
        }
        let found = self
            .blocks
            .find_entry(position(hash, self.seed), |block| block.hash == hash);
        if let Ok(entry) = found {
            entry.remove();
        }
    }

    /// Removes all blocks and frees their memory.
    pub fn clear(&mut self) {
        *self = Self::new(self.max_blocks, self.seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_takes_at_most_32_bytes() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut set = BlockSet::new(usize::MAX, 7);
        let mut greatest = 0.0_f64;
        for count in 1..=600_000 {
            set.store(random.u64(..), count, true).unwrap();
            if count > 1_000 {
                greatest = greatest.max(set.bytes() as f64 / f64::from(count));
            }
        }
        // The number of bytes per block is greatest just after the table has grown.
        assert!(
            (25.0..32.0).contains(&greatest),
            "{greatest} bytes per block"
        );
    }

    #[test]
    fn a_repeated_block_gets_its_depth() {
        let mut set = BlockSet::new(10, 0);
        set.store(5, UNKNOWN_DEPTH, true).unwrap();
        set.store(5, 3, false).unwrap();
        assert_eq!(set.depth(5), Some(3));
        set.remove(5);
        assert!(set.is_empty());
    }

    #[test]
    fn new_blocks_above_the_limit_are_refused() {
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
        fn the_set_agrees_with_a_map_of_counts(
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
                let is_stored = |hash: &u64| counts.get(hash).is_some_and(|count| *count > 0);
                for hash in 0..12 {
                    let expected = is_stored(&hash).then_some(hash as u32);
                    prop_assert_eq!((set.contains(hash), set.depth(hash)), (expected.is_some(), expected));
                }
                prop_assert_eq!(set.len(), (0..12).filter(is_stored).count());
            }
        }
    }
}
