//! The blocks that one cache contains. For each block, the set has the number of copies, the depth in its
//! prompt, and its group.
//!
//! An engine announces a block once for each copy. Two requests that fill the same block at the same time
//! store two copies with one hash, and the cache later removes the copies one by one. Copies are rare. So a
//! separate map stores the number of further copies, and only for blocks that have any.

use crate::decoder::BlockHash;
use crate::groups::{FreedGroups, GroupNumber};
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
    /// A random number that changes the positions in the table, so that nobody can choose prompts
    /// whose blocks collide.
    seed: u64,
}

/// A block in 12 bytes: its hash, depth and group.
#[derive(Debug, Clone, Copy)]
#[repr(Rust, packed(4))] // an alignment to 8 bytes would take 16 bytes
struct Block {
    hash: BlockHash,
    place: BlockPlace,
}

/// The depth of a block in the upper 24 bits, and its group in the lower 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlace(u32);

/// Depth of a block if the depth of its parent is not known.
pub const UNKNOWN_DEPTH: u32 = (1 << 24) - 1;
/// Number of bits of a [`BlockPlace`] that the group takes.
const GROUP_BITS: u32 = u8::BITS;

/// An engine announced more blocks than `kv_events.max_blocks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the engine announced more than {0} blocks: its blocks are forgotten; raise kv_events.max_blocks"
)]
pub struct TooManyBlocks(pub usize);

impl BlockSet {
    /// An empty set for at most `max_blocks` blocks.
    pub fn new(max_blocks: usize, seed: u64) -> Self {
        Self { blocks: HashTable::new(), copies: HashMap::new(), max_blocks, seed }
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
        self.place(hash).is_some()
    }

    /// The depth and the group of a block. `None`: the set does not contain the block.
    pub fn place(&self, hash: BlockHash) -> Option<BlockPlace> {
        let block = self.blocks.find(position(hash, self.seed), |block| block.hash == hash);
        block.map(|block| block.place)
    }

    /// Adds a block. If the set contains the block already and `counts_copy` is true, adds a copy
    /// of the block. Returns whether the block is new in the set.
    pub fn store(
        &mut self,
        hash: BlockHash,
        place: BlockPlace,
        counts_copy: bool,
    ) -> Result<bool, TooManyBlocks> {
        let seed = self.seed;
        if let Some(block) = self.blocks.find_mut(position(hash, seed), |block| block.hash == hash)
        {
            if block.place.depth() == UNKNOWN_DEPTH {
                block.place = BlockPlace::new(place.depth(), block.place.group());
            }
            if counts_copy {
                let copies = self.copies.entry(hash).or_default();
                *copies = copies.saturating_add(1);
            }
            return Ok(false);
        }
        if self.blocks.len() >= self.max_blocks {
            return Err(TooManyBlocks(self.max_blocks));
        }
        let rehash = |block: &Block| position(block.hash, seed);
        self.blocks.insert_unique(position(hash, seed), Block { hash, place }, rehash);
        Ok(true)
    }

    /// Removes one copy of a block. Returns the group of the block if this was its last copy. `None`: the
    /// block is unknown, or copies are left.
    pub fn remove(&mut self, hash: BlockHash) -> Option<GroupNumber> {
        if let Some(copies) = self.copies.get_mut(&hash) {
            *copies -= 1;
            if *copies == 0 {
                self.copies.remove(&hash);
            }
            return None;
        }
        let found = self.blocks.find_entry(position(hash, self.seed), |block| block.hash == hash);
        found.ok().map(|entry| entry.remove().0.place.group())
    }

    /// Assigns the blocks of the `freed` groups to [`GroupNumber::OTHER`].
    pub fn relabel(&mut self, freed: &FreedGroups) {
        for block in self.blocks.iter_mut().filter(|block| freed.contains(block.place.group())) {
            block.place = BlockPlace::new(block.place.depth(), GroupNumber::OTHER);
        }
    }

    /// Removes all blocks and frees their memory.
    pub fn clear(&mut self) {
        *self = Self::new(self.max_blocks, self.seed);
    }
}

impl BlockPlace {
    /// Packs a depth and a group. A depth above [`UNKNOWN_DEPTH`] counts as unknown.
    pub fn new(depth: u32, group: GroupNumber) -> Self {
        Self(depth.min(UNKNOWN_DEPTH) << GROUP_BITS | u32::from(group.0))
    }

