//! The last blocks that a cache has evicted, each with the group of prompts that took its space. If the cache
//! stores such a block again, the block was evicted too early.
//!
//! The table has a fixed size. A later block replaces an earlier block at the same position. The table then
//! no longer knows the earlier block, so nothing counts if that block is computed again.

use super::group_number::{FreedGroups, GroupNumber};
use crate::decoder::BlockHash;
use crate::key_hash::position;

/// A table of blocks that a cache has evicted, each with the group of prompts that took its space.
#[derive(Debug)]
pub(super) struct EvictedBlocks {
    /// Each entry has a tag in the upper 24 bits, derived from the hash of the evicted block. The lower 8
    /// bits are the group of prompts that took the space of the block. 0: no block. The table is empty before
    /// the first eviction.
    entries: Box<[u32]>,
    /// Number of entries of the table after the first eviction.
    capacity: usize,
    seed: u64,
}

const GROUP_BITS: u32 = 8;
const GROUP_MASK: u32 = (1 << GROUP_BITS) - 1;

impl EvictedBlocks {
    /// An empty table for about `capacity` blocks, in 4 bytes each.
    pub(super) fn new(capacity: usize, seed: u64) -> Self {
        Self { entries: Box::default(), capacity: capacity.max(1), seed }
    }

    /// Number of bytes that the table has allocated.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// Records that `group` took the space of an evicted block.
    pub(super) fn insert(&mut self, block: BlockHash, group: GroupNumber) {
        if self.entries.is_empty() {
            self.entries = vec![0; self.capacity].into();
        }
        let (index, tag) = self.place(block);
        self.entries[index] = tag | u32::from(group.0);
    }

    /// Removes a block that is stored again. Returns the group that had taken the space of the block. `None`:
    /// the table does not know the block.
    pub(super) fn take(&mut self, block: BlockHash) -> Option<GroupNumber> {
        let (index, tag) = self.place(block);
        let entry = self.entries.get_mut(index).filter(|entry| **entry & !GROUP_MASK == tag)?;
        Some(GroupNumber((std::mem::take(entry) & GROUP_MASK) as u8))
    }

    /// Assigns the blocks whose space the `freed` groups took to [`GroupNumber::OTHER`], because new groups
    /// get the numbers of the `freed` groups.
    pub(super) fn forget_groups(&mut self, freed: &FreedGroups) {
        for entry in &mut self.entries {
            if freed.contains(GroupNumber((*entry & GROUP_MASK) as u8)) {
                *entry &= !GROUP_MASK;
            }
        }
    }

    /// Removes all blocks from the table.
    pub(super) fn clear(&mut self) {
        self.entries = Box::default();
    }

    /// The index of a block in `entries`, and its tag. The tag is never 0.
    fn place(&self, block: BlockHash) -> (usize, u32) {
        let position = position(block, self.seed);
        (
            position as usize % self.capacity,
            ((position >> 32) as u32 | 1 << GROUP_BITS) & !GROUP_MASK,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evicted_block_that_is_stored_again_is_found_once_with_the_group_that_evicted_it() {
        let mut evicted = EvictedBlocks::new(1 << 15, 5);
        assert_eq!((evicted.take(1), evicted.bytes()), (None, 0));
        evicted.insert(1, GroupNumber(7));
        evicted.insert(2, GroupNumber(8));
        assert_eq!(evicted.take(1), Some(GroupNumber(7)));
        assert_eq!((evicted.take(1), evicted.take(3)), (None, None));
        evicted.forget_groups(&FreedGroups::new(&[GroupNumber(8)]));
        assert_eq!(evicted.take(2), Some(GroupNumber::OTHER));
    }

    #[test]
    fn the_table_of_evicted_blocks_has_a_fixed_size() {
        let mut evicted = EvictedBlocks::new(1 << 15, 5);
        (0..200_000).for_each(|block| evicted.insert(block, GroupNumber(1)));
        assert_eq!(evicted.bytes(), 128 << 10);
        assert_eq!(evicted.take(199_999), Some(GroupNumber(1)));
    }
}
