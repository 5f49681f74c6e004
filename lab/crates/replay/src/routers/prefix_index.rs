//! LRU sets of the blocks that were sent to the backends.

use super::routing_input::RoutingInput;
use lru::LruCache;
use std::hash::BuildHasherDefault;
use tokenweir_routing::Candidate;
use tokenweir_sim::blocks::BlockHasher;

/// For each backend, by its position, the hashes of the blocks that were sent to it. When the set of a
/// backend is full, the least recently used blocks are removed first.
#[derive(Debug)]
pub(super) struct PrefixIndex(Vec<LruCache<u64, (), BuildHasherDefault<BlockHasher>>>);

impl PrefixIndex {
    /// An index of this number of backends, to which nothing was sent yet.
    pub(super) fn new(backends: usize) -> Self {
        let empty = |_| LruCache::unbounded_with_hasher(BuildHasherDefault::default());
        Self((0..backends).map(empty).collect())
    }

    /// Returns the number of blocks in the set of a backend.
    pub(super) fn len(&self, position: usize) -> usize {
        self.0[position].len()
    }

    /// For each candidate, the number of leading blocks of the prompt that were sent to it.
    pub(super) fn matched(&self, view: &RoutingInput<'_>) -> Vec<usize> {
        let matched = |candidate: &Candidate| {
            let sent = &self.0[candidate.position];
            view.job
                .prompt
                .blocks
                .iter()
                .take_while(|block| sent.contains(*block))
                .count()
        };
        view.candidates.iter().map(matched).collect()
    }

    /// For each candidate, the share of the blocks of the prompt that were sent to it.
    pub(super) fn shares(&self, view: &RoutingInput<'_>) -> Vec<f64> {
        let blocks = view.job.prompt.blocks.len().max(1) as f64;
        self.matched(view)
            .into_iter()
            .map(|matched| matched as f64 / blocks)
            .collect()
    }

    /// Adds the blocks of a prompt to those of a backend, and removes the least recently used blocks above
    /// `max_blocks`.
    pub(super) fn send(&mut self, blocks: &[u64], position: usize, max_blocks: usize) {
        let sent = &mut self.0[position];
        for block in blocks {
            sent.put(*block, ());
        }
        while sent.len() > max_blocks {
            sent.pop_lru();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_blocks_go_first() {
        let mut index = PrefixIndex::new(2);
        index.send(&[1, 2, 3, 1, 9], 1, 3);
        assert_eq!((index.len(0), index.len(1)), (0, 3));
        assert_eq!(
            [1, 2, 3, 9].map(|block| index.0[1].contains(&block)),
            [true, false, true, true]
        );
    }
}
