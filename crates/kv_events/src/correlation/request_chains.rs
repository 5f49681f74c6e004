//! The engine blocks that the requests in flight have stored in the prefix caches of their
//! backends, as KV events show them.

use crate::decoder::BlockHash;
use crate::residency::StoredChain;
use std::collections::HashMap;

/// Identifies a request by its backend and by the number of its session id, which no other request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestKey {
    /// Number that identifies the backend.
    pub backend: u32,
    /// Sequence number of the session id that the gateway gave to the request.
    pub session: u64,
}

/// The engine blocks that one request stored, in the order of its prompt. Each block is the child
/// of the block before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestChain {
    /// The last block that the engine reused from its cache, which precedes the first of `blocks` in the
    /// prompt. `None`: the engine reused no block.
    pub parent: Option<BlockHash>,
    /// Number of blocks of the prompt before the first of `blocks`.
    pub first_depth: u32,
    /// Hashes of the blocks, in the order of the prompt.
    pub blocks: Vec<BlockHash>,
}

/// The requests in flight whose blocks an engine has stored. A request is removed when it ends.
#[derive(Debug, Default)]
pub struct RequestChains {
    requests: HashMap<RequestKey, PendingRequest>,
    /// Total number of stored engine blocks of all requests in the table.
    block_count: usize,
}

#[derive(Debug, Default)]
struct PendingRequest {
    /// Whether later events no longer extend the chain.
    is_broken: bool,
    chain: RequestChain,
}

/// Maximum number of requests in the table. A full table is cleared, because it shows that
/// [`RequestChains::end`] was not called for many requests.
const MAX_REQUESTS: usize = 16_384;
/// Maximum number of engine blocks of all requests: 67 million tokens in blocks of 16, in 32 MiB.
const MAX_BLOCKS: usize = 1 << 22;

impl RequestChains {
    /// Records that a backend stored blocks for a request of this gateway.
    pub fn on_stored(&mut self, key: RequestKey, stored: &StoredChain<'_>) {
        let is_full = self.requests.len() >= MAX_REQUESTS || self.block_count >= MAX_BLOCKS;
        if is_full && !self.requests.contains_key(&key) {
            *self = Self::default();
        }
        let request = self.requests.entry(key).or_default();
        let chain = &mut request.chain;
        if request.is_broken {
            return;
        }
        if chain.blocks.is_empty() {
            (chain.parent, chain.first_depth) = (stored.parent, stored.first_depth);
        } else if chain.blocks.last().copied() != stored.parent {
            // The event does not continue the chain: the request has several choices, or was preempted. The
            // blocks of earlier events stay valid.
            request.is_broken = true;
            return;
        }
        let room = MAX_BLOCKS - self.block_count;
        let added = room.min(stored.event.block_hashes.len());
        chain
            .blocks
            .extend(stored.event.block_hashes.iter().take(added));
        self.block_count += added;
        request.is_broken = room == added;
    }

    /// Removes a request that has ended, and returns the blocks that it stored. `None`: no event has shown a
    /// block of the request.
    pub fn end(&mut self, key: RequestKey) -> Option<RequestChain> {
        let PendingRequest { chain, .. } = self.requests.remove(&key)?;
        self.block_count -= chain.blocks.len();
        Some(chain).filter(|chain| !chain.blocks.is_empty())
    }

    /// Removes all requests of a backend that has left the gateway.
    pub fn remove_backend(&mut self, backend: u32) {
        let removed = self.requests.extract_if(|key, _| key.backend == backend);
        self.block_count -= removed
            .map(|(_, request)| request.chain.blocks.len())
            .sum::<usize>();
    }

    /// Whether the table has no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::{EventBatch, KvEvent};
    use crate::encoder::{PublishedEvent, StoredBlocks, encode_batch};
    use crate::residency::CacheContents;

    /// A cache that KV events fill, and the requests that caused the events.
    struct Fixture {
        contents: CacheContents,
        chains: RequestChains,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                contents: CacheContents::new(1_000, 0),
                chains: RequestChains::default(),
            }
        }

        fn store(&mut self, session: u64, parent: Option<u64>, blocks: &[u64]) {
            let stored = StoredBlocks {
                hashes: blocks.to_vec(),
                parent,
                token_ids: Vec::new(),
                block_size: 16,
                session_id: None,
            };
            let payload = encode_batch(0.0, &[PublishedEvent::Stored(stored)]);
            for event in EventBatch::parse(&payload).unwrap() {
                let event: KvEvent<'_> = event.unwrap();
                if let Some(stored) = self.contents.apply(&event).unwrap() {
                    self.chains.on_stored(key(session), &stored);
                }
            }
        }
    }

    fn key(session: u64) -> RequestKey {
        RequestKey {
            backend: 7,
            session,
        }
    }

    #[test]
    fn a_request_gets_the_blocks_of_its_session() {
        let mut fixture = Fixture::new();
        fixture.store(1, None, &[1, 2]);
        fixture.store(2, Some(2), &[30]);
        fixture.store(1, Some(2), &[3]);
        let second = RequestChain {
            parent: Some(2),
            first_depth: 2,
            blocks: vec![30],
        };
        assert_eq!(fixture.chains.end(key(2)), Some(second));
        let first = RequestChain {
            parent: None,
            first_depth: 0,
            blocks: vec![1, 2, 3],
        };
        assert_eq!(fixture.chains.end(key(1)), Some(first));
        assert_eq!(fixture.chains.end(key(3)), None);
        assert!(fixture.chains.is_empty());
    }

    #[test]
    fn a_chain_ends_where_several_outputs_begin() {
        let mut fixture = Fixture::new();
        fixture.store(1, None, &[1, 2]);
        fixture.store(1, Some(2), &[3]);
        fixture.store(1, Some(2), &[4]);
        fixture.store(1, Some(3), &[5]);
        assert_eq!(fixture.chains.end(key(1)).unwrap().blocks, [1, 2, 3]);
    }

    #[test]
    fn orphaned_blocks_belong_to_no_request() {
        let mut fixture = Fixture::new();
        fixture.store(1, Some(99), &[1]);
        assert_eq!(fixture.chains.end(key(1)), None);
        fixture.store(1, None, &[1, 2]);
        assert_eq!(fixture.chains.block_count, 2);
        fixture.chains.remove_backend(7);
        assert_eq!(
            (fixture.chains.end(key(1)), fixture.chains.block_count),
            (None, 0)
        );
    }

    #[test]
    fn the_number_of_requests_is_bounded() {
        let mut fixture = Fixture::new();
        for session in 0..2 * MAX_REQUESTS as u64 + 10 {
            fixture.store(session, None, &[1]);
            assert!(fixture.chains.requests.len() <= MAX_REQUESTS);
        }
        assert!(
            fixture
                .chains
                .end(key(2 * MAX_REQUESTS as u64 + 9))
                .is_some()
        );
    }
}
