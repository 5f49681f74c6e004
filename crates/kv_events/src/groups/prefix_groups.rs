//! The groups of prompts in one prefix cache: the number of blocks of each, and the evictions between them.
//!
//! An engine first removes the blocks whose space a request needs, and then stores the blocks of the request.
//! So the removed blocks were evicted by the group of the next stored block.

use super::evicted_blocks::EvictedBlocks;
use super::group_number::{FreedGroups, GroupNumber};
use crate::decoder::BlockHash;
use std::collections::HashMap;

/// The groups of prompts in one prefix cache, with their blocks and their evictions.
#[derive(Debug)]
pub struct PrefixGroups {
    /// The groups, indexed by their numbers.
    groups: Box<[GroupCounts]>,
    numbers: HashMap<u64, GroupNumber>,
    /// Group numbers that no group has.
    free: Vec<GroupNumber>,
    /// Evictions by pair of groups: the group that lost the blocks, and the group that took their space.
    evictions: HashMap<(GroupNumber, GroupNumber), EvictionCounts>,
    evicted: EvictedBlocks,
    /// Removed blocks whose space no stored block has taken yet, with their groups.
    removed: Vec<(BlockHash, GroupNumber)>,
    /// Number of calls of [`Self::number`]. It orders the uses of the groups in time.
    uses: u64,
}

/// The identity of a group of prompts, and the number of its blocks in one prefix cache.
#[derive(Debug, Clone, Copy, Default)]
pub struct GroupCounts {
    /// Hash of the block that all prompts of the group share and that identifies the group. 0 for
    /// [`GroupNumber::OTHER`].
    pub key: u64,
    /// Hash of the text with which the prompts of the group begin. `None`: not known.
    pub text: Option<u64>,
    /// Number of blocks of the group in the cache.
    pub blocks: u32,
    /// Value of [`PrefixGroups::uses`] when the group was last used.
    last_use: u64,
}

/// How many blocks of one group another group evicted. A group can also evict its own blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EvictionCounts {
    /// Number of evicted blocks.
    pub evicted: u64,
    /// Number of evicted blocks that were stored again, so they were evicted too early.
    pub recomputed: u64,
}

/// Number of groups that lose their numbers at once, when a new group needs a number and none is free.
const FREED_AT_ONCE: usize = 64;
/// Greatest number of entries of `PrefixGroups::evictions`, each a pair of groups.
const MAX_PAIRS: usize = 1_024;
/// Maximum number of removed blocks whose space no stored block has taken yet.
const MAX_REMOVED: usize = 4_096;

impl PrefixGroups {
    /// Creates the state without any group. `evicted_blocks`: number of evicted blocks to remember,
    /// in 4 bytes each. `seed`: a random number.
    pub fn new(evicted_blocks: usize, seed: u64) -> Self {
        Self {
            groups: vec![GroupCounts::default(); GroupNumber::COUNT].into(),
            numbers: HashMap::new(),
            free: (1..=u8::MAX).rev().map(GroupNumber).collect(),
            evictions: HashMap::new(),
            evicted: EvictedBlocks::new(evicted_blocks, seed),
            removed: Vec::new(),
            uses: 0,
        }
    }

    /// The number of the group with this key, and whether the group is new. If no number is free for a new
    /// group, some groups lose their numbers. In this case `relabel` is called with these groups before the
    /// new group gets a number.
    pub fn number(&mut self, key: u64, relabel: impl FnOnce(&FreedGroups)) -> (GroupNumber, bool) {
        self.uses += 1;
        let known = self.numbers.get(&key).copied();
        let number = known.unwrap_or_else(|| self.add(key, relabel));
        self.groups[number.index()].last_use = self.uses;
        (number, known.is_none())
    }

    /// The number of the group with this key. `None`: no group has this key.
    pub fn known(&self, key: u64) -> Option<GroupNumber> {
        self.numbers.get(&key).copied()
    }

    /// Sets the hash of the text with which the prompts of a group begin, unless the hash is known
    /// already.
    pub fn set_text(&mut self, group: GroupNumber, text: u64) {
        if group != GroupNumber::OTHER {
            self.groups[group.index()].text.get_or_insert(text);
        }
    }

    /// Records that the cache stored a block that the cache did not have.
    pub fn on_stored(&mut self, group: GroupNumber, block: BlockHash) {
        self.settle(group);
        self.groups[group.index()].blocks += 1;
        if let Some(evictor) = self.evicted.take(block) {
            self.pair(group, evictor).recomputed += 1;
        }
    }

