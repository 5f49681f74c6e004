//! The endpoint picker of llm-d with its default scorers: queue depth, KV cache usage and an approximate
//! prefix index, with the weights 2 : 2 : 3. The backend with the highest sum wins; ties are broken at
//! random.
//!
//! The queue score is relative to the shortest and the longest queue. The KV cache score is the
//! free share of the cache. The prefix score is the share of the prompt that was sent to the
//! backend before. The prefix index of a backend holds as many tokens as its KV cache.
//!
//! The scorer `no-hit-lru`, with weight 2, is optional. A prompt that no backend has in its cache prefers the
//! backend that has not received such a prompt for the longest time.

use super::prefix_index::PrefixIndex;
use super::routing_input::RoutingInput;

/// The endpoint picker of llm-d with its default scorers, reimplemented for simulations.
#[derive(Debug)]
pub struct LlmDRouter {
    /// The blocks of the prompts that were sent to each backend.
    prefix_index: PrefixIndex,
    /// For each backend, by position: the number of the last prompt sent to it of which no cache had a
    /// prefix. 0: there was no such prompt. `None`: the scorer is not used.
    last_misses: Option<Vec<u64>>,
    miss_count: u64,
}

const QUEUE_WEIGHT: f64 = 2.0;
const KV_USAGE_WEIGHT: f64 = 2.0;
const PREFIX_WEIGHT: f64 = 3.0;
const NO_HIT_WEIGHT: f64 = 2.0;
/// Score of `no-hit-lru` for a prompt of which a cache has a prefix.
const NEUTRAL_SCORE: f64 = 0.5;

impl LlmDRouter {
    /// Creates an endpoint picker that has sent no request yet.
    pub(crate) fn new(backends: usize, has_no_hit_lru: bool) -> Self {
        Self {
            prefix_index: PrefixIndex::new(backends),
            last_misses: has_no_hit_lru.then(|| vec![0; backends]),
            miss_count: 0,
        }
    }

    pub(crate) fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        let position = |index: usize| view.candidates[index].position;
        let queues = || {
            view.candidates
                .iter()
                .map(|candidate| view.reports[candidate.position].waiting)
        };
        let least = queues().fold(f64::INFINITY, f64::min);
        let most = queues().fold(0.0, f64::max);
        let shares = self.prefix_index.shares(view);
        let is_miss = shares.iter().all(|share| *share <= 0.0);
        let score = |index: usize| {
            let report = &view.reports[position(index)];
            let queue = if most > least {
                (most - report.waiting) / (most - least)
            } else {
                1.0
            };
            let no_hit = self.no_hit_score(position(index), is_miss);
            let free = 1.0 - report.kv_usage.unwrap_or(0.0);
            -(QUEUE_WEIGHT * queue
                + KV_USAGE_WEIGHT * free
                + PREFIX_WEIGHT * shares[index]
                + NO_HIT_WEIGHT * no_hit)
        };
        let costs: Vec<f64> = (0..shares.len()).map(score).collect();
        let chosen = view.random_tie(&costs);
        self.prefix_index.send(
            &view.job.prompt.blocks,
            position(chosen),
            view.cache_blocks(position(chosen)),
        );
        if is_miss && let Some(last_misses) = &mut self.last_misses {
            self.miss_count += 1;
            last_misses[position(chosen)] = self.miss_count;
        }
        chosen
    }

    /// Score of `no-hit-lru` for a backend. The backends are ranked by the time of their last prompt without
    /// a cached prefix, from 1 (oldest) to 0 (newest).
    fn no_hit_score(&self, position: usize, is_miss: bool) -> f64 {
        let Some(last_misses) = &self.last_misses else {
            return 0.0;
        };
        if !is_miss {
            return NEUTRAL_SCORE;
        }
        let own = last_misses[position];
        let older = last_misses.iter().filter(|last| **last < own).count();
        1.0 - older as f64 / (last_misses.len() - 1).max(1) as f64
    }
}
