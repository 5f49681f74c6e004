//! The contents of the prefix caches, as far as the KV events of the engines have published them.

use std::collections::{HashSet, VecDeque};
use tokenweir_sim::engine::{CacheChange, SequenceRequest};

/// The published contents of the caches of all backends. All gateways have received the same events.
#[derive(Debug)]
pub(crate) struct PublishedCaches {
    /// The published cache of each backend, by its position.
    caches: Vec<PublishedCache>,
}

#[derive(Debug, Default)]
struct PublishedCache {
    resident: HashSet<u64>,
    /// Changes of the cache that have not arrived at the gateways yet, the oldest first. Each entry has the
    /// changes of one engine step.
    in_transit: VecDeque<Vec<CacheChange>>,
}

/// How many leading tokens of a prompt are in a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResidentTokens {
    /// Number of cached tokens.
    pub(crate) tokens: f64,
    /// Whether all looked-up tokens are in the cache.
    pub(crate) is_all: bool,
}

impl PublishedCaches {
    /// Empty caches.
    pub(crate) fn new(backends: usize) -> Self {
        Self { caches: std::iter::repeat_with(PublishedCache::default).take(backends).collect() }
    }

    /// Records that an engine publishes the changes of its cache in one step. Returns whether there are any
    /// changes.
    pub(crate) fn publish(&mut self, backend: usize, changes: Vec<CacheChange>) -> bool {
        let is_published = !changes.is_empty();
        if is_published {
            self.caches[backend].in_transit.push_back(changes);
        }
        is_published
    }

    /// Applies the oldest changes of a backend that are in transit.
    pub(crate) fn receive(&mut self, backend: usize) {
        let PublishedCache { resident, in_transit } = &mut self.caches[backend];
        for change in in_transit.pop_front().unwrap_or_default() {
            match change {
                CacheChange::Stored(block) => drop(resident.insert(block.hash)),
                CacheChange::Removed(hash) => drop(resident.remove(&hash)),
                CacheChange::Cleared => resident.clear(),
            }
        }
    }

    /// Empties the published cache of a backend whose engine process has ended.
    pub(crate) fn clear(&mut self, backend: usize) {
        self.caches[backend] = PublishedCache::default();
    }

    /// How many of the first `max_tokens` tokens of a prompt are in the cache of a backend whose blocks have
    /// `block_size` tokens.
    pub(crate) fn resident(
        &self,
        backend: usize,
        request: &SequenceRequest,
        block_size: u32,
        max_tokens: f64,
    ) -> ResidentTokens {
        let hashes = request.reusable_block_hashes(request.prompt_tokens, block_size);
        let max_blocks = ((max_tokens / f64::from(block_size)) as usize).min(hashes.len());
        let resident = &self.caches[backend].resident;
        let hashes = hashes[..max_blocks].iter();
        let blocks = hashes.take_while(|hash| resident.contains(hash)).count();
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
    fn a_block_is_cached_from_the_arrival_of_its_event_until_that_of_its_removal() {
        let job = TraceRequest {
            prompt_tokens: 33,
            prompt: prompt(33, [5].into()),
            ..TraceRequest::default()
        };
        let request = job.request(16);
        let hashes = &request.block_hashes;
        let mut caches = PublishedCaches::new(2);
        let stored = |index| CacheChange::Stored(StoredBlock::new(hashes, index, 0));
        let stored = (0..hashes.len()).map(stored).collect();
        assert!(caches.publish(1, stored));
        assert!(!caches.publish(1, Vec::new()));
        assert!(caches.publish(1, vec![CacheChange::Removed(hashes[1])]));
        let cached = |caches: &PublishedCaches, backend| {
            caches.resident(backend, &request, 16, f64::INFINITY).tokens as u32
        };
        assert_eq!(cached(&caches, 1), 0);
        caches.receive(1);
        assert_eq!((cached(&caches, 1), cached(&caches, 0)), (32, 0));
        let first = |caches: &PublishedCaches| caches.resident(1, &request, 16, 31.0);
        assert_eq!(first(&caches), ResidentTokens { tokens: 16.0, is_all: true });
        caches.receive(1);
        assert_eq!(cached(&caches, 1), 16);
        assert!(!caches.resident(1, &request, 16, 33.0).is_all);
        caches.clear(1);
        assert_eq!(first(&caches), ResidentTokens { tokens: 0.0, is_all: false });
    }
}
