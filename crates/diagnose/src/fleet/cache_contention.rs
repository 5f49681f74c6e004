//! The rule about groups of prompts that evict each other from the prefix cache of a backend.
//!
//! Evictions alone are no fault: a cache also evicts prefixes that no later request has. The rule counts
//! the blocks of each group that the other group evicted and that were then computed again.

use super::observation::{EvictedGroup, EvictingPair, GroupCounts};
use crate::verdict::{Evidence, Verdict, VerdictDescription, VerdictScope, VerdictSeverity};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;

/// Length of the window whose requests are counted.
const WINDOW: Duration = Duration::from_mins(5);
/// Time between two stored observations. The growth of the counts in the window is computed from them.
const MARK_INTERVAL: Duration = Duration::from_secs(15);
/// Time for which two groups of prompts must have been observed before a verdict says that they evict
/// each other.
const MIN_OBSERVED: Duration = Duration::from_mins(1);
/// Minimum number of requests of each group in the window.
const MIN_REQUESTS: u64 = 5;
/// Minimum number of tokens of each group that were computed again in the window.
const MIN_RECOMPUTED_TOKENS: u64 = 4_096;
/// Minimum share of the reusable prompt tokens of each group that were computed again because of the other
/// group. Reusable are the tokens that came from the cache, and those that had been evicted too early.
const MIN_LOST_SHARE: f64 = 0.2;

pub(super) static PREFIX_CACHE_CONTENTION: VerdictDescription = VerdictDescription {
    name: "prefix_cache_contention",
    scope: VerdictScope::Backend,
    is_about_state: false,
    severity: "warning",
    meaning: "Two groups of prompts evict each other's prefixes from the cache of the backend, and \
              the backend computes both again.",
    evidence: "In one to five minutes each group had five requests or more. For each group the \
               backend computed again 4,096 tokens or more that the other group had evicted, and \
               at least 20 % of the tokens that could have come from the cache.",
    excluded: "only one of the groups is computed again",
    remedy: "Send the groups to different backends (an entry in models for each) or to fewer \
             backends (routing.policy: prefix_affinity), or enlarge the KV cache.",
    disproof: "GET /cache shows that recomputed_tokens of both groups at the backend do not grow.",
    pages: false,
};

/// The stored observations of the window, from which the growth of the counts follows.
#[derive(Debug, Default)]
pub(super) struct CacheContention {
    /// The stored observations in the window, oldest first: their times, and the counts of
    /// both groups of each pair.
    marks: VecDeque<(Instant, HashMap<PairKey, [GroupCounts; 2]>)>,
}

/// The key of a pair of groups: the backend, whether the counts are exact, and the ids of both
/// groups.
type PairKey = (BackendId, bool, [String; 2]);

/// How much the counts of a group grew in the window.
#[derive(Debug, Clone, Copy)]
struct Growth {
    requests: u64,
    cached: u64,
    /// Tokens that were computed again.
    recomputed: u64,
}

impl CacheContention {
    /// Returns a verdict for each backend with a pair of groups that matches [`PREFIX_CACHE_CONTENTION`] at
    /// `now`. The verdict is about the worst pair.
    pub(super) fn judge(&mut self, pairs: &[EvictingPair], now: Instant) -> Vec<Verdict> {
        let age = |at: Instant| now.saturating_duration_since(at);
        while self.marks.get(1).is_some_and(|(at, _)| age(*at) >= WINDOW) {
            self.marks.pop_front();
        }
        let mut worst: HashMap<&BackendId, (u64, Verdict)> = HashMap::new();
        for pair in pairs {
            let Some((at, before)) = self.oldest(&key(pair)) else { continue };
            if age(at) < MIN_OBSERVED {
                continue;
            }
            let growth =
                [0, 1].map(|side| pair.groups[side].counts.since(before[side], pair.block_tokens));
            let recomputed = growth[0].recomputed.min(growth[1].recomputed);
            let known = worst.get(&pair.backend).map_or(0, |(most, _)| *most);
            if growth.iter().all(Growth::is_harmed) && recomputed > known {
                let found = found(pair, growth, age(at).as_secs_f64());
                worst.insert(&pair.backend, (recomputed, found));
            }
        }
        if self.marks.back().is_none_or(|(at, _)| age(*at) >= MARK_INTERVAL) {
            let counts =
                |pair: &EvictingPair| (key(pair), pair.groups.each_ref().map(|group| group.counts));
            self.marks.push_back((now, pairs.iter().map(counts).collect()));
        }
        let mut matches: Vec<Verdict> = worst.into_values().map(|(_, found)| found).collect();
        matches.sort_by(|a, b| a.backend.cmp(&b.backend));
        matches
    }

