//! Which blocks of prompts a replica has probably cached: those that were sent to it, for as long
//! as its cache can have kept them.
//!
//! A table is an array of atomic words in sets of eight, as in a CPU's cache: no lock, no pointers,
//! and never larger than it was made. Each word holds a tag of the block and the age of the table
//! when the block was last used. The age counts blocks that were new, so a block is believed for
//! as many new ones as the replica has room for: about the order in which it forgets them itself.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The blocks of one replica.
#[derive(Debug)]
pub struct PrefixTable {
    slots: Box<[AtomicU64]>,
    /// New blocks so far.
    age: AtomicU32,
}

/// Slots that a block may be in: one line of the CPU's cache.
const WAYS: usize = 8;
/// Bits of the age in a slot. A table has far fewer slots than ages, so none comes round again
/// before its slot has been taken.
const AGE_BITS: u32 = 24;
const AGE_MASK: u32 = (1 << AGE_BITS) - 1;
/// A slot with nothing in it.
const EMPTY: u64 = 0;
/// Fewest and most slots of a table.
const SLOTS: std::ops::RangeInclusive<usize> = 1 << 8..=1 << 17;

impl PrefixTable {
    /// An empty table for a cache of about this many blocks. It has a quarter more slots, because
    /// sets do not fill evenly; 8 bytes each.
    pub fn new(blocks: usize) -> Self {
        let slots = (blocks.saturating_add(blocks / 4)).clamp(*SLOTS.start(), *SLOTS.end());
        let slots = slots.next_power_of_two();
        let slots = std::iter::repeat_with(AtomicU64::default).take(slots).collect();
        Self { slots, age: AtomicU32::new(1) }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.slots.len() * size_of::<AtomicU64>()
    }

    /// How many of a prompt's first blocks are there, if the cache keeps `capacity` blocks. A
    /// block is a hash of itself and all before it, so what is there is a prefix, and a binary
    /// search finds its end. A hole in it is an accident of the table, not of the cache.
    pub fn matched(&self, blocks: &[u64], capacity: usize) -> usize {
        let lifetime = u32::try_from(capacity).unwrap_or(u32::MAX).min(AGE_MASK);
        let age = self.age.load(Ordering::Relaxed);
        let has = |block: &u64| self.has(*block, age, lifetime);
        // Most replicas have little of a prompt: look for the first miss in growing steps.
        let mut reach = 1;
        while blocks.get(reach - 1).is_some_and(has) {
            reach *= 2;
        }
        let known = (reach / 2).min(blocks.len());
        known + blocks[known..reach.min(blocks.len())].partition_point(has)
    }

    /// The blocks of a prompt are used now.
    pub fn touch(&self, blocks: &[u64]) {
        let new = blocks.iter().filter(|block| self.keep(**block)).count();
        self.age.fetch_add(u32::try_from(new).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Forgets everything: the replica has.
    pub fn clear(&self) {
        for slot in &self.slots {
            slot.store(EMPTY, Ordering::Relaxed);
        }
    }

    fn has(&self, block: u64, age: u32, lifetime: u32) -> bool {
        let tag = tag(block);
        self.set(block).iter().any(|slot| {
            let word = slot.load(Ordering::Relaxed);
            word >> AGE_BITS == tag && since(word, age) < lifetime
        })
    }

    /// Puts a block where it was, or in the place of the one unused for longest. True if it is new.
    fn keep(&self, block: u64) -> bool {
        let (tag, age) = (tag(block), self.age.load(Ordering::Relaxed));
        let word = tag << AGE_BITS | u64::from(age & AGE_MASK);
        let mut oldest = None;
        for slot in self.set(block) {
            let held = slot.load(Ordering::Relaxed);
            if held >> AGE_BITS == tag {
                slot.store(word, Ordering::Relaxed);
                return false;
            }
            let idle = if held == EMPTY { u32::MAX } else { since(held, age) };
            if oldest.is_none_or(|(most, _)| idle > most) {
                oldest = Some((idle, slot));
            }
        }
        if let Some((_, slot)) = oldest {
            slot.store(word, Ordering::Relaxed);
        }
        true
    }

    fn set(&self, block: u64) -> &[AtomicU64] {
        let sets = self.slots.len() / WAYS;
        let first = (block as usize % sets) * WAYS;
        &self.slots[first..first + WAYS]
    }
}

/// New blocks since a slot was written.
fn since(word: u64, age: u32) -> u32 {
    age.wrapping_sub(word as u32) & AGE_MASK
}

/// The upper bits of a block; never that of an empty slot.
fn tag(block: u64) -> u64 {
    (block >> AGE_BITS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks(seed: u64, count: usize) -> Vec<u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        std::iter::repeat_with(|| random.u64(..)).take(count).collect()
    }

    #[test]
    fn a_prompt_is_found_again_and_another_one_only_as_far_as_they_are_equal() {
        let table = PrefixTable::new(1_000);
        let first = blocks(1, 40);
        assert_eq!(table.matched(&first, 1_000), 0);
        table.touch(&first);
        assert_eq!(table.matched(&first, 1_000), 40);
        let second = [&first[..25], &blocks(2, 10)].concat();
        assert_eq!(table.matched(&second, 1_000), 25);
    }

    #[test]
    fn what_the_cache_has_no_room_for_is_not_believed() {
        let table = PrefixTable::new(1_000);
        let (old, new) = (blocks(1, 100), blocks(2, 400));
        table.touch(&old);
        table.touch(&new);
        assert_eq!(table.matched(&old, 300), 0);
        assert_eq!(table.matched(&new, 401), 400);
        assert!(table.matched(&old, 1_000) > 90);
    }

    #[test]
    fn a_prompt_that_is_used_again_and_again_stays() {
        let table = PrefixTable::new(500);
        let system = blocks(1, 20);
        for turn in 0..200 {
            table.touch(&[&system[..], &blocks(100 + turn, 30)].concat());
        }
        assert_eq!(table.matched(&system, 400), 20);
    }

    #[test]
    fn a_table_is_bounded_whatever_is_asked_for_and_can_be_cleared() {
        assert_eq!(PrefixTable::new(usize::MAX).bytes(), 1 << 20);
        let table = PrefixTable::new(0);
        let prompt = blocks(3, 64);
        table.touch(&prompt);
        assert!(table.matched(&prompt, 1_000) > 50);
        table.clear();
        assert_eq!(table.matched(&prompt, 1_000), 0);
    }

    proptest! {
        #[test]
        fn never_more_blocks_match_than_were_sent(
            seeds in proptest::collection::vec(0_u64..20, 1..60), capacity in 0_usize..3_000,
        ) {
            let table = PrefixTable::new(500);
            for seed in &seeds {
                table.touch(&blocks(*seed, 50));
            }
            for seed in 0..20 {
                let matched = table.matched(&blocks(seed, 80), capacity);
                prop_assert!(matched <= 50 && (matched == 0 || seeds.contains(&seed)));
            }
        }
    }
}
