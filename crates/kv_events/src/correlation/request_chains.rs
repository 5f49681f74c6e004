//! The blocks that the requests in flight store, by their session ids.

use crate::decoder::BlockHash;
use crate::residency::StoredChain;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64;

/// A request in flight: its backend and a hash of its session id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestKey {
    backend: u32,
    session: u64,
}

/// Blocks that one request stored, each a child of the block before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestChain {
    /// The block before the first one: the last reused block. `None`: nothing was reused.
    pub parent: Option<BlockHash>,
    /// Number of blocks of the prompt before the first one.
    pub first_depth: u32,
    /// The blocks.
    pub blocks: Vec<BlockHash>,
}

/// The requests in flight and their blocks.
#[derive(Debug, Default)]
pub struct RequestChains {
    requests: HashMap<RequestKey, PendingRequest>,
    /// Number of blocks of all requests.
    block_count: usize,
}

#[derive(Debug, Default)]
struct PendingRequest {
    /// Requests in flight with this session id at this backend.
    in_flight: u32,
    /// Whether several requests had the session id at the same time.
    is_shared: bool,
    /// Whether the events do not form one chain.
    is_broken: bool,
    chain: RequestChain,
}

/// Greatest number of requests that are followed. Further requests teach nothing.
const MAX_REQUESTS: usize = 16_384;
/// Greatest number of blocks of all requests that are followed: 67 million tokens in blocks of 16, in
/// 32 MiB.
const MAX_BLOCKS: usize = 1 << 22;

impl RequestKey {
    /// The key of a request with a session id at a backend.
    pub fn new(backend: u32, session_id: &str) -> Self {
        Self { backend, session: xxh3_64(session_id.as_bytes()) }
    }
}

impl RequestChains {
    /// A request is sent.
    pub fn begin(&mut self, key: RequestKey) {
        if self.requests.len() >= MAX_REQUESTS && !self.requests.contains_key(&key) {
            return;
        }
        let request = self.requests.entry(key).or_default();
        request.in_flight += 1;
        request.is_shared |= request.in_flight > 1;
    }

    /// A backend stored blocks.
    pub fn on_stored(&mut self, backend: u32, stored: &StoredChain<'_>) {
        let Some(session_id) = stored.event.session_id else { return };
        let key = RequestKey::new(backend, session_id);
        let Some(request) = self.requests.get_mut(&key).filter(|request| !request.is_broken) else {
            return;
        };
        let chain = &mut request.chain;
        if chain.blocks.is_empty() {
            (chain.parent, chain.first_depth) = (stored.parent, stored.first_depth);
        } else if chain.blocks.last().copied() != stored.parent {
            // Several outputs of one request, or a preemption. The blocks before are right.
            request.is_broken = true;
            return;
        }
        let room = MAX_BLOCKS - self.block_count;
        let added = room.min(stored.event.block_hashes.len());
        chain.blocks.extend(stored.event.block_hashes.iter().take(added));
        self.block_count += added;
        request.is_broken = room == added;
    }

    /// A request has ended. Returns what it stored, if no other request had the same session id at
    /// the same time.
    pub fn end(&mut self, key: RequestKey) -> Option<RequestChain> {
        let request = self.requests.get_mut(&key)?;
        request.in_flight -= 1;
        if request.in_flight > 0 {
            return None;
        }
        let PendingRequest { is_shared, chain, .. } = self.requests.remove(&key)?;
        self.block_count -= chain.blocks.len();
        (!is_shared && !chain.blocks.is_empty()).then_some(chain)
    }

    /// A backend was removed: its requests teach nothing.
    pub fn remove_backend(&mut self, backend: u32) {
        let removed = self.requests.extract_if(|key, _| key.backend == backend);
        self.block_count -= removed.map(|(_, request)| request.chain.blocks.len()).sum::<usize>();
    }

    /// Number of requests that are followed.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether no request is followed.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::{EventBatch, KvEvent};
    use crate::residency::CacheContents;
    use crate::test_batches::{Stored, batch};

    /// A cache, and the requests whose events it receives.
    struct Fixture {
        contents: CacheContents,
        chains: RequestChains,
    }

    impl Fixture {
        fn new() -> Self {
            Self { contents: CacheContents::new(1_000, 0), chains: RequestChains::default() }
        }

        fn store(&mut self, session_id: &str, parent: Option<u64>, blocks: &[u64]) {
            let payload = batch(&[Stored { blocks, parent, block_size: 16, session_id }], &[]);
            for event in EventBatch::parse(&payload).unwrap().events() {
                let event: KvEvent<'_> = event.unwrap();
                if let Some(stored) = self.contents.apply(&event).unwrap() {
                    self.chains.on_stored(7, &stored);
                }
            }
        }
    }

    fn key(session_id: &str) -> RequestKey {
        RequestKey::new(7, session_id)
    }

    #[test]
    fn a_request_has_the_blocks_that_were_stored_with_its_session_id() {
        let mut fixture = Fixture::new();
        fixture.chains.begin(key("a"));
        fixture.chains.begin(key("b"));
        fixture.store("a", None, &[1, 2]);
        fixture.store("b", Some(2), &[30]);
        fixture.store("a", Some(2), &[3]);
        fixture.store("nobody", Some(3), &[4]);
        let b = RequestChain { parent: Some(2), first_depth: 2, blocks: vec![30] };
        assert_eq!(fixture.chains.end(key("b")), Some(b));
        let a = RequestChain { parent: None, first_depth: 0, blocks: vec![1, 2, 3] };
        assert_eq!(fixture.chains.end(key("a")), Some(a));
        assert!(fixture.chains.is_empty());
    }

    #[test]
    fn requests_that_share_a_session_id_teach_nothing_while_they_overlap() {
        let mut fixture = Fixture::new();
        fixture.chains.begin(key("a"));
        fixture.chains.begin(key("a"));
        fixture.store("a", None, &[1]);
        assert_eq!(fixture.chains.end(key("a")), None);
        assert_eq!(fixture.chains.end(key("a")), None);
        fixture.chains.begin(key("a"));
        fixture.store("a", Some(1), &[2]);
        assert!(fixture.chains.end(key("a")).is_some());
    }

    #[test]
    fn the_chain_ends_where_several_outputs_begin() {
        let mut fixture = Fixture::new();
        fixture.chains.begin(key("a"));
        fixture.store("a", None, &[1, 2]);
        fixture.store("a", Some(2), &[3]);
        fixture.store("a", Some(2), &[4]);
        fixture.store("a", Some(3), &[5]);
        assert_eq!(fixture.chains.end(key("a")).unwrap().blocks, [1, 2, 3]);
    }

    #[test]
    fn blocks_after_an_unknown_parent_and_requests_of_a_removed_backend_teach_nothing() {
        let mut fixture = Fixture::new();
        fixture.chains.begin(key("a"));
        fixture.store("a", Some(99), &[1]);
        assert_eq!(fixture.chains.end(key("a")), None);
        fixture.chains.begin(key("a"));
        fixture.store("a", None, &[1, 2]);
        assert_eq!(fixture.chains.block_count, 2);
        fixture.chains.remove_backend(7);
        assert_eq!((fixture.chains.end(key("a")), fixture.chains.block_count), (None, 0));
    }

    #[test]
    fn the_number_of_followed_requests_is_bounded() {
        let mut chains = RequestChains::default();
        for number in 0..2 * MAX_REQUESTS {
            chains.begin(key(&number.to_string()));
        }
        assert_eq!(chains.len(), MAX_REQUESTS);
        assert_eq!(chains.end(key(&(2 * MAX_REQUESTS - 1).to_string())), None);
    }
}