    /// Number of blocks of the prompt before the block, or [`UNKNOWN_DEPTH`].
    pub fn depth(self) -> u32 {
        self.0 >> GROUP_BITS
    }

    /// The group of the prompts that contain the block.
    pub fn group(self) -> GroupNumber {
        GroupNumber(self.0 as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(depth: u32) -> BlockPlace {
        BlockPlace::new(depth, GroupNumber(3))
    }

    fn depth(set: &BlockSet, hash: BlockHash) -> Option<u32> {
        set.place(hash).map(BlockPlace::depth)
    }

    #[test]
    fn a_block_entry_returns_the_depth_and_the_group_from_which_it_was_built() {
        for (depth, group) in [(0, 0), (5, 255), (UNKNOWN_DEPTH, 7)] {
            let place = BlockPlace::new(depth, GroupNumber(group));
            assert_eq!((place.depth(), place.group()), (depth, GroupNumber(group)));
        }
        assert_eq!(at(u32::MAX).depth(), UNKNOWN_DEPTH);
    }

    #[test]
    fn removing_a_block_returns_its_group_and_blocks_of_freed_groups_move_to_the_group_other() {
        let mut set = BlockSet::new(10, 0);
        set.store(1, at(0), true).unwrap();
        set.store(2, BlockPlace::new(1, GroupNumber(4)), true).unwrap();
        set.store(3, at(2), true).unwrap();
        assert_eq!((set.remove(1), set.remove(1)), (Some(GroupNumber(3)), None));
        set.relabel(&FreedGroups::new(&[GroupNumber(4)]));
        assert_eq!(
            (set.remove(2), set.remove(3)),
            (Some(GroupNumber::OTHER), Some(GroupNumber(3)))
        );
    }

    #[test]
    fn a_set_of_cached_blocks_takes_at_most_32_bytes_for_each_block_at_every_size() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut set = BlockSet::new(usize::MAX, 7);
        let mut greatest = 0.0_f64;
        for count in 1..=600_000 {
            set.store(random.u64(..), at(count), true).unwrap();
            if count > 1_000 {
                greatest = greatest.max(set.bytes() as f64 / f64::from(count));
            }
        }
        // The number of bytes per block is greatest just after the table has grown.
        assert!((25.0..32.0).contains(&greatest), "{greatest} bytes per block");
    }

    #[test]
    fn a_block_that_is_announced_again_without_a_copy_is_not_counted_and_gets_its_depth() {
        let mut set = BlockSet::new(10, 0);
        set.store(5, at(UNKNOWN_DEPTH), true).unwrap();
        set.store(5, at(3), false).unwrap();
        assert_eq!(depth(&set, 5), Some(3));
        set.remove(5);
        assert!(set.is_empty());
    }

    #[test]
    fn a_set_of_cached_blocks_refuses_new_blocks_above_its_limit() {
        let mut set = BlockSet::new(2, 0);
        set.store(1, at(0), true).unwrap();
        set.store(2, at(1), true).unwrap();
        assert_eq!(set.store(3, at(2), true), Err(TooManyBlocks(2)));
        assert_eq!(set.store(2, at(1), true), Ok(false));
        set.clear();
        assert_eq!((set.store(3, at(2), true), set.contains(1)), (Ok(true), false));
    }

    proptest! {
        #[test]
        fn the_set_of_cached_blocks_agrees_with_a_plain_map_of_copy_counts(
            operations in proptest::collection::vec((0_u64..12, any::<bool>()), 0..300), seed: u64,
        ) {
            let mut set = BlockSet::new(100, seed);
            let mut counts = HashMap::<u64, u32>::new();
            for (hash, is_stored) in operations {
                if is_stored {
                    set.store(hash, at(hash as u32), true).unwrap();
                    *counts.entry(hash).or_default() += 1;
                } else {
                    set.remove(hash);
                    counts.entry(hash).and_modify(|count| *count = count.saturating_sub(1));
                }
                let is_stored = |hash: &u64| counts.get(hash).is_some_and(|count| *count > 0);
                for hash in 0..12 {
                    let expected = is_stored(&hash).then_some(hash as u32);
                    prop_assert_eq!((set.contains(hash), depth(&set, hash)), (expected.is_some(), expected));
                }
                prop_assert_eq!(set.len(), (0..12).filter(is_stored).count());
            }
        }
    }
}
