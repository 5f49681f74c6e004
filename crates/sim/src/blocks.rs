//! The pool of KV cache blocks of one engine. A request pins the blocks that it uses. A released block is free,
//! but it keeps its content, and requests find it by its hash until it is evicted. The least recently used
//! block is evicted first. So a pool in which all blocks are free can hold a warm prefix cache, as in vLLM.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// A map by block hash. The keys are already hashes, so a [`BlockHasher`] suffices.
type BlockMap<V> = HashMap<u64, V, BuildHasherDefault<BlockHasher>>;

/// A fast hasher for keys that are already hashes. It only spreads their bits.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockHasher(u64);

/// All KV blocks of one engine. Each block is either free or pinned.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<KvBlock>,
    blocks_by_hash: BlockMap<BlockId>,
    /// The releases of blocks, oldest first, as pairs of `KvBlock::release_order` and the id of the block.
    /// Eviction begins with the first entry, and skips an entry whose block was pinned again after this
    /// release.
    releases: VecDeque<(u64, BlockId)>,
    free_count: usize,
    /// Number of releases so far, which is the `release_order` of the next released block.
    release_count: u64,
    /// Changes of the prefix cache since the last call of `take_changes`. `None`: changes are not
    /// recorded.
    changes: Option<Vec<CacheChange>>,
}

/// A change of the prefix cache, which vLLM publishes as a KV event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheChange {
    /// A full block was registered under its hash, so other requests can reuse it.
    Stored(StoredBlock),
    /// The block with this hash was evicted.
    Removed(u64),
    /// The content of all blocks was discarded.
    Cleared,
}

/// A full block that requests with an equal prefix can reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlock {
    /// Chained hash: a hash of the content of this block and of all blocks before it.
    pub hash: u64,
    /// Hash of the block before this block. `None`: this block begins a prompt.
    pub parent: Option<u64>,
    /// Number of blocks that precede this block in the sequence.
    pub index: usize,
    /// Number of the sequence whose tokens filled the block.
    pub sequence: u64,
}

/// Index of a block in the pool that created it. It is invalid in another pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockId(u32);

#[derive(Debug, Default)]
struct KvBlock {
    /// Number of requests that use the block.
    pin_count: u32,
    /// The chained hash by which the block is found. `None`: the block is not full, or another block is already
    /// found by this hash.
    hash: Option<u64>,
    /// The value of `BlockPool::release_count` at the last release of this block.
    release_order: u64,
}

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        // Tests use small numbers as hashes. The product makes their high bits differ too.
        self.0 = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl StoredBlock {
    /// The block at position `index` of a sequence. `hashes` are the chained hashes of the sequence.
    pub fn new(hashes: &[u64], index: usize, sequence: u64) -> Self {
        let parent = index.checked_sub(1).map(|parent| hashes[parent]);
        Self {
            hash: hashes[index],
            parent,
            index,
            sequence,
        }
    }
}

impl BlockPool {
    /// Creates a pool of `total` empty blocks.
    pub fn new(total: u32) -> Self {
        let mut pool = Self {
            blocks: Vec::with_capacity(total as usize),
            blocks_by_hash: BlockMap::default(),
            releases: VecDeque::with_capacity(total as usize),
            free_count: 0,
            release_count: 0,
            changes: None,
        };
        for index in 0..total {
            pool.blocks.push(KvBlock::default());
            pool.add_to_free_list(BlockId(index));
        }
        pool
    }

