//! `DualMap` (arXiv 2602.06502): two hash functions assign two backends to each prefix (its homes). The home
//! with more of the prompt in its cache gets the request if it meets the objective. Otherwise the home with
//! the lower predicted TTFT gets the request.
//!
//! The prefix ends at the first rare block: one that less than a share of ½ ÷ (number of backends) of the
//! last requests had. So requests that all begin with the same prompt do not all get the same homes. The
//! migration of waiting requests, and the hash ring for a fleet that grows, are left out.

use crate::cache_view::BlockCounts;
use crate::routers::RoutingInput;
use std::collections::VecDeque;
use tokenweir_routing::kv_aware::{self, KvAwareSettings};
use tokenweir_routing::{Candidate, mix};

/// The router of `DualMap`, which assigns two backends to each prefix.
#[derive(Debug)]
pub struct DualMapRouter {
    /// Objective of the TTFT in seconds.
    objective: f64,
    /// The leading blocks of each of the last requests.
    recent: VecDeque<Box<[u64]>>,
    /// For each block, the number of requests in `recent` that have it.
    counts: BlockCounts,
}

/// Number of recent requests in which the occurrences of a block are counted.
const RECENT_REQUESTS: usize = 1_000;
/// Maximum number of leading blocks of a prompt that are counted.
const COUNTED_BLOCKS: usize = 16;

impl DualMapRouter {
    pub(in crate::routers) fn new(objective: f64) -> Self {
        Self {
            objective,
            recent: VecDeque::new(),
            counts: BlockCounts::default(),
        }
    }

    pub(in crate::routers) fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        let prefix = self.prefix(&view.job.prompt.blocks, view.candidates.len());
        let key = prefix.unwrap_or(view.routing_request.seed);
        let home = |salt: u64, other: Option<usize>| {
            let eligible = (0..view.candidates.len()).filter(|index| Some(*index) != other);
            eligible
                .max_by_key(|index| mix(key ^ view.candidates[*index].key ^ salt))
                .unwrap_or(0)
        };
        let first = home(1, None);
        let homes = [first, home(2, Some(first))];
        let candidate = |index: usize| -> &Candidate { &view.candidates[index] };
        let settings = KvAwareSettings::default();
        let ttft = |index: usize| kv_aware::ttft(&settings, candidate(index), false);
        let [warm, cold] = if candidate(homes[1]).cached > candidate(homes[0]).cached {
            [homes[1], homes[0]]
        } else {
            homes
        };
        let has_prefix = candidate(warm).cached > candidate(cold).cached;
        let stays = has_prefix && ttft(warm) <= self.objective;
        if stays || ttft(warm) <= ttft(cold) {
            warm
        } else {
            cold
        }
    }

    /// The block at which the prefix of a prompt ends. `None`: the prompt has no block.
    fn prefix(&mut self, blocks: &[u64], backends: usize) -> Option<u64> {
        let leading = &blocks[..blocks.len().min(COUNTED_BLOCKS)];
        self.counts.add(leading);
        self.recent.push_back(leading.into());
        if self.recent.len() > RECENT_REQUESTS {
            self.counts
                .remove(&self.recent.pop_front().unwrap_or_default());
        }
        let limit = self.recent.len() / (2 * backends).max(1);
        let is_rare = |block: &&u64| self.counts.count(**block) <= limit.max(1);
        leading.iter().find(is_rare).or(leading.last()).copied()
    }
}
