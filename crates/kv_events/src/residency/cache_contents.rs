//! The contents of the prefix cache of one engine, from its events.

use super::block_set::{BlockPlace, BlockSet, TooManyBlocks, UNKNOWN_DEPTH};
use crate::decoder::{BlockHash, BlockRemoved, BlockStored, CacheKind, KvEvent, Medium};
use crate::groups::{GroupNumber, PrefixGroups};

/// Contents of the prefix cache of one engine.
///
/// vLLM divides the layers of a model into groups, and caches blocks for each group. An engine can
/// reuse a prompt only as far as a group with full attention has its blocks. So this type keeps the
/// blocks of one such group, the first that the engine announces, and ignores the blocks of other
/// groups.
#[derive(Debug)]
pub struct CacheContents {
    on_gpu: BlockSet,
    /// Blocks in CPU memory, on a disk or in a shared store. The engine loads them faster than it
    /// would compute them.
    offloaded: BlockSet,
    /// The group of layers whose blocks are kept. `None`: no event has arrived.
    followed: Option<Group>,
    /// Number of tokens in a block. 0: no event has arrived.
    block_size: u32,
    /// The groups of the prompts whose blocks are on the GPU.
    groups: PrefixGroups,
}

/// Number of leading tokens that the prompts of one group share: about as many as a text block of the gateway
/// has. With fewer tokens, unrelated prompts would be in one group: the chat template makes their first
/// blocks equal.
const GROUP_TOKENS: u32 = 128;
/// Number of evicted blocks to remember: half a million tokens in blocks of 16.
const EVICTED_BLOCKS: usize = 1 << 15;

/// A group of model layers, by the number that the KV events of its blocks state. `None`: they
/// state no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group(Option<u32>);

/// The blocks of one event of an engine that stored blocks, if the depth of the blocks in the prompt is
/// known.
#[derive(Debug, Clone, Copy)]
pub struct StoredChain<'a> {
    /// The parent of the first block. `None`: the first block begins a prompt.
    pub parent: Option<BlockHash>,
    /// Number of blocks of the prompt before the first block of the event.
    pub first_depth: u32,
    /// The event, which has the stored blocks.
    pub event: &'a BlockStored<'a>,
}

impl CacheContents {
    /// An empty cache. `max_blocks`: maximum number of blocks on the GPU, and also of offloaded blocks.
    /// `seed`: a random number.
    pub fn new(max_blocks: usize, seed: u64) -> Self {
        Self {
            on_gpu: BlockSet::new(max_blocks, seed),
            offloaded: BlockSet::new(max_blocks, seed),
            followed: None,
            block_size: 0,
            groups: PrefixGroups::new(EVICTED_BLOCKS, seed),
        }
    }

    /// Number of different blocks on the GPU.
    pub fn len(&self) -> usize {
        self.on_gpu.len()
    }

    /// Whether no block is on the GPU.
    pub fn is_empty(&self) -> bool {
        self.on_gpu.is_empty()
    }

    /// Number of bytes that the known contents of the cache take in the gateway.
    pub fn bytes(&self) -> usize {
        self.on_gpu.bytes() + self.offloaded.bytes() + self.groups.bytes()
    }

    /// The groups of the prompts whose blocks are on the GPU.
    pub fn groups(&self) -> &PrefixGroups {
        &self.groups
    }

    /// Records the text of a group of prompts. A request whose text begins with the text block `text` has
    /// stored `blocks` after `parent`. `first_depth`: number of blocks of the prompt before `blocks`. The
    /// cache may have evicted some of the blocks since.
    pub fn set_text(
        &mut self,
        parent: Option<BlockHash>,
        first_depth: u32,
        blocks: &[BlockHash],
        text: u64,
    ) {
        let key = self.group_depth().checked_sub(first_depth);
        let group = if let Some(key) = key.and_then(|index| blocks.get(index as usize)) {
            self.groups.known(*key)
        } else {
            // An engine evicts the last block of a prompt first, so the blocks that are still
            // cached are the first ones of `blocks`.
            let resident = blocks.partition_point(|block| self.on_gpu.contains(*block));
            let last = blocks[..resident].last().copied().or(parent);
            last.and_then(|block| self.on_gpu.place(block)).map(BlockPlace::group)
        };
        if let Some(group) = group {
            self.groups.set_text(group, text);
        }
    }