    /// Begins to record the changes of the prefix cache.
    pub fn record_changes(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// The changes of the prefix cache since the last call, oldest first. Empty if changes are not
    /// recorded.
    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        self.changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Number of all blocks, pinned or free.
    pub fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Number of unpinned blocks, cached or empty.
    pub fn free(&self) -> usize {
        self.free_count
    }

    /// Share of blocks that are pinned, from 0 to 1.
    pub fn usage(&self) -> f64 {
        (self.total() - self.free()) as f64 / self.total().max(1) as f64
    }

    /// Returns the cached blocks of the first hashes, up to the first hash without a cached block.
    /// `hashes` are the chained hashes of the blocks of a prompt.
    pub fn cached_prefix(&self, hashes: &[u64]) -> Vec<BlockId> {
        hashes
            .iter()
            .map_while(|hash| self.blocks_by_hash.get(hash).copied())
            .collect()
    }

    /// Number of free blocks that would remain if the blocks `hits` were pinned.
    pub fn free_after_pinning(&self, hits: &[BlockId]) -> usize {
        self.free()
            - hits
                .iter()
                .filter(|&&id| self.block(id).pin_count == 0)
                .count()
    }

    /// Pins blocks found by [`cached_prefix`](Self::cached_prefix).
    pub fn pin(&mut self, hits: &[BlockId]) {
        for &id in hits {
            let block = &mut self.blocks[id.0 as usize];
            self.free_count -= usize::from(block.pin_count == 0);
            block.pin_count += 1;
        }
    }

    /// Pins `count` blocks for new content, and appends them to `held`, the blocks of a request. Evicts the
    /// least recently used blocks. If fewer than `count` blocks are free, pins nothing and returns false.
    #[must_use]
    pub fn allocate(&mut self, count: usize, held: &mut Vec<BlockId>) -> bool {
        if count > self.free() {
            return false;
        }
        let wanted = held.len() + count;
        while held.len() < wanted {
            let Some((order, id)) = self.releases.pop_front() else {
                return false;
            };
            let block = &mut self.blocks[id.0 as usize];
            if block.pin_count > 0 || block.release_order != order {
                continue;
            }
            block.pin_count = 1;
            self.free_count -= 1;
            if let Some(hash) = block.hash.take() {
                self.blocks_by_hash.remove(&hash);
                self.changes
                    .iter_mut()
                    .for_each(|log| log.push(CacheChange::Removed(hash)));
            }
            held.push(id);
        }
        true
    }

    /// Registers a full block under its hash. Does nothing if another block already has this hash.
    pub fn seal(&mut self, id: BlockId, stored: StoredBlock) {
        let block = &mut self.blocks[id.0 as usize];
        if block.hash.is_none() && !self.blocks_by_hash.contains_key(&stored.hash) {
            block.hash = Some(stored.hash);
            self.blocks_by_hash.insert(stored.hash, id);
            self.changes
                .iter_mut()
                .for_each(|log| log.push(CacheChange::Stored(stored)));
        }
    }

    /// Forgets the content of all blocks. As in vLLM, does nothing and returns false while a block is pinned.
    pub fn reset(&mut self) -> bool {
        let is_idle = self.free() == self.total();
        if is_idle {
            self.blocks_by_hash.clear();
            self.blocks.iter_mut().for_each(|block| block.hash = None);
            self.changes
                .iter_mut()
                .for_each(|log| log.push(CacheChange::Cleared));
        }
        is_idle
    }

    /// Unpins the blocks of one request. More requests share the beginning of a prompt than its end, so the
    /// last block will be evicted first.
    pub fn release(&mut self, held: &mut Vec<BlockId>) {
        while let Some(id) = held.pop() {
            let block = &mut self.blocks[id.0 as usize];
            block.pin_count -= 1;
            if block.pin_count == 0 {
                self.add_to_free_list(id);
            }
        }
    }

    fn add_to_free_list(&mut self, id: BlockId) {
        self.blocks[id.0 as usize].release_order = self.release_count;
        self.releases.push_back((self.release_count, id));
        self.release_count += 1;
        self.free_count += 1;
        if self.releases.len() > 2 * self.blocks.len() {
            let Self {
                releases, blocks, ..
            } = self;
            releases.retain(|(order, id)| {
                let block = &blocks[id.0 as usize];
                block.pin_count == 0 && block.release_order == *order
            });
        }
    }

    fn block(&self, id: BlockId) -> &KvBlock {
        &self.blocks[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate_with_hashes(pool: &mut BlockPool, hashes: &[u64]) -> Vec<BlockId> {
        let mut held = Vec::new();
        assert!(pool.allocate(hashes.len(), &mut held));
        for (index, &id) in held.iter().enumerate() {
            pool.seal(id, StoredBlock::new(hashes, index, 0));
        }
        held
    }

    #[test]
    fn a_released_block_is_still_found() {
        let mut pool = BlockPool::new(4);
        let mut held = allocate_with_hashes(&mut pool, &[1, 2, 3]);
        assert_eq!((pool.free(), pool.usage()), (1, 0.75));
        pool.release(&mut held);
        assert_eq!((pool.free(), pool.usage()), (4, 0.0));

        let hits = pool.cached_prefix(&[1, 2, 9, 3]);
        assert_eq!(hits.len(), 2);
        assert_eq!(pool.free_after_pinning(&hits), 2);
        pool.pin(&hits);
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn the_oldest_prompts_last_block_is_evicted_first() {
        let mut pool = BlockPool::new(4);
        let mut old = allocate_with_hashes(&mut pool, &[1, 2]);
        let mut new = allocate_with_hashes(&mut pool, &[3, 4]);
        pool.release(&mut old);
        pool.release(&mut new);
        assert!(pool.allocate(1, &mut Vec::new()));
        assert_eq!(
            pool.cached_prefix(&[1]).len(),
            1,
            "the first block of the older request stays"
        );
        assert_eq!(
            pool.cached_prefix(&[2]).len(),
            0,
            "its last block is evicted first"
        );
        assert!(pool.allocate(1, &mut Vec::new()));
        assert_eq!(pool.cached_prefix(&[1]).len(), 0);
        assert_eq!(pool.cached_prefix(&[3, 4]).len(), 2);
    }

    #[test]
    fn stored_and_removed_blocks_are_recorded() {
        let mut pool = BlockPool::new(2);
        drop(allocate_with_hashes(&mut pool, &[9]));
        assert!(
            pool.take_changes().is_empty(),
            "nothing is recorded before it is asked for"
        );
        let mut pool = BlockPool::new(2);
        pool.record_changes();
        let mut held = allocate_with_hashes(&mut pool, &[1, 2]);
        let stored = |hash, parent, index| {
            CacheChange::Stored(StoredBlock {
                hash,
                parent,
                index,
                sequence: 0,
            })
        };
        assert_eq!(
            pool.take_changes(),
            [stored(1, None, 0), stored(2, Some(1), 1)]
        );
        assert!(!pool.reset(), "a request uses the blocks");
        pool.release(&mut held);
        assert!(
            pool.take_changes().is_empty(),
            "a released block stays in the cache"
        );
        let mut held = allocate_with_hashes(&mut pool, &[3]);
        pool.release(&mut held);
        assert_eq!(
            pool.take_changes(),
            [CacheChange::Removed(2), stored(3, None, 0)]
        );
        assert!(pool.reset());
        assert_eq!(pool.take_changes(), [CacheChange::Cleared]);
        assert!(pool.cached_prefix(&[1]).is_empty() && pool.cached_prefix(&[3]).is_empty());
        allocate_with_hashes(&mut pool, &[1, 2]);
        assert_eq!(
            pool.take_changes(),
            [stored(1, None, 0), stored(2, Some(1), 1)]
        );
    }

    #[test]
    fn a_shared_block_needs_both_releases() {
        let mut pool = BlockPool::new(2);
        let mut first = allocate_with_hashes(&mut pool, &[7]);
        let mut second = pool.cached_prefix(&[7]);
        pool.pin(&second);
        pool.release(&mut first);
        assert_eq!(pool.free(), 1);
        pool.release(&mut second);
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn too_large_an_allocation_allocates_none() {
        let mut pool = BlockPool::new(2);
        let mut held = Vec::new();
        assert!(!pool.allocate(3, &mut held));
        assert_eq!((held.len(), pool.free()), (0, 2));
    }
}
