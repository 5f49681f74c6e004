//! Tests of the cache map: from request records and KV events, it makes the document of `/cache` and the
//! evicting pairs for the diagnosis.

use super::CacheMap;
use crate::backend::PoolSettings;
use crate::backend::facets::kv_events::{start_learner, tests as events};
use crate::backend::pool::BackendPool;
use std::sync::Arc;
use tokenweir_api::CacheMapDocument;
use tokenweir_engine::address::BackendId;
use tokenweir_kv_events::residency::StreamState;
use tokenweir_protocol::clock;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::fixtures::streamed;
use tokenweir_request::record::{ClientIdentity, Outcome, RequestRecord};
use tokenweir_routing::{LoadReport, LocalLoad, PromptFingerprint};

/// Tokens in a text block of these tests.
const BLOCK_TOKENS: u64 = 128;

/// A pool of backends with caches of 100 text blocks each, and the cache map of the pool.
fn map(names: &[&str]) -> (Arc<BackendPool>, CacheMap) {
    let backend = |name: &&str| {
        let backend = events::backend(name);
        let report = LoadReport { capacity: Some(100 * BLOCK_TOKENS), ..LoadReport::default() };
        backend.load.estimator.on_report(&report, &LocalLoad::default(), clock::now());
        backend
    };
    let backends = names.iter().map(backend).collect();
    let pool = Arc::new(BackendPool::with_settings(backends, &PoolSettings::default()));
    (pool.clone(), CacheMap::new(pool))
}

/// A prompt of `blocks` text blocks. Prompts with the same `text` begin with the same block.
fn prompt(text: u64, blocks: u64) -> PromptFingerprint {
    PromptFingerprint {
        bytes: blocks * 512,
        blocks: (0..blocks).map(|block| text << 32 | block).collect(),
        whole: text,
        block_bytes: 512,
        ..PromptFingerprint::default()
    }
}

/// The record of a request for which the engine reported `cached` cached blocks.
fn record(backend: &str, prompt: PromptFingerprint, cached: u64) -> RequestRecord {
    let mut record = streamed();
    record.attempts[0].backend = BackendId::new(backend);
    record.observed.usage.input = Some(prompt.blocks.len() as u64 * BLOCK_TOKENS);
    record.observed.usage.cached = Some(cached * BLOCK_TOKENS);
    record.observed.usage.output = Some(0);
    record.fingerprint = Some(Arc::new(prompt));
    record
}

fn of_tenant(tenant: &str, record: RequestRecord) -> RequestRecord {
    let caller =
        ClientIdentity { tenant: tenant.into(), key: "secret-key".into(), is_tenant_label: true };
    RequestRecord { caller: Some(Arc::new(caller)), ..record }
}

fn document(map: &CacheMap) -> CacheMapDocument {
    map.document(clock::now())
}

#[test]
fn the_cache_map_shows_the_first_tenant_the_requests_and_the_backends_of_a_prompt_group() {
    let (_, map) = map(&["a", "b"]);
    let requests = [("red", "a", 0), ("blue", "a", 20), ("red", "b", 0)];
    for (tenant, backend, cached) in requests {
        map.finished(&[&of_tenant(tenant, record(backend, prompt(1, 20), cached))]);
    }
    map.finished(&[&record("b", prompt(2, 5), 0)]);
    let shown = document(&map);
    let [first, second] = &shown.groups[..] else { panic!("{shown:?}") };
    assert_eq!(
        (first.tenant.as_deref(), first.requests, first.reused_requests),
        (Some("red"), 3, 1)
    );
    assert_eq!((first.backends, second.backends), (2, 1));
    assert_eq!(first.by_backend[0].blocks, 20);
    assert_eq!((second.tenant.as_deref(), second.requests), (None, 1));
    assert_ne!(first.id, second.id);
    assert!(first.age_seconds.is_some() && first.idle_seconds.is_some());
    let caches: Vec<_> = shown.backends.iter().map(|it| (&*it.source, it.groups)).collect();
    assert_eq!(caches, [("approximate", 1), ("approximate", 2)]);
    assert!(!serde_json::to_string(&shown).unwrap().contains("secret-key"));
    assert!(shown.bytes > 0);
}

#[test]
fn the_cache_map_names_the_prompt_group_that_evicted_the_blocks_of_another_group() {
    let (_, map) = map(&["a"]);
    map.finished(&[&record("a", prompt(1, 80), 0), &record("a", prompt(2, 80), 0)]);
    let shown = document(&map);
    let row = |blocks| shown.groups.iter().find(|group| group.by_backend[0].blocks == blocks);
    let (lost, evictor) = (row(20).unwrap(), row(80).unwrap());
    let evicted_by = lost.by_backend[0].evicted_by.as_ref().unwrap();
    assert_eq!(evicted_by.id.as_ref(), Some(&evictor.id));
    assert_eq!(lost.by_backend[0].evicted_tokens, evicted_by.tokens);
    assert_eq!(evictor.by_backend[0].evicted_by, None);
    assert_eq!(shown.backends[0].recomputed_tokens, 0);
    assert!(map.evicting_pairs().is_empty(), "nobody asked for the first group again");
}

