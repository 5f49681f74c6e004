//! The contents of the prefix cache of one engine, learned from its events.

use super::block_set::{BlockSet, TooManyBlocks, UNKNOWN_DEPTH};
use crate::decoder::{BlockHash, CacheKind, EventBlocks, KvEvent, Medium};

/// Contents of the prefix cache of one engine.
///
/// vLLM divides the layers of a model into groups, and caches blocks for each group. An engine can reuse a
/// prompt only as far as a group with full attention has its blocks. So this type stores the blocks of the
/// first such group that the engine announces, and ignores other groups.
#[derive(Debug)]
pub struct CacheContents {
    on_gpu: BlockSet,
    /// Blocks in CPU memory, on a disk or in a shared store. Loading them is faster for the engine than
    /// computing them.
    offloaded: BlockSet,
    /// The group of layers whose blocks are stored. `None`: no event has arrived.
    followed: Option<Group>,
    /// Number of tokens in a block. 0: no event has arrived.
    block_size: u32,
}

/// A group of model layers, by its number in KV events. `None`: the events state no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group(Option<u32>);

/// The blocks that one event stored, if their depth in the prompt is known.
#[derive(Debug, Clone, Copy)]
pub struct StoredChain<'a> {
    /// The parent of the first block. `None`: the first block begins a prompt.
    pub parent: Option<BlockHash>,
    /// Number of blocks of the prompt before the first block of the event.
    pub first_depth: u32,
    /// The event whose blocks were stored.
    pub event: &'a EventBlocks<'a>,
}

impl CacheContents {
    /// An empty cache. `max_blocks`: maximum number of blocks on the GPU, and maximum number of offloaded
    /// blocks. `seed`: a random number.
    pub fn new(max_blocks: usize, seed: u64) -> Self {
        Self {
            on_gpu: BlockSet::new(max_blocks, seed),
            offloaded: BlockSet::new(max_blocks, seed),
            followed: None,
            block_size: 0,
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

    /// Number of bytes that this value uses in the gateway.
    pub fn bytes(&self) -> usize {
        self.on_gpu.bytes() + self.offloaded.bytes()
    }

    /// Number of tokens in a block. 0: the number is unknown.
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
        // The engine may have restarted with another model, so the next stored block selects the group of
        // layers again.
        self.followed = None;
    }

    fn store<'a>(
        &mut self,
        stored: &'a EventBlocks<'a>,
    ) -> Result<Option<StoredChain<'a>>, TooManyBlocks> {
        let is_followed = stored.cache_kind == CacheKind::Contiguous
            && *self.followed.get_or_insert(Group(stored.group)) == Group(stored.group);
        if !is_followed {
            return Ok(None);
        }
        let first_depth = match stored.parent {
            None => 0,
            Some(parent) => self.on_gpu.depth(parent).map_or(UNKNOWN_DEPTH, next_depth),
        };
        // With `kv_cache_report_mode: full`, an engine also announces the blocks that a request reuses, and no
        // later event removes them. Counted as copies, they would stay in the table forever. Such events have
        // no parent, so events without a parent add no copies. If the engine did store a copy, the table
        // removes the block too early, which is better than too late.
        let counts_copies = stored.parent.is_some();
        let blocks = match stored.medium {
            Medium::Gpu => {
                self.block_size = stored.block_size;
                &mut self.on_gpu
            }
            Medium::Offloaded => &mut self.offloaded,
        };
        let mut depth = first_depth;
        for hash in stored.block_hashes.iter() {
            blocks.store(hash, depth, counts_copies)?;
            depth = next_depth(depth);
        }
        if stored.medium == Medium::Offloaded {
            return Ok(None);
        }
        let is_placed = first_depth != UNKNOWN_DEPTH;
        let chain = StoredChain {
            parent: stored.parent,
            first_depth,
            event: stored,
        };
        Ok(is_placed.then_some(chain))
    }

    fn remove(&mut self, removed: &EventBlocks<'_>) {
        for hash in removed.block_hashes.iter() {
            match removed.medium {
                Medium::Gpu => self.on_gpu.remove(hash),
                Medium::Offloaded => self.offloaded.remove(hash),
            }
        }
    }
}

