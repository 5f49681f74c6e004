//! The cache-aware policy of the SGLang and vLLM routers: a tree of what was sent to each replica.
//! While the loads are balanced, a prompt goes where most of it was sent before, if that is more
//! than a threshold of it, else where the tree is smallest; when they are not, to the replica
//! with the fewest requests. The defaults are those of vLLM's router. A tree of prompts in blocks
//! is the set of the hashes of its paths.

use super::sent::Sent;
use crate::router::View;

/// The router.
#[derive(Debug)]
pub struct RadixTree {
    trees: Vec<Sent>,
}

/// The share of a prompt that must match.
const THRESHOLD: f64 = 0.3;
/// The loads are out of balance if they differ by more than this …
const BALANCE_ABSOLUTE: u32 = 64;
/// … and the largest is more than this many times the smallest.
const BALANCE_RELATIVE: f64 = 1.5;
/// The size of a tree: 67,108,864 characters, of which a token has four.
const MAX_TOKENS: f64 = 67_108_864.0 / 4.0;

impl RadixTree {
    /// It has sent nothing.
    pub(crate) fn new(replicas: usize) -> Self {
        Self { trees: (0..replicas).map(|_| Sent::default()).collect() }
    }

    pub(crate) fn route(&mut self, view: &View<'_>) -> usize {
        let loads = || view.candidates.iter().map(|candidate| candidate.in_flight);
        let (least, most) = (loads().min().unwrap_or(0), loads().max().unwrap_or(0));
        let is_unbalanced = most - least > BALANCE_ABSOLUTE
            && f64::from(most) > BALANCE_RELATIVE * f64::from(least);
        let blocks = &view.job.prompt.blocks;
        let chosen = if is_unbalanced {
            loads().position(|load| load == least).unwrap_or(0)
        } else {
            self.by_prefix(blocks)
        };
        self.trees[chosen].send(blocks, (MAX_TOKENS / view.job.block_tokens()) as usize);
        chosen
    }

    fn by_prefix(&self, blocks: &[u64]) -> usize {
        let matched = self.trees.iter().map(|tree| tree.matched(blocks)).enumerate();
        let best = matched.max_by_key(|(index, matched)| (*matched, usize::MAX - index));
        match best {
            Some((index, matched)) if matched as f64 > THRESHOLD * blocks.len() as f64 => index,
            _ => {
                let smallest = self.trees.iter().enumerate().min_by_key(|(_, tree)| tree.len());
                smallest.map_or(0, |(index, _)| index)
            }
        }
    }
}
