//! Finds out how much of the prompt of one request each backend has in its prefix cache.

use super::backend_cache::{BackendCache, KvEventsFacet, RankCache};
use super::key_space::KeySpace;
use crate::backend::facets::TargetPart;
use std::slice;
use std::sync::Arc;
use tokenweir_kv_events::correlation::{CachedPrompt, PromptLookup, PromptText};
use tokenweir_kv_events::residency::StreamState;
use tokenweir_routing::{KnownPrefix, PromptFingerprint};

/// Looks the prompt of one request up in the caches of backends. If a background task has locked an
/// index or the contents of a cache for a change, nothing counts as known about that cache: the request
/// does not wait for the lock.
pub(crate) struct CacheLookup<'a> {
    text: PromptText<'a>,
    /// The lookups of the prompt text: one for each key space that was searched so far.
    lookups: Vec<(Arc<KeySpace>, PromptLookup)>,
}

impl<'a> CacheLookup<'a> {
    pub(crate) fn new(prompt: &'a PromptFingerprint) -> Self {
        let text = PromptText { blocks: &prompt.blocks, whole: prompt.whole };
        Self { text, lookups: Vec::new() }
    }

    /// Returns how much of the prompt is in the prefix cache of a backend. `part`: the rank whose
    /// cache counts; without it, the caches of all ranks count. Returns `None` if nothing is known
    /// from KV events about this prompt at this backend.
    pub(crate) fn known_prefix(
        &mut self,
        facet: &KvEventsFacet,
        part: Option<TargetPart>,
    ) -> Option<KnownPrefix> {
        let cache = facet.cache()?;
        let all = cache.ranks.load();
        // Publishers are in the order of the ranks. If there are fewer publishers than ranks, it is
        // not known which rank has no publisher, and all caches count.
        let part = part.filter(|part| part.count == all.len());
        let ranks = match part.and_then(|part| all.get(part.index)) {
            Some(rank) => slice::from_ref(rank),
            None => &all[..],
        };
        let state = BackendCache::least_state(ranks);
        if !matches!(state, StreamState::FromHere | StreamState::Exact) {
            return None;
        }
        let mut tokens = 0;
        let mut blocks = usize::MAX;
        let mut is_decided = state == StreamState::Exact;
        for rank in ranks {
            let cached = self.cached(cache, rank)?;
            tokens += cached.tokens;
            blocks = blocks.min(cached.text_blocks);
            is_decided &= cached.is_decided;
        }
        Some(KnownPrefix {
            // The mean of the ranks, because the engine decides which rank gets the request.
            tokens: tokens as f64 / ranks.len().max(1) as f64,
            blocks: u32::try_from(blocks).unwrap_or(0),
            is_decided: is_decided && ranks.len() == 1,
        })
    }

    fn cached(&mut self, cache: &BackendCache, rank: &RankCache) -> Option<CachedPrompt> {
        let space = cache.space.load();
        let index = space.try_read()?;
        let is_same = |(known, _): &(Arc<KeySpace>, PromptLookup)| Arc::ptr_eq(known, &space);
        let known = self.lookups.iter().position(is_same);
        let position = known.unwrap_or(self.lookups.len());
        if known.is_none() {
            self.lookups.push((Arc::clone(&space), PromptLookup::new(self.text, &index)));
        }
        let (_, lookup) = &mut self.lookups[position];
        if !lookup.is_known() {
            return None;
        }
        Some(lookup.cached(self.text, &index, &*rank.contents.try_read()?))
    }
}
