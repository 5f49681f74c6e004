//! A model of the prefix cache of one engine, built from the prompts that were sent to the engine. Like vLLM,
//! the model evicts the least recently used blocks first. Of the blocks of one prompt, it evicts the last one
//! first.

use super::group_number::GroupNumber;
use super::prefix_groups::PrefixGroups;
use crate::decoder::BlockHash;
use crate::key_hash::position;
use lru::LruCache;

/// A model of the prefix cache of one engine.
#[derive(Debug)]
pub struct ModelledCache {
    blocks: LruCache<BlockHash, GroupNumber>,
    groups: PrefixGroups,
    /// Number of blocks stored so far that no prompt can match, such as those of outputs. The hash of each
    /// such block is made from this number.
    unmatched: u64,
    seed: u64,
}

/// A prompt that the gateway sent to the engine.
#[derive(Debug, Clone, Copy)]
pub struct UsedPrompt<'a> {
    /// Hashes of the text blocks of the prompt. Each covers the block and all text before it.
    pub blocks: &'a [u64],
    /// Number of blocks in the cache that no prompt can match: those of the output, and of the end
    /// of the prompt, which has no hash.
    pub unmatched: usize,
}

/// Maximum number of blocks of the model: two million tokens in blocks of 128. The model of a
/// larger cache has this size.
const MAX_BLOCKS: usize = 1 << 14;
/// Number of evicted blocks that the model remembers, to detect blocks that were evicted too early.
const EVICTED_BLOCKS: usize = 1 << 13;
/// Estimated number of allocated bytes for each block of the model: its entry, and its share of the
/// hash table.
const BLOCK_BYTES: usize = 80;

impl ModelledCache {
    /// An empty cache. `seed`: a random number.
    pub fn new(seed: u64) -> Self {
        let blocks = LruCache::unbounded();
        Self { blocks, groups: PrefixGroups::new(EVICTED_BLOCKS, seed), unmatched: 0, seed }
    }

    /// The groups of prompts that fill the cache.
    pub fn groups(&self) -> &PrefixGroups {
        &self.groups
    }

    /// Approximate number of allocated bytes.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES + self.groups.bytes()
    }

    /// Records that the engine has computed a prompt. `capacity`: number of blocks that the engine's cache
    /// holds. Returns the number of the group of the prompt, and whether the group is new.
    pub fn use_prompt(&mut self, prompt: UsedPrompt<'_>, capacity: usize) -> (GroupNumber, bool) {
        let capacity = capacity.clamp(1, MAX_BLOCKS);
        let prompt_blocks = &prompt.blocks[..prompt.blocks.len().min(capacity)];
        let blocks = &mut self.blocks;
        let (group, is_new) = match prompt.blocks.first() {
            None => (GroupNumber::OTHER, false),
            Some(first) => {
                let (group, is_new) = self.groups.number(*first, |freed| {
                    for (_, group) in blocks.iter_mut() {
                        if freed.contains(*group) {
                            *group = GroupNumber::OTHER;
                        }
                    }
                });
                self.groups.set_text(group, *first);
                (group, is_new)
            }
        };
        // Like the engine, the model marks the cached blocks of the prompt as used before it evicts other
        // blocks.
        let cached = prompt_blocks.iter().take_while(|block| self.blocks.promote(block)).count();
        for _ in 0..prompt.unmatched.min(capacity - prompt_blocks.len()) {
            self.unmatched += 1;
            self.store(position(self.unmatched, self.seed), group, capacity);
        }
        for block in prompt_blocks[cached..].iter().rev() {
            self.store(*block, group, capacity);
        }
        for block in prompt_blocks[..cached].iter().rev() {
            self.blocks.promote(block);
        }
        // The capacity may be smaller than in the last call.
        self.evict_to(capacity);
        (group, is_new)
    }

    /// Empties the cache: the engine has restarted.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.groups.on_cleared();
    }

    fn store(&mut self, block: BlockHash, group: GroupNumber, capacity: usize) {
        if self.blocks.promote(&block) {
            return;
        }
        self.evict_to(capacity - 1);
        self.groups.on_stored(group, block);
        self.blocks.put(block, group);
    }

    fn evict_to(&mut self, blocks: usize) {
        while self.blocks.len() > blocks
            && let Some((oldest, loser)) = self.blocks.pop_lru()
        {
            self.groups.on_removed(loser, oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(text: u64, blocks: u64) -> Vec<u64> {
        (0..blocks).map(|block| text << 32 | block).collect()
    }

    fn send(cache: &mut ModelledCache, blocks: &[u64], unmatched: usize) -> GroupNumber {
        cache.use_prompt(UsedPrompt { blocks, unmatched }, 100).0
    }

    fn blocks_of(cache: &ModelledCache, group: GroupNumber) -> u32 {
        cache.groups().counts().find(|(number, _)| *number == group).unwrap().1.blocks
    }

    #[test]
    fn prompts_with_the_same_first_block_are_one_group_and_share_cached_blocks() {
        let mut cache = ModelledCache::new(1);
        let system = prompt(1, 20);
        let one = send(&mut cache, &[&system[..], &prompt(2, 5)].concat(), 3);
        let two = send(&mut cache, &[&system[..], &prompt(3, 5)].concat(), 3);
        assert_eq!((one, blocks_of(&cache, one)), (two, 20 + 2 * 8));
        assert_ne!(send(&mut cache, &prompt(4, 5), 0), one);
    }

    #[test]
    fn the_last_blocks_of_the_least_recently_used_prompt_are_evicted_first() {
        let mut cache = ModelledCache::new(1);
        let (first, second) = (prompt(1, 60), prompt(2, 40));
        send(&mut cache, &first, 0);
        send(&mut cache, &second, 0);
        send(&mut cache, &first[..30], 0);
        send(&mut cache, &prompt(3, 20), 0);
        let is_cached = |block: &u64| cache.blocks.contains(block);
        assert!(first[..40].iter().all(is_cached) && second.iter().all(is_cached));
        assert!(!first[40..].iter().any(is_cached));
    }

    #[test]
    fn the_modelled_cache_does_not_evict_cached_leading_blocks_of_the_prompt_that_it_stores() {
        let mut cache = ModelledCache::new(1);
        let long = prompt(1, 100);
        send(&mut cache, &long[..50], 0);
        send(&mut cache, &prompt(2, 50), 0);
        let group = send(&mut cache, &long, 0);
        assert_eq!(blocks_of(&cache, group), 100);
        assert!(cache.groups().evictions().all(|(.., counts)| counts.recomputed == 0));
    }

    #[test]
    fn the_modelled_cache_has_a_bounded_number_of_blocks_for_every_capacity_and_prompt() {
        let mut cache = ModelledCache::new(1);
        let long = prompt(1, 40_000);
        for capacity in [usize::MAX, 1, 0, 7] {
            cache.use_prompt(UsedPrompt { blocks: &long, unmatched: usize::MAX }, capacity);
            assert!(cache.blocks.len() <= capacity.clamp(1, MAX_BLOCKS));
        }
        cache.use_prompt(UsedPrompt { blocks: &[], unmatched: 4 }, 7);
        assert_eq!(blocks_of(&cache, GroupNumber::OTHER), 4);
        cache.clear();
        assert!(cache.blocks.is_empty());
    }
}
