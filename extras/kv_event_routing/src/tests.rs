//! Tests of the path from KV events and requests to the cached tokens of routing candidates.

use crate::followed_request::FollowedRequest;
use crate::learning::start_learner;
use crate::receipt::PartSink;
use crate::{BackendCache, CacheKnowledge, KvEventsFacet, KvEventsSettings};
use http::HeaderMap;
use std::sync::Arc;
use tokenweir_engine::address::{BackendAddress, BackendId};
use tokenweir_gateway::backend::facets::{FollowedPrompt, PromptKnowledge};
use tokenweir_gateway::backend::{Backend, Lease};
use tokenweir_kv_events::encoder::{PublishedEvent, StoredBlocks, encode_batch};
use tokenweir_kv_events::residency::StreamState;
use tokenweir_kv_events::zmtp::EventSink;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::Usage;
use tokenweir_routing::{CachedSource, Candidate, PromptFingerprint};

/// Tokens in an engine block.
const BLOCK_SIZE: u8 = 16;
/// Number of engine blocks in a prompt of [`prompt`].
const BLOCKS: u64 = 24;

/// A backend with one data-parallel rank, and the receiver of its KV events.
struct Fixture {
    knowledge: Arc<CacheKnowledge>,
    backend: Arc<Backend>,
    sink: PartSink,
}

fn knowledge() -> Arc<CacheKnowledge> {
    CacheKnowledge::new(KvEventsSettings {
        enabled: Some(true),
        ..KvEventsSettings::default()
    })
}

fn backend(name: &str) -> Backend {
    let address = BackendAddress::parse("http://a:1").unwrap();
    let mut backend = Backend::new(BackendId::new(name), address, None);
    backend
        .facets
        .options
        .push(Box::new(KvEventsFacet::default()));
    backend
}

fn lease(backend: &Arc<Backend>, prompt: &Arc<PromptFingerprint>) -> Lease {
    let now = clock::now();
    let candidate = backend.candidate(prompt, None, clock::nanos(now)).unwrap();
    Lease::new(backend.clone(), &candidate, prompt, true, now)
}

fn prompt(text: char) -> Arc<PromptFingerprint> {
    let text = text.to_string().repeat(3 * 512 + 100);
    Arc::new(PromptFingerprint::new(1, [text.as_bytes()].into_iter()))
}

fn blocks_of(prompt: u64) -> Vec<u64> {
    (0..BLOCKS)
        .map(|block| prompt * 1_000_000 + block)
        .collect()
}

/// A batch of KV events that stores these blocks.
fn stored(blocks: &[u64], session_id: &str) -> Vec<u8> {
    encode_batch(
        0.0,
        &[PublishedEvent::Stored(StoredBlocks {
            hashes: blocks.to_vec(),
            parent: None,
            token_ids: Vec::new(),
            block_size: BLOCK_SIZE.into(),
            session_id: Some(session_id),
        })],
    )
}

impl Fixture {
    /// A backend whose KV events are in the state `exact`.
    fn new(knowledge: &Arc<CacheKnowledge>) -> Self {
        let backend = Arc::new(backend("a"));
        let cache = Arc::new(BackendCache::new(knowledge.clone()));
        let facet: &KvEventsFacet = backend.facets.get().unwrap();
        facet.cache.set(cache.clone()).unwrap();
        backend.facets.prompt_cache.set(cache.clone()).unwrap();
        let part = cache.set_part_count(1)[0].clone();
        let mut sink = PartSink::new(&backend.identity.id, &cache, part);
        sink.on_state(StreamState::Exact);
        Self {
            knowledge: knowledge.clone(),
            backend,
            sink,
        }
    }