    /// The oldest stored counts of a pair in the window, with their time. `None`: none is stored.
    fn oldest(&self, key: &PairKey) -> Option<(Instant, [GroupCounts; 2])> {
        self.marks.iter().find_map(|(at, pairs)| pairs.get(key).map(|counts| (*at, *counts)))
    }
}

impl GroupCounts {
    /// The growth of the counts since `before`. A count that is lower than before was reset meanwhile, so
    /// its whole value is growth.
    fn since(self, before: Self, block_tokens: f64) -> Growth {
        let growth = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        let cached = growth(self.cached_tokens, before.cached_tokens);
        let blocks = growth(self.recomputed_blocks, before.recomputed_blocks);
        // A model of a cache can count too many tokens as computed again. So the number is limited
        // to the prompt tokens that did not come from the cache.
        let computed = growth(self.prompt_tokens, before.prompt_tokens).saturating_sub(cached);
        Growth {
            requests: growth(self.requests, before.requests),
            cached,
            recomputed: ((blocks as f64 * block_tokens) as u64).min(computed),
        }
    }
}

impl Growth {
    fn is_harmed(&self) -> bool {
        self.requests >= MIN_REQUESTS
            && self.recomputed >= MIN_RECOMPUTED_TOKENS
            && self.lost_share() >= MIN_LOST_SHARE
    }

    /// Share of the reusable prompt tokens that were computed again.
    fn lost_share(&self) -> f64 {
        self.recomputed as f64 / (self.recomputed + self.cached).max(1) as f64
    }
}

fn key(pair: &EvictingPair) -> PairKey {
    (pair.backend.clone(), pair.is_exact, pair.groups.each_ref().map(|group| group.id.clone()))
}

