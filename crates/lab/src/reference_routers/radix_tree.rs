//! The cache-aware policy of the SGLang and vLLM routers, with a radix tree of the prompts sent to
//! each backend.
//!
//! While the loads are balanced, a prompt goes to the backend with the longest matching prefix if
//! the match exceeds a threshold, else to the backend with the smallest tree. While they are not,
//! it goes to the backend with the fewest requests. The defaults are those of the vLLM router. Here
//! a tree is represented by the set of the hashes of its paths, because prompts consist of blocks.

use super::prefix_index::PrefixIndex;
use crate::router::RoutingInput;

/// State of the router.
#[derive(Debug)]
pub struct RadixTreeRouter {
    /// By position of the backend.
    trees: Vec<PrefixIndex>,
}

/// Share of a prompt that must match.
const PREFIX_MATCH_THRESHOLD: f64 = 0.3;
/// The loads are unbalanced if they differ by more than this number of requests, and …
const IMBALANCE_MIN_DIFFERENCE: u32 = 64;
/// … the greatest load is more than this multiple of the least load.
const IMBALANCE_MIN_RATIO: f64 = 1.5;
/// Capacity of a tree: 67,108,864 characters, at four characters per token.
const MAX_TREE_TOKENS: f64 = 67_108_864.0 / 4.0;

impl RadixTreeRouter {
    /// A router that has sent no request yet.
    pub(crate) fn new(backends: usize) -> Self {
        Self { trees: (0..backends).map(|_| PrefixIndex::default()).collect() }
    }

    pub(crate) fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        let loads = || view.candidates.iter().map(|candidate| candidate.in_flight);
        let (least, most) = (loads().min().unwrap_or(0), loads().max().unwrap_or(0));
        let is_unbalanced = most - least > IMBALANCE_MIN_DIFFERENCE
            && f64::from(most) > IMBALANCE_MIN_RATIO * f64::from(least);
        let blocks = &view.job.prompt.blocks;
        let chosen = if is_unbalanced {
            loads().position(|load| load == least).unwrap_or(0)
        } else {
            self.pick_by_prefix(blocks)
        };
        self.trees[chosen].send(blocks, (MAX_TREE_TOKENS / view.job.block_tokens()) as usize);
        chosen
    }

    fn pick_by_prefix(&self, blocks: &[u64]) -> usize {
        let matched = self.trees.iter().map(|tree| tree.matched(blocks)).enumerate();
        let best = matched.max_by_key(|(index, matched)| (*matched, usize::MAX - index));
        match best {
            Some((index, matched))
                if matched as f64 > PREFIX_MATCH_THRESHOLD * blocks.len() as f64 =>
            {
                index
            }
            _ => {
                let smallest = self.trees.iter().enumerate().min_by_key(|(_, tree)| tree.len());
                smallest.map_or(0, |(index, _)| index)
            }
        }
    }
}
