//! LRU sets of the blocks that were sent to the backends.

use super::lru_set::LruSet;
use super::routing_input::RoutingInput;

/// For each backend, by its position, the hashes of the blocks that were sent to it. When the set of a
/// backend is full, the least recently used blocks are removed first.
#[derive(Debug)]
pub(super) struct PrefixIndex(Vec<LruSet>);

impl PrefixIndex {
    /// An index of this number of backends, to which nothing was sent yet.
    pub(super) fn new(backends: usize) -> Self {
        Self(std::iter::repeat_with(LruSet::default).take(backends).collect())
    }

    /// Number of blocks that were sent to a backend.
    pub(super) fn len(&self, position: usize) -> usize {
        self.0[position].len()
    }

    /// For each candidate, the number of leading blocks of the prompt that were sent to it.
    pub(super) fn matched(&self, view: &RoutingInput<'_>) -> Vec<usize> {
        let blocks = &view.job.prompt.blocks;
        view.candidates.iter().map(|candidate| self.0[candidate.position].matched(blocks)).collect()
    }

    /// For each candidate, the share of the blocks of the prompt that were sent to it.
    pub(super) fn shares(&self, view: &RoutingInput<'_>) -> Vec<f64> {
        let blocks = view.job.prompt.blocks.len().max(1) as f64;
        self.matched(view).into_iter().map(|matched| matched as f64 / blocks).collect()
    }

    /// Adds the prompt to the blocks of a backend, and removes the least recently used blocks above
    /// `max_blocks`.
    pub(super) fn send(&mut self, view: &RoutingInput<'_>, position: usize, max_blocks: usize) {
        let sent = &mut self.0[position];
        for block in &view.job.prompt.blocks {
            sent.touch(*block);
        }
        sent.truncate(max_blocks);
    }
}