    /// Simulates a request of this gateway whose blocks the engine stores. Waits until the learner has
    /// processed the request.
    async fn answer(&mut self, number: u64, prompt: &Arc<PromptFingerprint>) {
        let facet: &KvEventsFacet = self.backend.facets.get().unwrap();
        let followed = FollowedRequest::begin(facet.cache().unwrap(), prompt).unwrap();
        let session_id = followed.header.to_str().unwrap().to_owned();
        self.sink
            .apply(&stored(&blocks_of(number), &session_id))
            .unwrap();
        let prompt_tokens = BLOCKS * u64::from(BLOCK_SIZE) + 3;
        let (input, cached) = (Some(prompt_tokens), Some(0));
        followed.set_usage(Usage {
            input,
            cached,
            ..Usage::default()
        });
        let before = self.knowledge.learning_counts();
        drop(followed);
        while self.knowledge.learning_counts() == before {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    fn candidate(&self, prompt: &PromptFingerprint) -> (f64, CachedSource) {
        let mut known = PromptKnowledge::new(prompt);
        let candidate = self
            .backend
            .candidate(prompt, Some(&mut known), clock::nanos(clock::now()))
            .unwrap();
        (candidate.cached, candidate.cached_source)
    }
}

#[tokio::test(start_paused = true)]
async fn a_learned_prompt_is_exact_after_eviction() {
    let knowledge = knowledge();
    let _learner = start_learner(&knowledge);
    let mut fixture = Fixture::new(&knowledge);
    assert_eq!(
        fixture.candidate(&prompt('x')),
        (0.0, CachedSource::Approximate)
    );
    fixture.answer(1, &prompt('x')).await;
    assert_eq!(knowledge.learning_counts().learned, 1);
    assert_eq!(
        fixture.candidate(&prompt('x')),
        (384.0, CachedSource::Exact)
    );
    assert_eq!(
        fixture.candidate(&prompt('y')),
        (0.0, CachedSource::Approximate)
    );
    let tail: Vec<_> = blocks_of(1)
        .into_iter()
        .skip(5)
        .map(PublishedEvent::Removed)
        .collect();
    fixture.sink.apply(&encode_batch(0.0, &tail)).unwrap();
    assert_eq!(fixture.candidate(&prompt('x')), (80.0, CachedSource::Exact));
    fixture
        .sink
        .apply(&encode_batch(0.0, &[PublishedEvent::AllCleared]))
        .unwrap();
    assert_eq!(fixture.candidate(&prompt('x')), (0.0, CachedSource::Exact));
}

#[tokio::test(start_paused = true)]
async fn unusable_events_leave_the_estimate() {
    let knowledge = knowledge();
    let _learner = start_learner(&knowledge);
    let mut fixture = Fixture::new(&knowledge);
    fixture.answer(1, &prompt('x')).await;
    for state in [StreamState::Off, StreamState::Gap] {
        fixture.sink.on_state(state);
        assert_eq!(
            fixture.candidate(&prompt('x')),
            (0.0, CachedSource::Approximate)
        );
    }
    fixture.sink.on_state(StreamState::FromHere);
    let (cached, source) = fixture.candidate(&prompt('x'));
    assert!(cached > 0.0 && source == CachedSource::Approximate);
}

#[tokio::test(start_paused = true)]
async fn equal_blocks_share_learned_prompts() {
    let knowledge = knowledge();
    let _learner = start_learner(&knowledge);
    let (mut first, mut second) = (Fixture::new(&knowledge), Fixture::new(&knowledge));
    first.answer(1, &prompt('x')).await;
    assert_eq!(second.candidate(&prompt('x')).1, CachedSource::Approximate);
    // Another gateway sent half of the prompt to the second backend.
    second
        .sink
        .apply(&stored(&blocks_of(1)[..12], "of another gateway"))
        .unwrap();
    assert_eq!(second.candidate(&prompt('x')), (192.0, CachedSource::Exact));
    // The second engine may have restarted with other block hashes.
    second.sink.clear();
    second.sink.on_state(StreamState::Exact);
    assert_eq!(second.candidate(&prompt('x')).1, CachedSource::Approximate);
    assert_eq!(first.candidate(&prompt('x')), (384.0, CachedSource::Exact));
}

#[tokio::test(start_paused = true)]
async fn a_foreign_session_id_teaches_nothing() {
    let knowledge = knowledge();
    let _learner = start_learner(&knowledge);
    let mut fixture = Fixture::new(&knowledge);
    let other = CacheKnowledge::new(KvEventsSettings::default());
    let foreign = other.session_ids.issue().text;
    for id in ["session", &foreign, "tw."] {
        fixture.sink.apply(&stored(&blocks_of(1), id)).unwrap();
    }
    assert!(knowledge.chains().is_empty());
}

#[tokio::test]
async fn session_ids_need_received_events() {
    let (knowledge, prompt) = (knowledge(), prompt('x'));
    let session_id = |lease: &Lease| {
        let mut headers = HeaderMap::new();
        lease.set_headers(&prompt, &mut headers);
        headers.remove("x-session-id")
    };
    assert_eq!(session_id(&lease(&Arc::new(backend("a")), &prompt)), None);
    let fixture = Fixture::new(&knowledge);
    let first = lease(&fixture.backend, &prompt);
    let second = lease(&fixture.backend, &prompt);
    let id = session_id(&first);
    assert!(id.is_some());
    // The same attempt on another connection has the same session id.
    assert_eq!(session_id(&first), id);
    assert_ne!(session_id(&second), id);
}

#[test]
fn without_events_the_lookup_changes_nothing() {
    let backend = backend("a");
    let now = clock::now();
    for text in ['a', 'b', 'c', 'a'] {
        let prompt = prompt(text);
        let bits = |candidate: Candidate| format!("{candidate:?}");
        let mut known = PromptKnowledge::new(&prompt);
        let at = clock::nanos(now);
        let with_lookup = backend.candidate(&prompt, Some(&mut known), at).unwrap();
        assert_eq!(
            bits(with_lookup),
            bits(backend.candidate(&prompt, None, at).unwrap())
        );
        let estimator = &backend.load.estimator;
        let reservation = estimator.reserve(&with_lookup, &prompt, true, now);
        estimator.release(reservation, now);
    }
}
