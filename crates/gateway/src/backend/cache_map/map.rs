//! The cache map: a sink that collects the prompts of ended requests.

use super::backend_groups::BackendGroups;
use super::backend_use::BackendUse;
use super::document;
use super::evicting_pairs;
use super::group_key::GroupKey;
use super::map_state::MapState;
use super::prompt_use::PromptUse;
use crate::backend::pool::BackendPool;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tokenweir_api::CacheMapDocument;
use tokenweir_diagnose::EvictingPair;
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::RequestRecord;

/// The sink that collects which groups of prompts fill which cache.
///
/// The map uses at most 0.5 MiB for the groups of all backends. The model of each cache uses 0.2 MiB and
/// 80 bytes for each cached block of 512 bytes, at most 1.5 MiB. The batch dispatcher, the diagnosis and
/// requests to `/cache` take the lock of the map.
#[derive(Debug)]
pub struct CacheMap {
    pool: Arc<BackendPool>,
    /// Computes the ids of prompt groups from the hashes of their texts. Several gateways can share
    /// the secret key of these hashes, so the hashes themselves do not leave the process.
    ids: RandomState,
    state: Mutex<MapState>,
}

// === impl CacheMap ===

impl CacheMap {
    /// Creates an empty cache map for the backends of a pool.
    pub fn new(pool: Arc<BackendPool>) -> Self {
        Self { pool, ids: RandomState::new(), state: Mutex::new(MapState::new()) }
    }

    /// The document that the admin listener serves at `/cache`.
    pub fn document(&self, now: Instant) -> CacheMapDocument {
        let (state, groups) = self.read();
        document::build(&state, &groups, now, |key| self.id(key))
    }

    /// The pairs of prompt groups that evict blocks of each other, with counts since the start of
    /// the map.
    pub fn evicting_pairs(&self) -> Vec<EvictingPair> {
        let (state, groups) = self.read();
        evicting_pairs::find(&state, &groups, |key| self.id(key))
    }

    /// The id of a group of prompts. `None`: the key is that of the blocks that belong to no group.
    fn id(&self, key: GroupKey) -> Option<String> {
        (key != GroupKey::Other).then(|| format!("{:016x}", self.ids.hash_one(key)))
    }

    /// Locks the map, and reads the groups of prompts in the caches of all backends of the pool.
    fn read(&self) -> (MutexGuard<'_, MapState>, Vec<(BackendId, BackendGroups)>) {
        let backends = self.pool.backends();
        let mut state = lock(&self.state);
        let is_listed =
            |used: &BackendUse| backends.iter().any(|it| Arc::ptr_eq(it, &used.backend));
        state.backends.retain(|_, used| is_listed(used));
        let read = |id: &BackendId, backend| BackendGroups::read(backend, state.backends.get(id));
        let groups = backends.iter().map(|backend| {
            let id = &backend.identity.id;
            (id.clone(), read(id, backend))
        });
        let mut groups: Vec<(BackendId, BackendGroups)> = groups.collect();
        let texts = groups.iter().flat_map(|(_, groups)| groups.texts());
        let texts: HashMap<u64, u64> = texts.map(|(block, text)| (*block, *text)).collect();
        for (_, groups) in &mut groups {
            groups.set_texts(&texts);
        }
        (state, groups)
    }
}

impl Sink for CacheMap {
    fn finished(&self, records: &[&RequestRecord]) {
        let mut state = lock(&self.state);
        for used in records.iter().filter_map(|record| PromptUse::from_record(record)) {
            state.add(&used, &self.pool);
        }
    }
}
