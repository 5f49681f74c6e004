//! The content of the prefix cache of a backend, as far as the KV events of its engine have published it.

use std::collections::{HashSet, VecDeque};
use tokenweir_sim::engine::{CacheChange, SequenceRequest};

/// The published content of the cache of a backend. All gateways have received the same events.
#[derive(Debug, Default)]
pub(crate) struct PublishedCache {
    resident: HashSet<u64>,
    /// Changes of the cache that have not arrived at the gateways yet, the oldest first. Each entry has the
    /// changes of one engine step.
    in_transit: VecDeque<Vec<CacheChange>>,
}

/// How many leading tokens of a prompt are in a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResidentTokens {
    pub(crate) tokens: f64,
    /// Whether all looked-up tokens are in the cache.
    pub(crate) is_all: bool,
}

impl PublishedCache {
    /// Records that the engine publishes the changes of its cache in one step. Returns whether there are any
    /// changes.
    pub(crate) fn publish(&mut self, changes: Vec<CacheChange>) -> bool {
        let is_published = !changes.is_empty();
        if is_published {
            self.in_transit.push_back(changes);
        }
        is_published
    }

    /// Applies the oldest changes that are in transit.
    pub(crate) fn receive(&mut self) {
        for change in self.in_transit.pop_front().unwrap_or_default() {
            match change {
                CacheChange::Stored(block) => drop(self.resident.insert(block.hash)),
                CacheChange::Removed(hash) => drop(self.resident.remove(&hash)),
                CacheChange::Cleared => self.resident.clear(),
            }
        }
    }

    /// How many of the first `max_tokens` tokens of a prompt are in the cache, whose blocks have `block_size`
    /// tokens.
    pub(crate) fn resident(
        &self,
        request: &SequenceRequest,
        block_size: u32,
        max_tokens: f64,
    ) -> ResidentTokens {
        let hashes = request.reusable_block_hashes(request.prompt_tokens, block_size);
        let max_blocks = ((max_tokens / f64::from(block_size)) as usize).min(hashes.len());
        let hashes = hashes[..max_blocks].iter();
        let blocks = hashes
            .take_while(|hash| self.resident.contains(hash))
            .count();
        ResidentTokens {
            tokens: blocks as f64 * f64::from(block_size),
            is_all: blocks == max_blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::prompt;
    use crate::trace::TraceRequest;
    use tokenweir_sim::engine::StoredBlock;

    #[test]
    fn a_block_is_cached_between_its_events() {
        let job = TraceRequest {
            prompt_tokens: 33,
            prompt: prompt(33, [5].into()),
            ..TraceRequest::default()
        };
        let request = job.request(16);
        let hashes = &request.block_hashes;
        let mut cache = PublishedCache::default();
        let stored = |index| CacheChange::Stored(StoredBlock::new(hashes, index, 0));
        let stored = (0..hashes.len()).map(stored).collect();
        assert!(cache.publish(stored));
        assert!(!cache.publish(Vec::new()));
        assert!(cache.publish(vec![CacheChange::Removed(hashes[1])]));
        let cached =
            |cache: &PublishedCache| cache.resident(&request, 16, f64::INFINITY).tokens as u32;
        let first = |cache: &PublishedCache| cache.resident(&request, 16, 31.0);
        assert_eq!(cached(&cache), 0);
        assert_eq!(
            first(&cache),
            ResidentTokens {
                tokens: 0.0,
                is_all: false
            }
        );
        cache.receive();
        assert_eq!(cached(&cache), 32);
        assert_eq!(
            first(&cache),
            ResidentTokens {
                tokens: 16.0,
                is_all: true
            }
        );
        cache.receive();
        assert_eq!(cached(&cache), 16);
        assert!(!cache.resident(&request, 16, 33.0).is_all);
    }
}
