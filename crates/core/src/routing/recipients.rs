//! Which replicas were sent a prompt's blocks lately: a hint whom to look at, for fleets that are
//! too large to ask each replica's own table. It may be wrong in any way; the tables correct it.
//!
//! One array of atomic words in sets of eight, newest first: a tag of the block, and a replica.
//! Only the first blocks of a prompt and every eighth are kept, because a hint need not be exact.

use std::sync::atomic::{AtomicU64, Ordering};

/// The hints of a fleet.
#[derive(Debug)]
pub(super) struct Recipients {
    slots: Box<[AtomicU64]>,
}

/// Slots that a block may be in: one line of the CPU's cache.
const WAYS: usize = 8;
/// Slots of all: 1 MiB, for the prompts of about a hundred million tokens.
const SLOTS: usize = 1 << 17;
/// Most replicas that are remembered for a block.
const OF_BLOCK: usize = 4;
/// Blocks from one that is kept to the next, but for the first ones.
const STRIDE: usize = 8;
/// Bits of a replica's position in a slot.
const POSITION_BITS: u32 = 16;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;
/// A slot with nothing in it. Position [`POSITION_MASK`] is not kept, so no slot looks like it.
const EMPTY: u64 = u64::MAX;

impl Recipients {
    /// Most replicas that are named for a prompt.
    pub(super) const MOST: usize = 8;

    /// Nothing was sent.
    pub(super) fn new() -> Self {
        let slots = std::iter::repeat_with(|| AtomicU64::new(EMPTY)).take(SLOTS).collect();
        Self { slots }
    }

    /// Its size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<AtomicU64>()
    }

    /// The blocks were sent to the replica at this position.
    pub(super) fn add(&self, blocks: &[u64], position: usize) {
        let position = position as u64;
        if position < POSITION_MASK {
            kept(blocks.len()).for_each(|index| self.put(blocks[index], position));
        }
    }

    /// The positions of replicas that were sent most of these blocks.
    pub(super) fn of(&self, blocks: &[u64]) -> Vec<usize> {
        let kept: Vec<usize> = kept(blocks.len()).collect();
        // A block is a hash of itself and all before it: what was sent is a prefix.
        let sent = kept.partition_point(|index| self.holders(blocks[*index]).next().is_some());
        let mut found = Vec::new();
        for index in kept[..sent].iter().rev() {
            for position in self.holders(blocks[*index]) {
                if found.len() < Self::MOST && !found.contains(&position) {
                    found.push(position);
                }
            }
            if found.len() == Self::MOST {
                break;
            }
        }
        found
    }

    /// The newest comes first, and moves the others on.
    fn put(&self, block: u64, position: u64) {
        let (mut next, mut of_block) = (tag(block) | position, 1);
        for slot in self.set(block) {
            let held = slot.swap(next, Ordering::Relaxed);
            let is_same = held & !POSITION_MASK == tag(block);
            of_block += usize::from(is_same);
            if held == EMPTY || held == (tag(block) | position) || is_same && of_block > OF_BLOCK {
                return;
            }
            next = held;
        }
    }

    fn holders(&self, block: u64) -> impl Iterator<Item = usize> {
        let words = self.set(block).iter().map(|slot| slot.load(Ordering::Relaxed));
        let held = words.filter(move |word| *word != EMPTY && word & !POSITION_MASK == tag(block));
        held.map(|word| (word & POSITION_MASK) as usize)
    }

    fn set(&self, block: u64) -> &[AtomicU64] {
        let first = (block as usize % (SLOTS / WAYS)) * WAYS;
        &self.slots[first..first + WAYS]
    }
}

/// The blocks of a prompt that are kept, the shortest prefix first.
fn kept(blocks: usize) -> impl Iterator<Item = usize> {
    let first = [0, 1, 3].into_iter();
    first.chain((STRIDE - 1..blocks).step_by(STRIDE)).filter(move |index| *index < blocks)
}

/// The upper bits of a block.
fn tag(block: u64) -> u64 {
    block & !POSITION_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(seed: u64, count: usize) -> Vec<u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        std::iter::repeat_with(|| random.u64(..)).take(count).collect()
    }

    #[test]
    fn those_with_the_longest_prefix_come_first_and_the_newest_of_them() {
        let recipients = Recipients::new();
        let (long, other) = (blocks(1, 100), blocks(2, 100));
        recipients.add(&long[..20], 5);
        recipients.add(&long, 6);
        recipients.add(&long, 7);
        recipients.add(&other, 8);
        assert_eq!(recipients.of(&long), [7, 6, 5]);
        assert_eq!(recipients.of(&long[..30]), [7, 6, 5]);
        assert_eq!(recipients.of(&[&long[..40], &blocks(4, 60)].concat()), [7, 6, 5]);
        assert_eq!(recipients.of(&blocks(3, 100)), [0; 0]);
        assert_eq!(recipients.of(&[]), [0; 0]);
    }

    #[test]
    fn a_system_prompt_that_all_have_does_not_push_out_the_others_of_its_set() {
        let recipients = Recipients::new();
        let (system, mine) = (blocks(1, 1), blocks(2, 1));
        // Two blocks of one set.
        let mine = [mine[0] >> 32 << 32 | system[0] & 0xffff_ffff];
        recipients.add(&mine, 900);
        (0..500).for_each(|position| recipients.add(&system, position));
        assert_eq!(recipients.of(&mine), [900]);
        assert_eq!(recipients.of(&system), [499, 498, 497, 496]);
    }

    #[test]
    fn a_replica_that_is_sent_the_same_again_is_named_once() {
        let recipients = Recipients::new();
        let prompt = blocks(1, 9);
        for position in [1, 2, 1, 1] {
            recipients.add(&prompt, position);
        }
        assert_eq!(recipients.of(&prompt), [1, 2]);
    }

    #[test]
    fn a_position_that_does_not_fit_is_not_kept() {
        let recipients = Recipients::new();
        recipients.add(&[u64::MAX, 1], 65_535);
        recipients.add(&[u64::MAX, 1], 1 << 40);
        assert_eq!(recipients.of(&[u64::MAX, 1]), [0; 0]);
    }
}
