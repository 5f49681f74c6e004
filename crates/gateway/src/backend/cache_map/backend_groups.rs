//! The groups of prompts with the same beginning in the cache of one backend, from the KV events of the
//! backend or from a model of its cache.

use super::backend_use::BackendUse;
use super::group_key::GroupKey;
use crate::backend::Backend;
use std::collections::HashMap;
use tokenweir_kv_events::groups::{EvictionCounts, GroupNumber, PrefixGroups};
use tokenweir_kv_events::residency::StreamState;
use tokenweir_routing::CachedSource;

/// The groups of prompts (with the same beginning) in the prefix cache of one backend.
#[derive(Debug, Default)]
pub(super) struct BackendGroups {
    pub(super) source: CachedSource,
    /// Number of tokens in a KV cache block. 0: not known.
    pub(super) block_tokens: f64,
    /// Number of blocks in the prefix cache, by group of prompts.
    pub(super) blocks: HashMap<GroupKey, u64>,
    /// Evictions by pair of prompt groups: the group that lost blocks, and the group that took
    /// their space.
    pub(super) evictions: HashMap<(GroupKey, GroupKey), EvictionCounts>,
    /// Maps the hash of the engine block that identifies a group to the hash of the first text
    /// block of the group.
    texts: HashMap<u64, u64>,
}

impl BackendGroups {
    /// Reads the groups of prompts in the cache of a backend. `modelled`: the gateway's model of
    /// this cache, for a backend without exact KV events.
    pub(super) fn read(backend: &Backend, modelled: Option<&BackendUse>) -> Self {
        let mut groups = Self::default();
        let parts = &backend.facets;
        let events = parts.kv_events.cache();
        if let Some(cache) = events.filter(|cache| cache.state() == StreamState::Exact) {
            groups.source = CachedSource::Exact;
            groups.block_tokens = f64::from(cache.block_size());
            cache.visit_groups(|rank| groups.add(rank));
        } else if let Some(modelled) = modelled {
            groups.block_tokens = backend.load.estimator.learned().tokens_per_byte() * 512.0;
            groups.add(modelled.cache.groups());
        }
        groups
    }

    /// Returns the number of tokens in this number of KV cache blocks.
    pub(super) fn tokens(&self, blocks: u64) -> u64 {
        (blocks as f64 * self.block_tokens) as u64
    }

    /// The hash of the first text block of each group, by the engine block that identifies the
    /// group. The KV events of this backend show both.
    pub(super) fn texts(&self) -> &HashMap<u64, u64> {
        &self.texts
    }

    /// Identifies groups by their first text block instead of an engine block. `texts`: the hashes
    /// of text blocks by engine block, as the KV events of all backends show them.
    pub(super) fn set_texts(&mut self, texts: &HashMap<u64, u64>) {
        let renamed = |key: GroupKey| match key {
            GroupKey::Block(block) => texts.get(&block).copied().map_or(key, GroupKey::Text),
            key => key,
        };
        for (key, blocks) in std::mem::take(&mut self.blocks) {
            *self.blocks.entry(renamed(key)).or_default() += blocks;
        }
        for ((loser, evictor), counts) in std::mem::take(&mut self.evictions) {
            self.add_evictions(renamed(loser), renamed(evictor), counts);
        }
    }

    fn add(&mut self, groups: &PrefixGroups) {
        let mut keys = [GroupKey::Other; GroupNumber::COUNT];
        for (number, group) in groups.counts().filter(|(it, _)| *it != GroupNumber::OTHER) {
            keys[usize::from(number.0)] = match group.text {
                Some(text) => {
                    self.texts.insert(group.key, text);
                    GroupKey::Text(text)
                }
                None => GroupKey::Block(group.key),
            };
        }
        let key = |number: GroupNumber| keys[usize::from(number.0)];
        for (number, group) in groups.counts() {
            *self.blocks.entry(key(number)).or_default() += u64::from(group.blocks);
        }
        for (loser, evictor, counts) in groups.evictions() {
            self.add_evictions(key(loser), key(evictor), counts);
        }
    }

    fn add_evictions(&mut self, loser: GroupKey, evictor: GroupKey, counts: EvictionCounts) {
        let sum = self.evictions.entry((loser, evictor)).or_default();
        sum.evicted += counts.evicted;
        sum.recomputed += counts.recomputed;
    }
}
