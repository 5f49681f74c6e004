//! The pool of KV cache blocks. A block is pinned while a request uses it. A released block keeps
//! its content, and can be found by its hash, until it is the one unused for longest and somebody
//! needs the room. So a pool that looks free may hold a warm prefix cache, as in vLLM.

use std::collections::{BTreeMap, HashMap};

/// The KV blocks of one replica. Free and used blocks always add up to the total.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    by_hash: HashMap<u64, BlockId>,
    /// Blocks that nobody pins, in the order in which they were released.
    free: BTreeMap<u64, BlockId>,
    releases: u64,
}

/// A place in the pool that made it; of no use to another pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockId(u32);

#[derive(Debug, Default)]
struct Block {
    pins: u32,
    hash: Option<u64>,
    /// The key in `free` while nobody pins the block.
    released: u64,
}

impl BlockPool {
    /// A pool of `total` empty blocks.
    pub fn new(total: u32) -> Self {
        let mut pool = Self {
            blocks: Vec::with_capacity(total as usize),
            by_hash: HashMap::new(),
            free: BTreeMap::new(),
            releases: 0,
        };
        for index in 0..total {
            pool.blocks.push(Block::default());
            pool.put_back(BlockId(index));
        }
        pool
    }

    /// How many blocks there are.
    pub fn total(&self) -> usize {
        self.blocks.len()
    }

    /// How many blocks nobody pins, cached or empty.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The share of blocks that are pinned, 0 to 1.
    pub fn usage(&self) -> f64 {
        (self.total() - self.free()) as f64 / self.total().max(1) as f64
    }

    /// The blocks that hold the longest cached prefix of these chained hashes.
    pub fn cached_prefix(&self, hashes: &[u64]) -> Vec<BlockId> {
        hashes.iter().map_while(|hash| self.by_hash.get(hash).copied()).collect()
    }

    /// How many blocks would be left to take after pinning `hits`.
    pub fn free_beyond(&self, hits: &[BlockId]) -> usize {
        self.free() - hits.iter().filter(|&&id| self.block(id).pins == 0).count()
    }

    /// Pins blocks found by [`cached_prefix`](Self::cached_prefix).
    pub fn pin(&mut self, hits: &[BlockId]) {
        for &id in hits {
            let block = &mut self.blocks[id.0 as usize];
            block.pins += 1;
            self.free.remove(&block.released);
        }
    }

    /// Pins `count` blocks for new content and appends them to `held`, evicting what was unused for
    /// longest. Takes nothing and returns false if there are fewer.
    #[must_use]
    pub fn take(&mut self, count: usize, held: &mut Vec<BlockId>) -> bool {
        if count > self.free() {
            return false;
        }
        for (_, id) in std::iter::from_fn(|| self.free.pop_first()).take(count) {
            let block = &mut self.blocks[id.0 as usize];
            block.pins = 1;
            if let Some(hash) = block.hash.take() {
                self.by_hash.remove(&hash);
            }
            held.push(id);
        }
        true
    }

    /// Makes a full block findable. The first block with a hash keeps it.
    pub fn seal(&mut self, id: BlockId, hash: u64) {
        let block = &mut self.blocks[id.0 as usize];
        if block.hash.is_none() && !self.by_hash.contains_key(&hash) {
            block.hash = Some(hash);
            self.by_hash.insert(hash, id);
        }
    }

    /// Unpins the blocks of one request. The last block is evicted first, because a prefix is worth
    /// more than what follows it.
    pub fn release(&mut self, held: &mut Vec<BlockId>) {
        while let Some(id) = held.pop() {
            let block = &mut self.blocks[id.0 as usize];
            block.pins -= 1;
            if block.pins == 0 {
                self.put_back(id);
            }
        }
    }

    fn put_back(&mut self, id: BlockId) {
        self.blocks[id.0 as usize].released = self.releases;
        self.free.insert(self.releases, id);
        self.releases += 1;
    }

    fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(pool: &mut BlockPool, hashes: &[u64]) -> Vec<BlockId> {
        let mut held = Vec::new();
        assert!(pool.take(hashes.len(), &mut held));
        for (&id, &hash) in held.iter().zip(hashes) {
            pool.seal(id, hash);
        }
        held
    }

    #[test]
    fn a_released_block_is_free_and_still_found_by_its_hash() {
        let mut pool = BlockPool::new(4);
        let mut held = fill(&mut pool, &[1, 2, 3]);
        assert_eq!((pool.free(), pool.usage()), (1, 0.75));
        pool.release(&mut held);
        assert_eq!((pool.free(), pool.usage()), (4, 0.0));

        let hits = pool.cached_prefix(&[1, 2, 9, 3]);
        assert_eq!(hits.len(), 2);
        assert_eq!(pool.free_beyond(&hits), 2);
        pool.pin(&hits);
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn the_block_unused_for_longest_is_evicted_and_of_one_request_the_last() {
        let mut pool = BlockPool::new(4);
        let mut old = fill(&mut pool, &[1, 2]);
        let mut new = fill(&mut pool, &[3, 4]);
        pool.release(&mut old);
        pool.release(&mut new);
        assert!(pool.take(1, &mut Vec::new()));
        assert_eq!(pool.cached_prefix(&[1]).len(), 1, "the head of the older request stays");
        assert_eq!(pool.cached_prefix(&[2]).len(), 0, "its tail goes first");
        assert!(pool.take(1, &mut Vec::new()));
        assert_eq!(pool.cached_prefix(&[1]).len(), 0);
        assert_eq!(pool.cached_prefix(&[3, 4]).len(), 2);
    }

    #[test]
    fn a_block_shared_by_two_requests_is_freed_by_the_second() {
        let mut pool = BlockPool::new(2);
        let mut first = fill(&mut pool, &[7]);
        let mut second = pool.cached_prefix(&[7]);
        pool.pin(&second);
        pool.release(&mut first);
        assert_eq!(pool.free(), 1);
        pool.release(&mut second);
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn taking_more_than_there_is_takes_nothing() {
        let mut pool = BlockPool::new(2);
        let mut held = Vec::new();
        assert!(!pool.take(3, &mut held));
        assert_eq!((held.len(), pool.free()), (0, 2));
    }
}
