//! The pairs of groups of prompts that evict blocks of each other from a prefix cache, for the
//! diagnosis.

use super::backend_groups::BackendGroups;
use super::group_key::GroupKey;
use super::map_state::MapState;
use tokenweir_diagnose::{EvictedGroup, EvictingPair, GroupCounts};
use tokenweir_engine::address::BackendId;
use tokenweir_kv_events::groups::EvictionCounts;
use tokenweir_routing::CachedSource;

/// Maximum number of evicting pairs of prompt groups that are reported for one backend. The pairs
/// with the most blocks that were computed again are kept.
const MAX_PAIRS: usize = 16;

/// Finds the pairs of prompt groups that evict each other: each group evicted blocks of the other
/// group, and the engine computed blocks of both again. Includes only groups of which this gateway
/// sent prompts. `id`: returns the id of a group.
pub(super) fn find(
    state: &MapState,
    backends: &[(BackendId, BackendGroups)],
    id: impl Fn(GroupKey) -> Option<String>,
) -> Vec<EvictingPair> {
    let mut found = Vec::new();
    for (backend, groups) in backends {
        let Some(used) = state.backends.get(backend) else { continue };
        let pairs = mutual_evictions(groups);
        if pairs.is_empty() {
            continue;
        }
        let requests = used.requests();
        let group = |(key, evicted): (GroupKey, EvictionCounts)| {
            let (GroupKey::Text(text), Some(requests)) = (key, requests.get(&key)) else {
                return None;
            };
            let caller = state.texts.peek(&text).and_then(|it| it.first_caller.as_ref());
            Some(EvictedGroup {
                id: id(key)?,
                tenant: caller.map(|it| it.tenant_label().to_owned()),
                counts: GroupCounts {
                    requests: requests.requests,
                    prompt_tokens: requests.prompt_tokens,
                    cached_tokens: requests.cached_tokens,
                    recomputed_blocks: evicted.recomputed,
                },
            })
        };
        let pair = |(first, second)| {
            Some(EvictingPair {
                backend: backend.clone(),
                is_exact: groups.source == CachedSource::Exact,
                block_tokens: groups.block_tokens,
                groups: [group(first)?, group(second)?],
            })
        };
        found.extend(pairs.into_iter().filter_map(pair));
    }
    found
}

/// The pairs of prompt groups that evicted blocks of each other, with the counts of the blocks that
/// each group lost. At most [`MAX_PAIRS`] pairs. The pairs with the most blocks that were computed
/// again come first.
fn mutual_evictions(
    groups: &BackendGroups,
) -> Vec<((GroupKey, EvictionCounts), (GroupKey, EvictionCounts))> {
    let is_text = |key: &GroupKey| matches!(key, GroupKey::Text(_));
    let mutual = groups.evictions.iter().filter_map(|((first, second), there)| {
        let is_pair = first < second && is_text(first) && is_text(second);
        let back = groups.evictions.get(&(*second, *first)).copied().filter(|_| is_pair)?;
        let fewest = there.recomputed.min(back.recomputed);
        (fewest > 0).then_some((fewest, (*first, *there), (*second, back)))
    });
    let mut pairs: Vec<_> = mutual.collect();
    pairs.sort_by_key(|(fewest, first, second)| (std::cmp::Reverse(*fewest), first.0, second.0));
    pairs.into_iter().take(MAX_PAIRS).map(|(_, first, second)| (first, second)).collect()
}