    /// Records that the cache removed a block.
    pub fn on_removed(&mut self, group: GroupNumber, block: BlockHash) {
        let blocks = &mut self.groups[group.index()].blocks;
        *blocks = blocks.saturating_sub(1);
        if self.removed.len() >= MAX_REMOVED {
            self.settle(GroupNumber::OTHER);
        }
        self.removed.push((block, group));
    }

    /// Records that the cache was emptied. The groups and the counts of their evictions stay.
    pub fn on_cleared(&mut self) {
        self.groups.iter_mut().for_each(|group| group.blocks = 0);
        self.removed = Vec::new();
        self.evicted.clear();
    }

    /// The counts of all groups and of [`GroupNumber::OTHER`].
    pub fn counts(&self) -> impl Iterator<Item = (GroupNumber, &GroupCounts)> {
        let numbers = self.numbers.values().copied().chain([GroupNumber::OTHER]);
        numbers.map(|number| (number, &self.groups[number.index()]))
    }

    /// The evictions by pair of groups: the group that lost blocks, and the group that took their space.
    pub fn evictions(&self) -> impl Iterator<Item = (GroupNumber, GroupNumber, EvictionCounts)> {
        self.evictions.iter().map(|((loser, evictor), counts)| (*loser, *evictor, *counts))
    }

    /// Approximate number of allocated bytes.
    pub fn bytes(&self) -> usize {
        let groups = size_of_val(&*self.groups) + GroupNumber::COUNT * size_of::<GroupNumber>();
        let numbers = self.numbers.capacity() * (size_of::<(u64, GroupNumber)>() + 1);
        let pair = size_of::<((GroupNumber, GroupNumber), EvictionCounts)>() + 1;
        let pairs = self.evictions.capacity() * pair;
        let removed = self.removed.capacity() * size_of::<(BlockHash, GroupNumber)>();
        groups + numbers + pairs + removed + self.evicted.bytes()
    }

    fn add(&mut self, key: u64, relabel: impl FnOnce(&FreedGroups)) -> GroupNumber {
        if self.free.is_empty() {
            relabel(&self.free_smallest());
        }
        let Some(number) = self.free.pop() else { return GroupNumber::OTHER };
        self.groups[number.index()] = GroupCounts { key, ..GroupCounts::default() };
        self.numbers.insert(key, number);
        number
    }

    /// Takes the numbers from the groups with the fewest blocks. Of groups with equally many
    /// blocks, those that have been unused for longest lose their numbers.
    fn free_smallest(&mut self) -> FreedGroups {
        let mut numbers: Vec<GroupNumber> = self.numbers.values().copied().collect();
        let rank = |number: &GroupNumber| {
            let group = &self.groups[number.index()];
            (group.blocks, group.last_use)
        };
        numbers.sort_unstable_by_key(rank);
        numbers.truncate(FREED_AT_ONCE);
        let freed = FreedGroups::new(&numbers);
        for number in &numbers {
            let group = std::mem::take(&mut self.groups[number.index()]);
            self.groups[GroupNumber::OTHER.index()].blocks += group.blocks;
        }
        self.numbers.retain(|_, number| !freed.contains(*number));
        self.evictions.retain(|(a, b), _| !freed.contains(*a) && !freed.contains(*b));
        self.evicted.forget_groups(&freed);
        for (_, group) in &mut self.removed {
            if freed.contains(*group) {
                *group = GroupNumber::OTHER;
            }
        }
        self.free = numbers;
        freed
    }

    /// Records that the group `evictor` took the space of the blocks that were removed since the last call.
    pub fn settle(&mut self, evictor: GroupNumber) {
        if self.removed.is_empty() {
            return;
        }
        let mut removed = std::mem::take(&mut self.removed);
        for (block, loser) in removed.drain(..) {
            self.pair(loser, evictor).evicted += 1;
            self.evicted.insert(block, evictor);
        }
        // Keeps the allocated memory of the list.
        self.removed = removed;
    }

