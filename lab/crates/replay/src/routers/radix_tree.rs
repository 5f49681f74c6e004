//! Cache-aware policies that keep, for each backend, a tree of the prompts that were sent to it.
//!
//! `vllm_router` is the policy of the vLLM router (vllm-project/router 16917f49, `src/policies/cache_aware.rs`,
//! defaults of its command line). While the loads of the backends are balanced, a prompt goes to the backend
//! with the longest matching prefix if the match exceeds a threshold. Otherwise the prompt goes to the backend
//! with the fewest requests: the code does this also for short matches, although its comment names the
//! smallest tree.
//!
//! `radix_tree` is the older policy of the SGLang router. It differs for short matches, for which it picks the
//! backend with the smallest tree.
//!
//! `smg` is the policy of the gateway that succeeded these routers (smg 73da68ca, defaults of its command
//! line in `model_gateway/src/main.rs`). A prompt goes to a backend with the longest match, unless this
//! backend has many more requests than the mean. In that case, or without a match, the prompt goes to the
//! backend with the fewest requests.
//!
//! Here a tree is represented by the set of the hashes of its paths, because prompts consist of blocks. The
//! eviction of old entries by time is left out.

use super::prefix_index::PrefixIndex;
use super::routing_input::RoutingInput;

/// A cache-aware router with a prefix tree per backend, reimplemented for simulations.
#[derive(Debug)]
pub struct RadixTreeRouter {
    variant: RadixTreeVariant,
    /// The blocks of the prompts that were sent to each backend.
    trees: PrefixIndex,
}

/// The project whose router is reimplemented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RadixTreeVariant {
    SglangRouter,
    VllmRouter,
    /// `smg`: the gateway that succeeded them.
    Smg,
}

/// Thresholds: the share of a prompt that must match, and the difference and the ratio of the request counts
/// up to which the loads of backends count as balanced. All projects have the same defaults.
const THRESHOLDS: (f64, f64, f64) = (0.3, 64.0, 1.5);
/// Capacity of a tree: 67,108,864 characters, at four characters per token.
pub(super) const MAX_TREE_TOKENS: f64 = 67_108_864.0 / 4.0;

impl RadixTreeRouter {
    /// Creates a router that has sent no request yet.
    pub(crate) fn new(backends: usize, variant: RadixTreeVariant) -> Self {
        Self {
            variant,
            trees: PrefixIndex::new(backends),
        }
    }

    pub(crate) fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        let chosen = match self.variant {
            RadixTreeVariant::SglangRouter => self
                .route_if_balanced(view)
                .unwrap_or_else(|| self.smallest_tree(view)),
            RadixTreeVariant::VllmRouter => self
                .route_if_balanced(view)
                .unwrap_or_else(|| view.least_loaded()),
            RadixTreeVariant::Smg => self.route_as_smg(view),
        };
        let max_blocks = (MAX_TREE_TOKENS / view.job.block_tokens()) as usize;
        self.trees.send(
            &view.job.prompt.blocks,
            view.candidates[chosen].position,
            max_blocks,
        );
        chosen
    }

    /// The candidate of the SGLang and vLLM routers, unless the match is short and the loads are balanced.
    fn route_if_balanced(&self, view: &RoutingInput<'_>) -> Option<usize> {
        let (match_share, difference, ratio) = THRESHOLDS;
        let loads = || {
            view.candidates
                .iter()
                .map(|candidate| f64::from(candidate.in_flight))
        };
        let least = loads().fold(f64::INFINITY, f64::min);
        let most = loads().fold(0.0, f64::max);
        if most - least > difference && most > ratio * least {
            return Some(view.least_loaded());
        }
        self.longest_matches(view, match_share).first().copied()
    }

    fn route_as_smg(&self, view: &RoutingInput<'_>) -> usize {
        let (match_share, difference, ratio) = THRESHOLDS;
        let load = |index: usize| f64::from(view.candidates[index].in_flight);
        let count = view.candidates.len();
        let mean = (0..count).map(load).sum::<f64>() / count as f64;
        let matches = self.longest_matches(view, match_share);
        let selected = matches
            .into_iter()
            .min_by(|a, b| load(*a).total_cmp(&load(*b)));
        let is_busy =
            |index: &usize| load(*index) > mean * ratio && load(*index) > mean + difference;
        selected
            .filter(|index| !is_busy(index))
            .unwrap_or_else(|| view.least_loaded())
    }

    /// The candidates with the longest match, if the match is longer than this share of the prompt. Otherwise
    /// none.
    fn longest_matches(&self, view: &RoutingInput<'_>, share: f64) -> Vec<usize> {
        let matched = self.trees.matched(view);
        let longest = matched.iter().copied().max().unwrap_or(0);
        if longest as f64 <= share * view.job.prompt.blocks.len() as f64 {
            return Vec::new();
        }
        (0..matched.len())
            .filter(|index| matched[*index] == longest)
            .collect()
    }

    fn smallest_tree(&self, view: &RoutingInput<'_>) -> usize {
        let sizes = view
            .candidates
            .iter()
            .map(|candidate| self.trees.len(candidate.position));
        sizes
            .enumerate()
            .min_by_key(|(_, size)| *size)
            .map_or(0, |(index, _)| index)
    }
}