    /// Number of tokens in a block. 0: not known.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Whether the engine can reuse a block: the block is on the GPU or offloaded.
    pub fn contains(&self, hash: BlockHash) -> bool {
        self.on_gpu.contains(hash) || !self.offloaded.is_empty() && self.offloaded.contains(hash)
    }

    /// Applies an event. Returns the blocks that the engine stored on the GPU, if their depth in
    /// the prompt is known.
    pub fn apply<'a>(
        &mut self,
        event: &'a KvEvent<'a>,
    ) -> Result<Option<StoredChain<'a>>, TooManyBlocks> {
        match event {
            KvEvent::Stored(stored) => return self.store(stored),
            KvEvent::Removed(removed) => {
                if self.followed == Some(Group(removed.group)) {
                    self.remove(removed);
                }
            }
            KvEvent::AllCleared => self.clear(),
            KvEvent::Unknown => {}
        }
        Ok(None)
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        self.on_gpu.clear();
        self.offloaded.clear();
        self.groups.on_cleared();
        // The next stored block decides which group of layers is kept: the engine may have
        // restarted with another model.
        self.followed = None;
    }

    /// Number of blocks of a prompt before the key block: the block whose hash is the key of the
    /// prompt's group.
    fn group_depth(&self) -> u32 {
        GROUP_TOKENS.div_ceil(self.block_size.max(1)) - 1
    }

    fn store<'a>(
        &mut self,
        stored: &'a BlockStored<'a>,
    ) -> Result<Option<StoredChain<'a>>, TooManyBlocks> {
        let is_followed = stored.cache_kind == CacheKind::Contiguous
            && *self.followed.get_or_insert(Group(stored.group)) == Group(stored.group);
        if !is_followed {
            return Ok(None);
        }
        let parent = stored.parent.map(|parent| self.on_gpu.place(parent));
        let first_depth = match parent {
            None => 0,
            Some(Some(parent)) if parent.depth() < UNKNOWN_DEPTH - 1 => parent.depth() + 1,
            Some(_) => UNKNOWN_DEPTH,
        };
        // With `kv_cache_report_mode: full` an engine also announces the blocks that a request reuses, and no
        // later event removes them. If they counted as copies, the blocks would stay in the table forever.
        // These events have no parent, so events without a parent add no copies. If the engine did store a
        // copy, the table removes the block too early, which is better than too late.
        let counts_copies = stored.parent.is_some();
        match stored.medium {
            Medium::Gpu => {
                self.store_on_gpu(stored, parent.flatten(), first_depth, counts_copies)?;
            }
            Medium::Offloaded => {
                for (index, hash) in stored.block_hashes.iter().enumerate() {
                    let depth = first_depth.saturating_add(index as u32);
                    let place = BlockPlace::new(depth, GroupNumber::OTHER);
                    self.offloaded.store(hash, place, counts_copies)?;
                }
                return Ok(None);
            }
        }
        let is_placed = first_depth != UNKNOWN_DEPTH;
        let chain = StoredChain { parent: stored.parent, first_depth, event: stored };
        Ok(is_placed.then_some(chain))
    }

    /// Stores blocks on the GPU and assigns them to the group of their prompt. `parent`: the depth
    /// and the group of the parent of the first block. `first_depth`: number of blocks of the
    /// prompt before the first block.
    fn store_on_gpu(
        &mut self,
        stored: &BlockStored<'_>,
        parent: Option<BlockPlace>,
        first_depth: u32,
        counts_copies: bool,
    ) -> Result<(), TooManyBlocks> {
        self.block_size = stored.block_size;
        let group_depth = self.group_depth();
        let key = group_depth.checked_sub(first_depth);
        let key = key.and_then(|index| stored.block_hashes.iter().nth(index as usize));
        let group = match key {
            Some(key) => self.groups.number(key, |freed| self.on_gpu.relabel(freed)).0,
            None => parent.map_or(GroupNumber::OTHER, BlockPlace::group),
        };
        // The blocks before the key block belong to no group. But the prompt of this group needed space for
        // these blocks too, so the group counts as the one that evicted the removed blocks.
        self.groups.settle(group);
        for (index, hash) in stored.block_hashes.iter().enumerate() {
            let depth = first_depth.saturating_add(index as u32);
            let is_before = key.is_some() && depth < group_depth;
            let group = if is_before { GroupNumber::OTHER } else { group };
            let place = BlockPlace::new(depth, group);
            if self.on_gpu.store(hash, place, counts_copies)? {
                self.groups.on_stored(group, hash);
            }
        }
        Ok(())
    }

    fn remove(&mut self, removed: &BlockRemoved<'_>) {
        for hash in removed.block_hashes.iter() {
            match removed.medium {
                Medium::Gpu => {
                    if let Some(group) = self.on_gpu.remove(hash) {
                        self.groups.on_removed(group, hash);
                    }
                }
                Medium::Offloaded => {
                    self.offloaded.remove(hash);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::EventBatch;

    /// Encodes a batch of one event with these fields in the map encoding.
    fn batch(fields: &[&[u8]]) -> Vec<u8> {
        let mut payload = vec![0x92, 0x00, 0x91, 0x80 | (fields.len() as u8)];
        payload.extend(fields.concat());
        payload
    }

    const STORED: &[u8] = b"\xa4type\xabBlockStored";
    const REMOVED: &[u8] = b"\xa4type\xacBlockRemoved";

    fn hashes(hashes: &[u8]) -> Vec<u8> {
        [b"\xacblock_hashes", &[0x90 | hashes.len() as u8][..], hashes].concat()
    }

    fn parent(parent: u8) -> Vec<u8> {
        [b"\xb1parent_block_hash", &[parent][..]].concat()
    }

    fn group(group: u8) -> Vec<u8> {
        [b"\xa9group_idx", &[group][..]].concat()
    }

    fn kind(kind: &str) -> Vec<u8> {
        [b"\xb2kv_cache_spec_kind", &[0xa0 | kind.len() as u8][..], kind.as_bytes()].concat()
    }

    fn apply(contents: &mut CacheContents, payload: &[u8]) -> Option<u32> {
        let event = EventBatch::parse(payload).unwrap().next().unwrap().unwrap();
        contents.apply(&event).unwrap().map(|chain| chain.first_depth)
    }

    fn contents() -> CacheContents {
        CacheContents::new(1_000, 1)
    }

    #[test]
    fn the_depth_of_a_cached_block_is_counted_from_the_beginning_of_its_prompt() {
        let mut contents = contents();
        assert_eq!(apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2, 3])])), Some(0));
        assert_eq!(apply(&mut contents, &batch(&[STORED, &hashes(&[4]), &parent(3)])), Some(3));
        assert_eq!(apply(&mut contents, &batch(&[STORED, &hashes(&[9]), &parent(8)])), None);
        assert_eq!(apply(&mut contents, &batch(&[STORED, &hashes(&[10]), &parent(9)])), None);
        assert!(contents.contains(9) && contents.contains(4));
    }

    /// Blocks of 64 tokens: the hash of the second block of a prompt is the key of its group.
    const BLOCK_SIZE: &[u8] = b"\xaablock_size\x40";

    /// The key and the number of blocks of each group, sorted by key.
    fn group_sizes(contents: &CacheContents) -> Vec<(u64, u32)> {
        let counts = contents.groups().counts().map(|(_, group)| (group.key, group.blocks));
        let mut sizes: Vec<(u64, u32)> = counts.collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn prompts_that_differ_in_their_first_128_tokens_are_in_different_groups() {
        let mut contents = contents();
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2, 3]), BLOCK_SIZE]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 12, 13]), BLOCK_SIZE]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[4]), &parent(3), BLOCK_SIZE]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[4]), &parent(3), BLOCK_SIZE]));
        assert_eq!(group_sizes(&contents), [(0, 1), (2, 3), (12, 2)]);
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[4, 4])]));
        assert_eq!(group_sizes(&contents), [(0, 1), (2, 2), (12, 2)]);
        assert_eq!(apply(&mut contents, &batch(&[b"\xa4type\xb0AllBlocksCleared"])), None);
        assert_eq!(group_sizes(&contents), [(0, 0), (2, 0), (12, 0)]);
    }

    #[test]
    fn removed_blocks_count_as_evicted_by_the_group_of_prompts_of_the_next_stored_block() {
        let mut contents = contents();
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2, 3]), BLOCK_SIZE]));
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[3, 2])]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 12, 13]), BLOCK_SIZE]));
        let evictions = |contents: &CacheContents| {
            let pairs = contents.groups().evictions().map(|(.., counts)| counts);
            pairs.map(|counts| (counts.evicted, counts.recomputed)).collect::<Vec<_>>()
        };
        assert_eq!(evictions(&contents), [(2, 0)]);
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2]), BLOCK_SIZE]));
        assert_eq!(evictions(&contents), [(2, 1)]);
    }

    #[test]
    fn evictions_by_the_first_blocks_of_a_prompt_count_for_the_group_of_its_later_blocks() {
        let mut contents = contents();
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2, 3]), BLOCK_SIZE]));
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[3, 2, 1])]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[11, 12, 13]), BLOCK_SIZE]));
        let group = contents.groups().known(12).unwrap();
        let evictors: Vec<GroupNumber> =
            contents.groups().evictions().map(|(_, evictor, _)| evictor).collect();
        assert_eq!(evictors, [group; 2], "group 2 and the block before it were evicted");
    }

    #[test]
    fn a_group_of_prompts_gets_its_text_from_a_request_whose_blocks_were_evicted_meanwhile() {
        let mut contents = contents();
        let texts = |contents: &CacheContents| {
            contents.groups().counts().filter_map(|(_, group)| group.text).collect::<Vec<_>>()
        };
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2, 3]), BLOCK_SIZE]));
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[3, 2, 1])]));
        contents.set_text(None, 0, &[1, 2, 3], 70);
        assert_eq!(texts(&contents), [70]);
        apply(&mut contents, &batch(&[STORED, &hashes(&[11, 12]), BLOCK_SIZE]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[13, 14]), &parent(12), BLOCK_SIZE]));
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[14, 13])]));
        contents.set_text(Some(99), 2, &[13, 14], 71);
        assert_eq!(texts(&contents), [70], "no block is known any more");
        contents.set_text(Some(12), 2, &[13, 14], 71);
        assert_eq!(texts(&contents).len(), 2);
    }

    #[test]
    fn cached_blocks_that_a_later_event_announces_again_are_not_counted_as_copies() {
        let mut contents = contents();
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2])]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2, 3])]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[3]), &parent(2)]));
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[2])]));
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[3])]));
        assert_eq!([1, 2, 3].map(|hash| contents.contains(hash)), [true, false, true]);
    }

    #[test]
    fn blocks_of_sliding_window_layers_and_of_a_second_group_of_layers_are_ignored() {
        let mut contents = contents();
        for (block, number, cache_kind) in
            [(1, 0, "sliding_window"), (2, 1, "full_attention"), (3, 2, "full_attention")]
        {
            let fields: [&[u8]; 4] = [STORED, &hashes(&[block]), &group(number), &kind(cache_kind)];
            apply(&mut contents, &batch(&fields));
        }
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[2]), &group(2)]));
        assert_eq!([1, 2, 3].map(|hash| contents.contains(hash)), [false, true, false]);
    }

    #[test]
    fn a_block_stays_cached_while_an_offload_tier_has_it_and_a_clear_event_removes_all_blocks() {
        let mut contents = contents();
        let cpu: &[u8] = b"\xa6medium\xa3CPU";
        apply(&mut contents, &batch(&[STORED, &hashes(&[1])]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[1]), cpu]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[1]), cpu]));
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[1])]));
        assert!(contents.contains(1) && contents.is_empty(), "not on the GPU");
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[1]), cpu]));
        assert!(!contents.contains(1));
        apply(&mut contents, &batch(&[STORED, &hashes(&[1])]));
        apply(&mut contents, &batch(&[b"\xa4type\xb0AllBlocksCleared"]));
        assert!(!contents.contains(1));
    }
}
