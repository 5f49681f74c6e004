//! Estimates which prompt blocks a backend has in its prefix cache. The estimate assumes that a block stays in
//! the cache until newer blocks fill the cache.
//!
//! The table is an array of atomic words in sets of eight, like a set-associative CPU cache. It needs no lock
//! and never grows. Each word holds the upper 40 bits of the block hash, and the age of the table at the last
//! use of the block (24 bits). The age of the table is the number of new blocks inserted so far. A block counts
//! as cached until, since its last use, the backend has received as many new blocks as its cache holds. This
//! approximates the LRU eviction of the engine.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Prompt blocks that were sent to one backend. They serve to estimate the contents of its prefix cache.
#[derive(Debug)]
pub struct PrefixTable {
    /// The sets of slots. Their number is a power of two.
    sets: Box<[[AtomicU64; WAYS]]>,
    /// Number of new blocks inserted so far.
    age: AtomicU32,
}

/// Slots per set: 64 bytes, one line of the CPU cache.
const WAYS: usize = 8;
/// Number of bits of a slot that hold the age. A table has far fewer slots than possible ages, so a slot is
/// overwritten before its age wraps around.
const AGE_BITS: u32 = 24;
const AGE_MASK: u32 = (1 << AGE_BITS) - 1;
const EMPTY: u64 = 0;
/// Minimum and maximum number of slots: 2 KiB to 1 MiB per table.
const SLOT_COUNT_RANGE: std::ops::RangeInclusive<usize> = 1 << 8..=1 << 17;

impl PrefixTable {
    /// An empty table for a cache of about `blocks` blocks. Sets do not fill evenly, so the table has at least
    /// a quarter more slots than the cache has blocks (8 bytes each, 256 to 131,072 slots).
    pub fn new(blocks: usize) -> Self {
        let slots = (blocks.saturating_add(blocks / 4))
            .clamp(*SLOT_COUNT_RANGE.start(), *SLOT_COUNT_RANGE.end());
        let sets = slots.next_power_of_two() / WAYS;
        let sets = std::iter::repeat_with(Default::default)
            .take(sets)
            .collect();
        Self {
            sets,
            age: AtomicU32::new(1),
        }
    }

    /// Size of the table in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// Number of leading blocks of a prompt that are probably cached, if the cache holds `capacity` blocks.
    /// `expected`: a guess at the result, such as the result for another backend, which the search tries first.
    ///
    /// The hash of a block covers all bytes before it, so the cached blocks are the first ones of the prompt,
    /// and a binary search finds the last cached block. If another block has overwritten an earlier block in
    /// this table, the search may end there, or may not notice the gap.
    pub fn matched(&self, blocks: &[u64], capacity: usize, expected: usize) -> usize {
        let lifetime = u32::try_from(capacity).unwrap_or(u32::MAX).min(AGE_MASK);
        let age = self.age.load(Ordering::Relaxed);
        let has = |block: &u64| self.has(*block, age, lifetime);
        let last_expected = expected.checked_sub(1).and_then(|last| blocks.get(last));
        let mut start = if last_expected.is_some_and(has) {
            expected
        } else {
            0
        };
        // Most backends have only a short prefix of the prompt, so the search looks ahead in steps that double
        // until a block is missing.
        let mut step = 1;
        while blocks.get(start + step - 1).is_some_and(has) {
            start += step;
            step *= 2;
        }
        let end = blocks.len().min(start + step - 1);
        start + blocks[start..end].partition_point(has)
    }

    /// The age of the table: the number of new blocks so far. It wraps around on overflow.
    pub fn age(&self) -> u32 {
        self.age.load(Ordering::Relaxed)
    }

    /// Number of leading blocks of a prompt that were sent to the backend since the table had the
    /// age `since_age`.
    pub fn matched_since(&self, blocks: &[u64], since_age: u32) -> usize {
        let new_blocks = self.age().wrapping_sub(since_age);
        self.matched(blocks, (new_blocks as usize).saturating_add(1), 0)
    }

