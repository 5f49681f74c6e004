//! Builds the document that the admin listener serves at `/cache`.

use super::backend_groups::BackendGroups;
use super::backend_use::GroupRequests;
use super::group_key::GroupKey;
use super::map_state::MapState;
use std::collections::HashMap;
use std::time::Instant;
use tokenweir_api::{CacheMapDocument, CacheSummary, GroupAtBackend, GroupEvictor, PrefixGroup};
use tokenweir_engine::address::BackendId;
use tokenweir_kv_events::groups::EvictionCounts;

/// Maximum number of groups of prompts that the document of `/cache` lists.
const MAX_LISTED_GROUPS: usize = 50;
/// Maximum number of backends that the document of `/cache` lists for a group of prompts.
const MAX_LISTED_BACKENDS: usize = 16;

/// Builds the document of `/cache`. `id`: returns the id of a group of prompts, or `None` for the
/// blocks that belong to no group.
pub(super) fn build(
    state: &MapState,
    backends: &[(BackendId, BackendGroups)],
    now: Instant,
    id: impl Fn(GroupKey) -> Option<String>,
) -> CacheMapDocument {
    let mut rows: Vec<(GroupKey, PrefixGroup)> =
        sum_rows(state, backends, &id).into_iter().collect();
    // Rows with equally many tokens are sorted by key, so that the order is the same each time.
    rows.sort_by_key(|(key, row)| (std::cmp::Reverse(row.tokens), *key));
    let omitted_groups = rows.len().saturating_sub(MAX_LISTED_GROUPS);
    rows.truncate(MAX_LISTED_GROUPS);
    for (key, row) in &mut rows {
        row.id = id(*key).unwrap_or_default();
        row.by_backend.sort_by_key(|here| std::cmp::Reverse(here.tokens));
        row.by_backend.truncate(MAX_LISTED_BACKENDS);
        let GroupKey::Text(text) = key else { continue };
        let Some(used) = state.texts.peek(text) else { continue };
        let age = |since: Instant| now.saturating_duration_since(since).as_secs_f64();
        row.tenant = used.first_caller.as_ref().map(|it| it.tenant_label().to_owned());
        row.age_seconds = Some(age(used.first_used));
        row.idle_seconds = Some(age(used.last_used));
    }
    CacheMapDocument {
        bytes: state.bytes(),
        backends: backends.iter().map(|(backend, groups)| summary(backend, groups)).collect(),
        groups: rows.into_iter().map(|(_, row)| row).collect(),
        omitted_groups,
    }
}

/// Sums the tokens and the requests of each group of prompts over all backends.
fn sum_rows(
    state: &MapState,
    backends: &[(BackendId, BackendGroups)],
    id: &impl Fn(GroupKey) -> Option<String>,
) -> HashMap<GroupKey, PrefixGroup> {
    let mut rows: HashMap<GroupKey, PrefixGroup> = HashMap::new();
    for (backend, groups) in backends {
        let mut rows_here = rows_of_backend(backend, groups, id);
        rows_here.remove(&GroupKey::Other);
        for (key, here) in rows_here {
            let row = rows.entry(key).or_default();
            row.tokens += here.tokens;
            row.backends += usize::from(here.blocks > 0);
            row.by_backend.push(here);
        }
        let used = state.backends.get(backend);
        let requests = used.map(super::backend_use::BackendUse::requests).unwrap_or_default();
        for (key, GroupRequests { requests, reused, .. }) in requests {
            if let Some(row) = rows.get_mut(&key) {
                row.requests += requests;
                row.reused_requests += reused;
            }
        }
    }
    rows
}

/// Returns the groups of prompts that have blocks in the cache of one backend, or that lost blocks.
fn rows_of_backend(
    backend: &BackendId,
    groups: &BackendGroups,
    id: &impl Fn(GroupKey) -> Option<String>,
) -> HashMap<GroupKey, GroupAtBackend> {
    let mut rows: HashMap<GroupKey, GroupAtBackend> = HashMap::new();
    for (key, blocks) in groups.blocks.iter().filter(|(_, blocks)| **blocks > 0) {
        let row = rows.entry(*key).or_default();
        (row.blocks, row.tokens) = (*blocks, groups.tokens(*blocks));
    }
    // For each group, the group that evicted most of its blocks. If two groups evicted equally many
    // blocks, the one with the greater key.
    let mut evictors: HashMap<GroupKey, (u64, GroupKey)> = HashMap::new();
    for ((loser, evictor), EvictionCounts { evicted, recomputed }) in &groups.evictions {
        let row = rows.entry(*loser).or_default();
        row.evicted_tokens += groups.tokens(*evicted);
        row.recomputed_tokens += groups.tokens(*recomputed);
        if loser != evictor {
            let most = evictors.entry(*loser).or_insert((0, GroupKey::Other));
            *most = (*most).max((*evicted, *evictor));
        }
    }
    for (key, row) in &mut rows {
        row.backend = backend.to_string();
        let most = evictors.get(key).filter(|(evicted, _)| *evicted > 0);
        row.evicted_by = most.map(|(evicted, evictor)| GroupEvictor {
            id: id(*evictor),
            tokens: groups.tokens(*evicted),
        });
    }
    rows
}

fn summary(backend: &BackendId, groups: &BackendGroups) -> CacheSummary {
    let counts = groups.evictions.values();
    let (mut evicted, mut recomputed) = (0, 0);
    counts
        .for_each(|it| (evicted, recomputed) = (evicted + it.evicted, recomputed + it.recomputed));
    let resident = groups.blocks.iter().filter(|(_, blocks)| **blocks > 0);
    let is_other = |key: &GroupKey| *key == GroupKey::Other;
    let (other, named): (Vec<_>, Vec<_>) = resident.partition(|(key, _)| is_other(key));
    let blocks = |groups: &[(&GroupKey, &u64)]| groups.iter().map(|(_, blocks)| **blocks).sum();
    CacheSummary {
        backend: backend.to_string(),
        source: groups.source.as_str().to_owned(),
        tokens: groups.tokens(blocks(&named)),
        other_tokens: groups.tokens(blocks(&other)),
        groups: named.len(),
        evicted_tokens: groups.tokens(evicted),
        recomputed_tokens: groups.tokens(recomputed),
    }
}