/// The depth of the block that follows a block of this depth, or [`UNKNOWN_DEPTH`].
fn next_depth(depth: u32) -> u32 {
    depth.saturating_add(1)
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
        [
            b"\xacblock_hashes",
            &[0x90 | hashes.len() as u8][..],
            hashes,
        ]
        .concat()
    }

    fn parent(parent: u8) -> Vec<u8> {
        [b"\xb1parent_block_hash", &[parent][..]].concat()
    }

    fn group(group: u8) -> Vec<u8> {
        [b"\xa9group_idx", &[group][..]].concat()
    }

    fn kind(kind: &str) -> Vec<u8> {
        [
            b"\xb2kv_cache_spec_kind",
            &[0xa0 | kind.len() as u8][..],
            kind.as_bytes(),
        ]
        .concat()
    }

    fn apply(contents: &mut CacheContents, payload: &[u8]) -> Option<u32> {
        let event = EventBatch::parse(payload).unwrap().next().unwrap().unwrap();
        contents
            .apply(&event)
            .unwrap()
            .map(|chain| chain.first_depth)
    }

    fn contents() -> CacheContents {
        CacheContents::new(1_000, 1)
    }

    #[test]
    fn depth_counts_from_the_beginning_of_the_prompt() {
        let mut contents = contents();
        assert_eq!(
            apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2, 3])])),
            Some(0)
        );
        assert_eq!(
            apply(&mut contents, &batch(&[STORED, &hashes(&[4]), &parent(3)])),
            Some(3)
        );
        assert_eq!(
            apply(&mut contents, &batch(&[STORED, &hashes(&[9]), &parent(8)])),
            None
        );
        assert_eq!(
            apply(&mut contents, &batch(&[STORED, &hashes(&[10]), &parent(9)])),
            None
        );
        assert!(contents.contains(9) && contents.contains(4));
    }

    #[test]
    fn blocks_announced_again_are_no_copies() {
        let mut contents = contents();
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2])]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[1, 2, 3])]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[3]), &parent(2)]));
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[2])]));
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[3])]));
        assert_eq!(
            [1, 2, 3].map(|hash| contents.contains(hash)),
            [true, false, true]
        );
    }

    #[test]
    fn only_one_group_of_layers_is_followed() {
        let mut contents = contents();
        for (block, number, cache_kind) in [
            (1, 0, "sliding_window"),
            (2, 1, "full_attention"),
            (3, 2, "full_attention"),
        ] {
            let fields: [&[u8]; 4] = [STORED, &hashes(&[block]), &group(number), &kind(cache_kind)];
            apply(&mut contents, &batch(&fields));
        }
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[2]), &group(2)]));
        assert_eq!(
            [1, 2, 3].map(|hash| contents.contains(hash)),
            [false, true, false]
        );
    }

    #[test]
    fn an_offloaded_block_stays_cached_until_cleared() {
        let mut contents = contents();
        let cpu: &[u8] = b"\xa6medium\xa3CPU";
        apply(&mut contents, &batch(&[STORED, &hashes(&[1])]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[1]), cpu]));
        apply(&mut contents, &batch(&[STORED, &hashes(&[1]), cpu]));
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[1])]));
        assert!(
            contents.contains(1) && contents.is_empty(),
            "not on the GPU"
        );
        apply(&mut contents, &batch(&[REMOVED, &hashes(&[1]), cpu]));
        assert!(!contents.contains(1));
        apply(&mut contents, &batch(&[STORED, &hashes(&[1])]));
        apply(&mut contents, &batch(&[b"\xa4type\xb0AllBlocksCleared"]));
        assert!(!contents.contains(1));
    }
}
