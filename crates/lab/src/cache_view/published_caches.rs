//! The contents of the prefix caches as the KV events of the engines publish them.

use super::super::trace::TraceRequest;
use std::collections::{HashSet, VecDeque};
use tokenweir_sim::engine::CacheChange;

/// Published content of the caches of a fleet. All gateways have received the same events.
#[derive(Debug)]
pub(crate) struct PublishedCaches {
    /// By position of the backend.
    caches: Vec<PublishedCache>,
}

#[derive(Debug, Default)]
struct PublishedCache {
    resident: HashSet<u64>,
    /// Changes of one step each that have not arrived.
    in_transit: VecDeque<Vec<CacheChange>>,
}

/// Cached tokens of one prompt. It computes the block hashes once for each block size.
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

    /// An engine publishes the changes of a step. Returns whether there are any.
    pub(crate) fn publish(&mut self, backend: usize, changes: Vec<CacheChange>) -> bool {
        let is_published = !changes.is_empty();
        if is_published {
            self.caches[backend].in_transit.push_back(changes);
        }
        is_published
    }

    /// The oldest changes of a backend in transit arrive.
    pub(crate) fn receive(&mut self, backend: usize) {
        let PublishedCache { resident, in_transit } = &mut self.caches[backend];
        for change in in_transit.pop_front().unwrap_or_default() {
            match change {
                CacheChange::Stored(hash) => resident.insert(hash),
                CacheChange::Removed(hash) => resident.remove(&hash),
            };
        }
    }

    /// Looks up a prompt.
    pub(crate) fn lookup<'a>(&'a self, job: &'a TraceRequest) -> PublishedLookup<'a> {
        PublishedLookup { caches: self, job, hashes: None }
    }
}

impl PublishedLookup<'_> {
    /// Leading prompt tokens that are in the cache of a backend, in blocks of `block_size` tokens.
    pub(crate) fn cached_tokens(&mut self, backend: usize, block_size: u32) -> f64 {
        if self.hashes.as_ref().is_none_or(|(size, _)| *size != block_size) {
            let mut hashes = self.job.request(block_size).block_hashes;
            // The engine always computes the last token of a prompt.
            hashes.truncate((self.job.prompt_tokens.saturating_sub(1) / block_size) as usize);
            self.hashes = Some((block_size, hashes));
        }
        let Some((_, hashes)) = &self.hashes else { return 0.0 };
        let resident = &self.caches.caches[backend].resident;
        let blocks = hashes.iter().take_while(|hash| resident.contains(hash)).count();
        blocks as f64 * f64::from(block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::routing::PromptFingerprint;

    #[test]
    fn a_block_is_cached_from_the_arrival_of_its_event_until_that_of_its_removal() {
        let job = TraceRequest {
            prompt_tokens: 33,
            prompt: PromptFingerprint { bytes: 33, blocks: [5].into(), whole: 0, block_bytes: 512 },
            ..TraceRequest::default()
        };
        let hashes = job.request(16).block_hashes;
        let mut caches = PublishedCaches::new(2);
        let stored = hashes.iter().map(|hash| CacheChange::Stored(*hash)).collect();
        assert!(caches.publish(1, stored));
        assert!(!caches.publish(1, Vec::new()));
        assert!(caches.publish(1, vec![CacheChange::Removed(hashes[1])]));
        let cached = |caches: &PublishedCaches, backend| {
            caches.lookup(&job).cached_tokens(backend, 16) as u32
        };
        assert_eq!(cached(&caches, 1), 0);
        caches.receive(1);
        assert_eq!((cached(&caches, 1), cached(&caches, 0)), (32, 0));
        caches.receive(1);
        assert_eq!(cached(&caches, 1), 16);
    }
}