    /// Records that a prompt with these block hashes is sent to the backend.
    pub fn touch(&self, blocks: &[u64]) {
        let new = blocks.iter().filter(|block| self.insert(**block)).count();
        self.age
            .fetch_add(u32::try_from(new).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Removes all blocks, after a restart of the backend.
    pub fn clear(&self) {
        for slot in self.sets.as_flattened() {
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

    /// Inserts a block, or updates its age if it is in the table. A new block overwrites the least recently
    /// used slot of its set. Returns whether the block is new.
    fn insert(&self, block: u64) -> bool {
        let tag = tag(block);
        let age = self.age.load(Ordering::Relaxed);
        let word = tag << AGE_BITS | u64::from(age & AGE_MASK);
        let mut oldest = None;
        for slot in self.set(block) {
            let current = slot.load(Ordering::Relaxed);
            if current >> AGE_BITS == tag {
                slot.store(word, Ordering::Relaxed);
                return false;
            }
            let unused = if current == EMPTY {
                u32::MAX
            } else {
                since(current, age)
            };
            if oldest.is_none_or(|(longest, _)| unused > longest) {
                oldest = Some((unused, slot));
            }
        }
        if let Some((_, slot)) = oldest {
            slot.store(word, Ordering::Relaxed);
        }
        true
    }

    fn set(&self, block: u64) -> &[AtomicU64; WAYS] {
        &self.sets[block as usize & (self.sets.len() - 1)]
    }
}

/// Number of new blocks in the table since `word` was written into its slot.
fn since(word: u64, age: u32) -> u32 {
    age.wrapping_sub(word as u32) & AGE_MASK
}

/// The upper 40 bits of a block hash, which identify the block in a slot. Never 0, the value of an empty slot.
fn tag(block: u64) -> u64 {
    (block >> AGE_BITS).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::blocks;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sent_prefix_counts_as_cached() {
        let table = PrefixTable::new(1_000);
        let first = blocks(1, 40);
        assert_eq!(table.matched(&first, 1_000, 0), 0);
        table.touch(&first);
        let second = [&first[..25], &blocks(2, 10)].concat();
        for expected in 0..50 {
            assert_eq!(table.matched(&first, 1_000, expected), 40);
            assert_eq!(table.matched(&second, 1_000, expected), 25);
        }
    }

    #[test]
    fn a_cache_of_new_blocks_evicts_old_ones() {
        let table = PrefixTable::new(1_000);
        let old = blocks(1, 100);
        let new = blocks(2, 400);
        table.touch(&old);
        table.touch(&new);
        assert_eq!(table.matched(&old, 300, 0), 0);
        assert_eq!(table.matched(&new, 401, 0), 400);
        assert!(table.matched(&old, 1_000, 0) > 90);
    }

    #[test]
    fn only_blocks_since_the_age_match() {
        let table = PrefixTable::new(1_000);
        let first = blocks(1, 20);
        let second = blocks(2, 20);
        let third = blocks(3, 20);
        table.touch(&first);
        table.touch(&second);
        let age = table.age();
        table.touch(&[&first[..10], &third].concat());
        assert_eq!(table.matched_since(&first, age), 10);
        assert_eq!(table.matched_since(&second, age), 0);
        assert_eq!(table.matched_since(&third, age), 20);
    }

    #[test]
    fn a_repeated_prefix_stays() {
        let table = PrefixTable::new(500);
        let system = blocks(1, 20);
        for turn in 0..200 {
            table.touch(&[&system[..], &blocks(100 + turn, 30)].concat());
        }
        assert_eq!(table.matched(&system, 400, 0), 20);
    }

    #[test]
    fn the_size_is_bounded_and_clearing_removes_all() {
        assert_eq!(PrefixTable::new(usize::MAX).bytes(), 1 << 20);
        let table = PrefixTable::new(0);
        let prompt = blocks(3, 64);
        table.touch(&prompt);
        assert!(table.matched(&prompt, 1_000, 0) > 50);
        table.clear();
        assert_eq!(table.matched(&prompt, 1_000, 0), 0);
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
                let matched = table.matched(&blocks(seed, 80), capacity, seed as usize);
                prop_assert!(matched <= 50 && (matched == 0 || seeds.contains(&seed)));
            }
        }
    }
}
