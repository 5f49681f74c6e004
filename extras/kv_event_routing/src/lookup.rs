//! Finds out how much of the prompt of one request each backend has in its prefix cache.

use crate::backend_cache::{BackendCache, PartCache};
use crate::followed_request::FollowedRequest;
use crate::learning::KeySpace;
use std::slice;
use std::sync::Arc;
use tokenweir_gateway::backend::facets::{FollowedPrompt, PromptCache, PromptMemo, TargetPart};
use tokenweir_kv_events::correlation::{CachedPrompt, PromptLookup, PromptText};
use tokenweir_kv_events::residency::StreamState;
use tokenweir_routing::{KnownPrefix, PromptFingerprint};

/// The lookups of the prompt text of one request: one for each key space that was searched so far.
type Lookups = Vec<(Arc<KeySpace>, PromptLookup)>;

impl PromptCache for BackendCache {
    /// The known cached prefix of the prompt. Without a `part`, the caches of all parts count. If a background
    /// task has locked an index or a cache, the request does not wait, and the cache counts as unknown.
    fn known_prefix(
        &self,
        prompt: &PromptFingerprint,
        part: Option<TargetPart>,
        memo: &mut PromptMemo,
    ) -> Option<KnownPrefix> {
        let memo = memo.get_or_insert_with(|| Box::<Lookups>::default());
        let lookups: &mut Lookups = memo.downcast_mut()?;
        let text = PromptText {
            blocks: &prompt.blocks,
            whole: prompt.whole,
        };
        let all = self.parts.load();
        // Publishers are in the order of the parts. If there are fewer publishers than parts, it is
        // not known which part has no publisher, and all caches count.
        let part = part.filter(|part| part.count == all.len());
        let parts = match part.and_then(|part| all.get(part.index)) {
            Some(part) => slice::from_ref(part),
            None => &all[..],
        };
        let state = Self::least_state(parts);
        if !matches!(state, StreamState::FromHere | StreamState::Exact) {
            return None;
        }
        let mut tokens = 0;
        let mut blocks = usize::MAX;
        let mut is_decided = state == StreamState::Exact;
        for part in parts {
            let cached = self.cached(part, text, lookups)?;
            tokens += cached.tokens;
            blocks = blocks.min(cached.text_blocks);
            is_decided &= cached.is_decided;
        }
        Some(KnownPrefix {
            // The mean of the parts, because the engine decides which part gets the request.
            tokens: tokens as f64 / parts.len().max(1) as f64,
            blocks: u32::try_from(blocks).unwrap_or(0),
            is_decided: is_decided && parts.len() == 1,
        })
    }

    fn follow(self: Arc<Self>, prompt: &Arc<PromptFingerprint>) -> Option<Box<dyn FollowedPrompt>> {
        if self.is_withdrawn.get() {
            return None;
        }
        Some(Box::new(FollowedRequest::begin(&self, prompt)?))
    }
}

impl BackendCache {
    fn cached(
        &self,
        part: &PartCache,
        text: PromptText<'_>,
        lookups: &mut Lookups,
    ) -> Option<CachedPrompt> {
        let space = self.space.load();
        let index = space.try_read()?;
        let is_same = |(known, _): &(Arc<KeySpace>, PromptLookup)| Arc::ptr_eq(known, &space);
        let known = lookups.iter().position(is_same);
        let position = known.unwrap_or(lookups.len());
        if known.is_none() {
            lookups.push((Arc::clone(&space), PromptLookup::new(text, &index)));
        }
        let (_, lookup) = &mut lookups[position];
        if !lookup.is_known() {
            return None;
        }
        Some(lookup.cached(text, &index, &*part.contents.try_read()?))
    }
}