    fn pair(&mut self, loser: GroupNumber, evictor: GroupNumber) -> &mut EvictionCounts {
        if self.evictions.len() >= MAX_PAIRS && !self.evictions.contains_key(&(loser, evictor)) {
            let mut counts: Vec<u64> = self.evictions.values().map(|it| it.evicted).collect();
            let (_, median, _) = counts.select_nth_unstable(MAX_PAIRS / 2);
            let median = *median;
            self.evictions.retain(|_, counts| counts.evicted > median);
        }
        self.evictions.entry((loser, evictor)).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of `capacity` blocks that evicts the oldest ones.
    struct Cache {
        groups: PrefixGroups,
        blocks: std::collections::VecDeque<(u64, GroupNumber)>,
        capacity: usize,
    }

    impl Cache {
        fn new(capacity: usize) -> Self {
            Self { groups: PrefixGroups::new(1 << 15, 1), blocks: [].into(), capacity }
        }

        fn send(&mut self, key: u64, count: u64) -> GroupNumber {
            let relabel = |freed: &FreedGroups| {
                for (_, group) in &mut self.blocks {
                    if freed.contains(*group) {
                        *group = GroupNumber::OTHER;
                    }
                }
            };
            let (group, _) = self.groups.number(key, relabel);
            for block in (0..count).map(|block| key * 1_000_000 + block) {
                if self.blocks.iter().any(|(known, _)| *known == block) {
                    continue;
                }
                if self.blocks.len() >= self.capacity {
                    let (oldest, loser) = self.blocks.pop_front().unwrap();
                    self.groups.on_removed(loser, oldest);
                }
                self.groups.on_stored(group, block);
                self.blocks.push_back((block, group));
            }
            group
        }

        fn blocks(&self, key: u64) -> Option<u32> {
            self.groups
                .counts()
                .find(|(_, counts)| counts.key == key)
                .map(|(_, counts)| counts.blocks)
        }

        fn evictions(&self, loser: GroupNumber, evictor: GroupNumber) -> EvictionCounts {
            let mut pairs = self.groups.evictions();
            let pair = pairs.find(|pair| (pair.0, pair.1) == (loser, evictor));
            pair.map(|pair| pair.2).unwrap_or_default()
        }
    }

    #[test]
    fn a_group_of_prompts_that_takes_cache_space_of_another_group_evicts_its_blocks() {
        let mut cache = Cache::new(100);
        let (first, second) = (cache.send(1, 80), cache.send(2, 80));
        assert_eq!((cache.blocks(1), cache.blocks(2)), (Some(20), Some(80)));
        assert_eq!(cache.evictions(first, second), EvictionCounts { evicted: 60, recomputed: 0 });
        assert_eq!(cache.evictions(second, first), EvictionCounts::default());
    }

    #[test]
    fn only_evicted_blocks_that_the_cache_stores_again_count_as_evicted_too_early() {
        let mut cache = Cache::new(100);
        let first = cache.send(1, 80);
        for key in 2..50 {
            cache.send(key, 80);
        }
        assert!(cache.groups.evictions().all(|(.., counts)| counts.recomputed == 0));
        let second = cache.send(2, 80);
        cache.send(1, 80);
        let recomputed = |loser| {
            let pairs = cache.groups.evictions().filter(|pair| pair.0 == loser);
            pairs.map(|(.., counts)| counts.recomputed).sum::<u64>()
        };
        // The cache evicted 3,840 blocks. In the table of evicted blocks, some of them replaced others.
        for loser in [first, second] {
            assert!((60..=80).contains(&recomputed(loser)), "{}", recomputed(loser));
        }
    }

    #[test]
    fn blocks_that_a_cache_loses_because_it_is_cleared_do_not_count_as_evicted() {
        let mut cache = Cache::new(100);
        let first = cache.send(1, 80);
        cache.groups.on_cleared();
        cache.blocks.clear();
        assert_eq!(cache.blocks(1), Some(0));
        assert_eq!(cache.send(1, 80), first);
        assert_eq!(cache.groups.evictions().count(), 0);
    }

    #[test]
    fn with_many_groups_of_prompts_all_blocks_are_counted_and_large_groups_keep_their_numbers() {
        let mut cache = Cache::new(5_000);
        cache.send(1, 300);
        for key in 2..3_000 {
            cache.send(key, 3 + key % 2);
            let counted: u32 = cache.groups.counts().map(|(_, counts)| counts.blocks).sum();
            assert_eq!(counted as usize, cache.blocks.len());
            if key < 1_000 {
                assert_eq!(cache.blocks(1), Some(300));
            }
            assert!(cache.groups.numbers.len() < GroupNumber::COUNT);
            assert!(cache.groups.evictions.len() <= MAX_PAIRS);
        }
        assert_eq!(cache.blocks(2_999), Some(4));
        assert!(cache.groups.bytes() < 256 << 10, "{}", cache.groups.bytes());
    }

    #[test]
    fn a_group_of_prompts_keeps_the_first_text_that_it_gets() {
        let mut groups = PrefixGroups::new(1 << 15, 1);
        let (number, is_new) = groups.number(9, |_| ());
        assert!(is_new && !groups.number(9, |_| ()).1);
        groups.set_text(number, 5);
        groups.set_text(number, 6);
        groups.set_text(GroupNumber::OTHER, 7);
        let texts: Vec<_> = groups.counts().map(|(_, counts)| (counts.key, counts.text)).collect();
        assert_eq!(texts, [(9, Some(5)), (0, None)]);
    }
}
