//! One index for a whole pool: from prompt blocks to the backends that received them lately.
//!
//! In a large pool, querying the [`PrefixTable`] of each backend for each request would be too slow. The index
//! returns some backends that probably have a prefix of the prompt, and only the tables of these backends are
//! queried. The index may be wrong, because the tables decide.
//!
//! The index is one array of atomic words in sets of eight, with the newest entry first. A word holds the upper
//! 48 bits of the block hash, and the position of a backend in the pool (16 bits). To save space, only some
//! blocks of a prompt are indexed: the first, second and fourth block and every eighth block.
//!
//! [`PrefixTable`]: super::prefix_table::PrefixTable

use std::sync::atomic::{AtomicU64, Ordering};

/// Index of the blocks that the backends of a pool received.
#[derive(Debug)]
pub(crate) struct PrefixHints {
    slots: Box<[AtomicU64]>,
}

/// Slots per set: 64 bytes, one line of the CPU cache.
const WAYS: usize = 8;
/// Number of slots of the index: 1 MiB, sufficient for prompts of about a hundred million tokens.
const SLOT_COUNT: usize = 1 << 17;
/// Maximum number of backends that the index stores for one block.
const MAX_HOLDERS_PER_BLOCK: usize = 4;
/// After the first, second and fourth block, one block in this number is indexed.
const BLOCK_STRIDE: usize = 8;
/// Number of bits of a slot that hold the position of a backend.
const POSITION_BITS: u32 = 16;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;
/// Value of an empty slot. Position [`POSITION_MASK`] is never stored, so a used slot never has
/// this value.
const EMPTY: u64 = u64::MAX;

impl PrefixHints {
    /// Maximum number of positions that [`lookup`](Self::lookup) returns.
    pub(crate) const MOST: usize = 8;

    /// An empty index.
    pub(crate) fn new() -> Self {
        let slots = std::iter::repeat_with(|| AtomicU64::new(EMPTY))
            .take(SLOT_COUNT)
            .collect();
        Self { slots }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<AtomicU64>()
    }

    /// Records that a prompt with these block hashes was sent to the backend at `position`.
    /// Positions of 65,535 and above are ignored.
    pub(crate) fn add(&self, blocks: &[u64], position: usize) {
        let position = position as u64;
        if position < POSITION_MASK {
            indexed_blocks(blocks.len()).for_each(|index| self.put(blocks[index], position));
        }
    }

    /// Positions of the backends that received the longest prefixes of a prompt with these block
    /// hashes, the longest prefix first.
    pub(crate) fn lookup(&self, blocks: &[u64]) -> Vec<usize> {
        let indexed: Vec<usize> = indexed_blocks(blocks.len()).collect();
        // The hash of a block covers all bytes before it, so the blocks that were sent earlier come first in
        // the prompt.
        let sent = indexed.partition_point(|index| self.holders(blocks[*index]).next().is_some());
        let mut positions = Vec::new();
        for index in indexed[..sent].iter().rev() {
            for position in self.holders(blocks[*index]) {
                if positions.len() < Self::MOST && !positions.contains(&position) {
                    positions.push(position);
                }
            }
            if positions.len() == Self::MOST {
                break;
            }
        }
        positions
    }

    /// Inserts an entry at the front of its set and moves the others by one slot. The moves end at the first
    /// slot that can be overwritten: an empty slot, the old copy of the entry, or the entry of this block that
    /// would exceed [`MAX_HOLDERS_PER_BLOCK`]. Without such a slot, the last entry of the set is lost.
    fn put(&self, block: u64, position: u64) {
        let mut next = tag(block) | position;
        let mut holder_count = 1;
        for slot in self.set(block) {
            let previous = slot.swap(next, Ordering::Relaxed);
            let is_same_block = previous & !POSITION_MASK == tag(block);
            holder_count += usize::from(is_same_block);
            if previous == EMPTY
                || previous == (tag(block) | position)
                || is_same_block && holder_count > MAX_HOLDERS_PER_BLOCK
            {
                return;
            }
            next = previous;
        }
    }

    fn holders(&self, block: u64) -> impl Iterator<Item = usize> {
        let words = self
            .set(block)
            .iter()
            .map(|slot| slot.load(Ordering::Relaxed));
        let matching =
            words.filter(move |word| *word != EMPTY && word & !POSITION_MASK == tag(block));
        matching.map(|word| (word & POSITION_MASK) as usize)
    }

    fn set(&self, block: u64) -> &[AtomicU64] {
        let first = (block as usize % (SLOT_COUNT / WAYS)) * WAYS;
        &self.slots[first..first + WAYS]
    }
}

/// Indices of the blocks of a prompt that are indexed, in ascending order.
fn indexed_blocks(blocks: usize) -> impl Iterator<Item = usize> {
    let first = [0, 1, 3].into_iter().filter(move |index| *index < blocks);
    first.chain((BLOCK_STRIDE - 1..blocks).step_by(BLOCK_STRIDE))
}

/// The upper 48 bits of a block hash, which identify the block in a slot.
fn tag(block: u64) -> u64 {
    block & !POSITION_MASK
}

#[cfg(test)]
mod tests {
    use super::super::blocks;
    use super::*;

    #[test]
    fn the_longest_then_latest_prefix_comes_first() {
        let hints = PrefixHints::new();
        let long = blocks(1, 100);
        let other = blocks(2, 100);
        hints.add(&long[..20], 5);
        hints.add(&long, 6);
        hints.add(&long, 7);
        hints.add(&other, 8);
        assert_eq!(hints.lookup(&long), [7, 6, 5]);
        assert_eq!(hints.lookup(&long[..30]), [7, 6, 5]);
        assert_eq!(
            hints.lookup(&[&long[..40], &blocks(4, 60)].concat()),
            [7, 6, 5]
        );
        assert_eq!(hints.lookup(&blocks(3, 100)), [0; 0]);
        assert_eq!(hints.lookup(&[]), [0; 0]);
    }

    #[test]
    fn a_shared_system_prompt_evicts_no_blocks() {
        let hints = PrefixHints::new();
        let system = blocks(1, 1);
        let random = blocks(2, 1);
        // This block belongs to the same set as the system prompt.
        let other_block = [random[0] >> 32 << 32 | system[0] & 0xffff_ffff];
        hints.add(&other_block, 900);
        (0..500).for_each(|position| hints.add(&system, position));
        assert_eq!(hints.lookup(&other_block), [900]);
        assert_eq!(hints.lookup(&system), [499, 498, 497, 496]);
    }

    #[test]
    fn a_backend_is_returned_once() {
        let hints = PrefixHints::new();
        let prompt = blocks(1, 9);
        for position in [1, 2, 1, 1] {
            hints.add(&prompt, position);
        }
        assert_eq!(hints.lookup(&prompt), [1, 2]);
    }

    #[test]
    fn positions_above_65534_are_ignored() {
        let hints = PrefixHints::new();
        hints.add(&[u64::MAX, 1], 65_535);
        hints.add(&[u64::MAX, 1], 1 << 40);
        assert_eq!(hints.lookup(&[u64::MAX, 1]), [0; 0]);
    }
}