#[test]
fn prompt_groups_that_evict_each_other_and_are_requested_again_are_an_evicting_pair() {
    let (_, map) = map(&["a"]);
    for _ in 0..10 {
        map.finished(&[&of_tenant("red", record("a", prompt(1, 80), 0))]);
        map.finished(&[&of_tenant("blue", record("a", prompt(2, 80), 0))]);
    }
    let pairs = map.evicting_pairs();
    let [pair] = &pairs[..] else { panic!("{pairs:?}") };
    assert_eq!(pair.backend.as_str(), "a");
    let mut tenants = pair.groups.each_ref().map(|group| group.tenant.clone().unwrap());
    tenants.sort();
    assert_eq!(tenants, ["blue", "red"]);
    for group in &pair.groups {
        assert_eq!((group.counts.requests, group.counts.cached_tokens), (10, 0));
        assert_eq!(group.counts.prompt_tokens, 10 * 80 * BLOCK_TOKENS);
        assert!(group.counts.recomputed_blocks > 4 * 80, "{group:?}");
    }
    let shown = document(&map);
    assert!(shown.groups.iter().all(|group| group.by_backend[0].recomputed_tokens > 0));
}

#[test]
fn prompt_groups_that_are_not_requested_again_after_eviction_are_no_evicting_pair() {
    let (_, map) = map(&["a"]);
    for text in 1..300 {
        map.finished(&[&record("a", prompt(text, 7), 0)]);
    }
    assert!(map.evicting_pairs().is_empty());
    let shown = document(&map);
    assert!(shown.backends[0].evicted_tokens > 0);
    assert_eq!(shown.backends[0].recomputed_tokens, 0);
}

#[test]
fn the_cache_map_ignores_requests_without_prompt_text_and_those_that_no_backend_computed() {
    let (_, map) = map(&["a"]);
    let mut failed = record("a", prompt(1, 20), 0);
    (failed.outcome, failed.timings.first_output) = (Outcome::UpstreamError, None);
    let unread = RequestRecord { fingerprint: None, ..record("a", prompt(2, 20), 0) };
    let elsewhere = record("removed", prompt(3, 20), 0);
    map.finished(&[&failed, &unread, &elsewhere]);
    assert_eq!(document(&map).groups, []);
}

#[test]
fn a_backend_restart_empties_the_cache_of_the_backend_in_the_cache_map() {
    let (pool, map) = map(&["a"]);
    map.finished(&[&record("a", prompt(1, 20), 0)]);
    pool.backends()[0].load.on_restart();
    map.finished(&[&record("a", prompt(2, 5), 0)]);
    let shown = document(&map);
    assert_eq!(shown.groups.len(), 1);
    assert_eq!(shown.groups[0].by_backend[0].blocks, 5);
}

#[test]
fn the_cache_map_and_its_document_have_a_maximum_size() {
    let (_, map) = map(&["a", "b"]);
    let mut greatest = 0;
    for text in 1..6_000 {
        map.finished(&[&record(["a", "b"][text as usize % 2], prompt(text, 1 + text % 4), 0)]);
        if text % 1_000 == 0 {
            greatest = greatest.max(document(&map).bytes);
        }
    }
    let shown = document(&map);
    assert_eq!(shown.groups.len(), 50);
    assert!(shown.omitted_groups > 0);
    assert!(shown.groups.is_sorted_by_key(|group| std::cmp::Reverse(group.tokens)));
    assert!(greatest < 2 << 20, "{greatest}");
}

#[tokio::test(start_paused = true)]
async fn exact_kv_events_replace_the_modelled_cache_of_a_backend_in_the_cache_map() {
    let (pool, map) = map(&["a", "b"]);
    map.finished(&[&of_tenant("red", record("a", prompt(1, 20), 0))]);
    let knowledge = events::knowledge();
    let _learner = start_learner(&knowledge);
    let mut events = events::Fixture::of(&knowledge, pool.backends()[0].clone());
    events.store(2);
    let shown = document(&map);
    assert_eq!(shown.backends[0].source, "exact");
    let [unknown] = &shown.groups[..] else { panic!("{shown:?}") };
    assert_eq!((unknown.tenant.as_deref(), unknown.requests), (None, 0));
    // The first 7 of the 24 engine blocks end inside the text that the prompts of a group share. So they
    // belong to no group.
    assert_eq!(unknown.by_backend[0].blocks, 17);
    assert_eq!((shown.backends[0].tokens, shown.backends[0].other_tokens), (17 * 16, 7 * 16));
    events.answer(1, &Arc::new(prompt(1, 20))).await;
    let shown = document(&map);
    assert_eq!(shown.groups.len(), 2);
    let known = shown.groups.iter().find(|group| group.tenant.as_deref() == Some("red")).unwrap();
    assert_eq!((known.requests, known.by_backend[0].blocks), (1, 17));
    events.on_state(StreamState::Gap);
    let shown = document(&map);
    assert_eq!(
        (&*shown.backends[0].source, shown.groups[0].by_backend[0].blocks),
        ("approximate", 20)
    );
}

#[tokio::test(start_paused = true)]
async fn the_kv_events_of_one_backend_identify_the_same_prompt_group_at_another_backend() {
    let (pool, map) = map(&["a", "b"]);
    let knowledge = events::knowledge();
    let _learner = start_learner(&knowledge);
    let backends = pool.backends();
    let [mut first, mut second] =
        [0, 1].map(|index: usize| events::Fixture::of(&knowledge, backends[index].clone()));
    first.answer(1, &Arc::new(prompt(1, 20))).await;
    second.store(1);
    let shown = document(&map);
    let [group] = &shown.groups[..] else { panic!("{shown:?}") };
    assert_eq!((group.backends, group.tokens), (2, 2 * 17 * 16));
}
