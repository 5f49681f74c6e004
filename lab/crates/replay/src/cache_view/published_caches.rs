//! The contents of the prefix caches, as far as the KV events of the engines have published them.

use super::super::trace::TraceRequest;
use std::collections::{HashSet, VecDeque};
use tokenweir_sim::engine::CacheChange;

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

/// Looks up how much of one prompt is in the caches. The block hashes of the prompt are computed once for
/// each block size.
#[derive(Debug)]
pub(crate) struct PublishedLookup<'a> {
    caches: &'a PublishedCaches,
    job: &'a TraceRequest,
    hashes: Option<(u32, Vec<u64>)>,
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

    /// Looks up a prompt.
    pub(crate) fn lookup<'a>(&'a self, job: &'a TraceRequest) -> PublishedLookup<'a> {
        PublishedLookup { caches: self, job, hashes: None }
    }
}

/// How many leading tokens of a prompt are in a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResidentTokens {
    /// Number of cached tokens.
    pub(crate) tokens: f64,
    /// Whether all looked-up tokens are in the cache.
    pub(crate) is_all: bool,
}

impl PublishedLookup<'_> {
    /// How many of the first `max_tokens` tokens of the prompt are in the cache of a backend whose blocks
    /// have `block_size` tokens.
    pub(crate) fn resident(
        &mut self,
        backend: usize,
        block_size: u32,
        max_tokens: f64,
    ) -> ResidentTokens {
        if self.hashes.as_ref().is_none_or(|(size, _)| *size != block_size) {
            let mut hashes = self.job.request(block_size).block_hashes;
            // An engine always computes the last token of a prompt, so the block with this token is left out.
            hashes.truncate((self.job.prompt_tokens.saturating_sub(1) / block_size) as usize);
            self.hashes = Some((block_size, hashes));
        }
        let hashes = self.hashes.as_ref().map_or(&[][..], |(_, hashes)| hashes);
        let max_blocks = ((max_tokens / f64::from(block_size)) as usize).min(hashes.len());
        let resident = &self.caches.caches[backend].resident;
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
    use tokenweir_sim::engine::StoredBlock;

    #[test]
    fn a_block_is_cached_from_the_arrival_of_its_event_until_that_of_its_removal() {
        let job = TraceRequest {
            prompt_tokens: 33,
            prompt: prompt(33, [5].into()),
            ..TraceRequest::default()
        };
        let hashes = job.request(16).block_hashes;
        let mut caches = PublishedCaches::new(2);
        let stored = |index| CacheChange::Stored(StoredBlock::new(&hashes, index, 0));
        let stored = (0..hashes.len()).map(stored).collect();
        assert!(caches.publish(1, stored));
        assert!(!caches.publish(1, Vec::new()));
        assert!(caches.publish(1, vec![CacheChange::Removed(hashes[1])]));
        let cached = |caches: &PublishedCaches, backend| {
            caches.lookup(&job).resident(backend, 16, f64::INFINITY).tokens as u32
        };
        assert_eq!(cached(&caches, 1), 0);
        caches.receive(1);
        assert_eq!((cached(&caches, 1), cached(&caches, 0)), (32, 0));
        let first = |caches: &PublishedCaches| caches.lookup(&job).resident(1, 16, 31.0);
        assert_eq!(first(&caches), ResidentTokens { tokens: 16.0, is_all: true });
        caches.receive(1);
        assert_eq!(cached(&caches, 1), 16);
        assert!(!caches.lookup(&job).resident(1, 16, 33.0).is_all);
        caches.clear(1);
        assert_eq!(first(&caches), ResidentTokens { tokens: 0.0, is_all: false });
    }
}