fn found(pair: &EvictingPair, growth: [Growth; 2], window_seconds: f64) -> Verdict {
    let name = |group: &EvictedGroup| match &group.tenant {
        Some(tenant) => format!("{} (tenant {tenant})", group.id),
        None => group.id.clone(),
    };
    let [first, second] = pair.groups.each_ref().map(name);
    let evidence = |measure, value, unit| Evidence::new(measure, value, unit, window_seconds);
    let [a, b] = growth;
    let cause = format!("the groups {first} and {second}");
    Verdict {
        backend: pair.backend.to_string(),
        evidence: vec![
            evidence("first_group_recomputed", a.recomputed as f64, "tokens"),
            evidence("second_group_recomputed", b.recomputed as f64, "tokens"),
            evidence("first_group_lost_share", a.lost_share(), "ratio"),
            evidence("second_group_lost_share", b.lost_share(), "ratio"),
            evidence("first_group_requests", a.requests as f64, "requests"),
            evidence("second_group_requests", b.requests as f64, "requests"),
        ],
        ..PREFIX_CACHE_CONTENTION.verdict(VerdictSeverity::Warning, Some(cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;
    use tokenweir_protocol::clock;

    /// Growth of the counts of a group from one evaluation to the next: requests, prompt tokens, cached
    /// tokens and tokens that were computed again.
    type Gain = [u64; 4];

    const HARMED: Gain = [1, 2_000, 500, 1_000];

    fn group(id: &str, [requests, prompt, cached, recomputed]: Gain, times: u64) -> EvictedGroup {
        EvictedGroup {
            id: id.to_owned(),
            tenant: (id == "aa").then(|| "red".to_owned()),
            counts: GroupCounts {
                requests: requests * times,
                prompt_tokens: prompt * times,
                cached_tokens: cached * times,
                // A block has 10 tokens.
                recomputed_blocks: recomputed / 10 * times,
            },
        }
    }

    fn pair(ids: [&str; 2], gains: [Gain; 2], times: u64) -> EvictingPair {
        let groups = [group(ids[0], gains[0], times), group(ids[1], gains[1], times)];
        let backend = BackendId::new("gpu-0");
        EvictingPair { backend, is_exact: false, block_tokens: 10.0, groups }
    }

    /// Returns the causes of the verdicts of the last of `evaluations` evaluations, 5 s apart. From one
    /// evaluation to the next, the counts of the two groups grow by `gains`.
    fn causes(gains: [Gain; 2], evaluations: u64) -> Vec<String> {
        let (mut rule, start) = (CacheContention::default(), clock::epoch());
        let mut last = Vec::new();
        for evaluation in 0..evaluations {
            let pairs = [pair(["aa", "bb"], gains, evaluation)];
            last = rule.judge(&pairs, start + Duration::from_secs(5 * evaluation));
        }
        last.into_iter().filter_map(|found| found.cause).map(Cow::into_owned).collect()
    }

    /// Evaluates the rule every 5 s for ten minutes. Returns the seconds at which there is a verdict.
    /// `pairs(second)`: the pairs of groups at this second.
    fn named(pairs: impl Fn(u64) -> Vec<EvictingPair>) -> Vec<u64> {
        let mut rule = CacheContention::default();
        let mut is_named = |second: &u64| {
            let now = clock::epoch() + Duration::from_secs(*second);
            !rule.judge(&pairs(*second), now).is_empty()
        };
        (0..600).step_by(5).filter(|second| is_named(second)).collect()
    }

    #[test]
    fn two_groups_of_prompts_that_both_recompute_evicted_prefixes_get_a_verdict() {
        let expected = ["the groups aa (tenant red) and bb"];
        assert_eq!(causes([HARMED; 2], 100), expected);
    }

    #[test]
    fn the_verdict_on_cache_contention_needs_both_prompt_groups_to_recompute_a_fifth_of_tokens() {
        let unharmed = [1, 2_000, 500, 0];
        for (gains, is_named, case) in [
            ([unharmed; 2], false, "evictions without a second computation"),
            ([unharmed, HARMED], false, "one direction only"),
            ([[0, 2_000, 500, 1_000], HARMED], false, "few requests"),
            ([[1, 200, 10, 50], HARMED], false, "few tokens"),
            ([[1, 6_000, 4_004, 1_000], HARMED], false, "a small share"),
            ([[1, 6_000, 4_000, 1_000], HARMED], true, "exactly a fifth"),
            ([[1, 2_000, 1_900, 1_900], HARMED], false, "the engine took them from its cache"),
        ] {
            assert_eq!(!causes(gains, 100).is_empty(), is_named, "{case}");
        }
    }

    #[test]
    fn the_verdict_on_cache_contention_ends_five_minutes_after_the_last_recomputed_tokens() {
        let named = named(|second| vec![pair(["aa", "bb"], [HARMED; 2], second.min(100))]);
        assert_eq!(named.first(), Some(&60));
        assert!((380..=420).contains(named.last().unwrap()), "{named:?}");
    }

    #[test]
    fn a_backend_gets_one_cache_contention_verdict_about_its_worst_pair_of_prompt_groups() {
        let (mut rule, start) = (CacheContention::default(), clock::epoch());
        let mut judge = |seconds: u64| {
            let gain = |recomputed| [[1, 2_000, 0, recomputed]; 2];
            let pairs = [
                pair(["a1", "a2"], gain(100), seconds),
                pair(["b1", "b2"], gain(300), seconds),
                pair(["c1", "c2"], gain(200), seconds),
            ];
            rule.judge(&pairs, start + Duration::from_secs(seconds))
        };
        assert!(judge(0).is_empty());
        let named: Vec<_> = judge(100).into_iter().filter_map(|found| found.cause).collect();
        assert_eq!(named, ["the groups b1 and b2"]);
    }

    #[test]
    fn eviction_counts_from_kv_events_are_not_compared_with_estimated_counts() {
        let named = named(|second| {
            let is_exact = second >= 200;
            let times = if is_exact { 1_000_000 } else { 0 };
            vec![EvictingPair { is_exact, ..pair(["aa", "bb"], [HARMED; 2], times) }]
        });
        assert_eq!(named, [0_u64; 0]);
    }

    #[test]
    fn eviction_counts_from_before_a_pair_of_prompt_groups_was_listed_give_no_verdict() {
        // The eviction counts of the groups are large from the start, but the pair is listed only
        // after 200 s.
        let named = named(|second| {
            let pairs = vec![pair(["aa", "bb"], [HARMED; 2], 1_000)];
            if second < 200 { Vec::new() } else { pairs }
        });
        assert_eq!(named, [0_u64; 0]);
    }
}
