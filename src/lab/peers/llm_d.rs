//! The default scorers of llm-d's endpoint picker (the Gateway API Inference Extension): queue
//! depth, KV-cache utilisation and an approximate prefix index, weighted 2 : 2 : 3, and the
//! highest sum wins; equal ones at random.

use crate::lab::router::View;
use std::collections::{BTreeMap, HashMap};

/// The picker.
#[derive(Debug)]
pub struct LlmD {
    indexes: Vec<Index>,
}

/// Weights of queue, KV-cache utilisation and prefix.
const WEIGHTS: [f64; 3] = [2.0, 2.0, 3.0];
/// Most blocks of a prompt that are matched.
const MAX_BLOCKS: usize = 256;
/// Blocks that are remembered for each replica, by the one used longest ago.
const CAPACITY: usize = 31_250;

/// The blocks that were sent to one replica lately.
#[derive(Debug, Default)]
struct Index {
    used: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

impl LlmD {
    /// It has sent nothing.
    pub(crate) fn new(replicas: usize) -> Self {
        Self { indexes: (0..replicas).map(|_| Index::default()).collect() }
    }

    pub(crate) fn route(&mut self, view: &View<'_>) -> usize {
        let blocks = &view.job.prompt.blocks;
        let blocks = &blocks[..blocks.len().min(MAX_BLOCKS)];
        let queues = || view.reports.iter().map(|report| report.waiting);
        let (least, most) = (queues().fold(f64::INFINITY, f64::min), queues().fold(0.0, f64::max));
        let score = |index: usize| {
            let report = &view.reports[index];
            let queue = if most > least { (most - report.waiting) / (most - least) } else { 1.0 };
            let matched = self.indexes[index].matched(blocks);
            let prefix = matched as f64 / blocks.len().max(1) as f64;
            let parts = [queue, 1.0 - report.kv_usage.unwrap_or(0.0), prefix];
            parts.iter().zip(WEIGHTS).map(|(part, weight)| part * weight).sum::<f64>()
        };
        let scores: Vec<f64> = (0..self.indexes.len()).map(score).collect();
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let ties: Vec<usize> = (0..scores.len()).filter(|index| scores[*index] >= best).collect();
        let chosen = ties[(view.ask.seed % ties.len().max(1) as u64) as usize];
        self.indexes[chosen].touch(blocks);
        chosen
    }
}

impl Index {
    fn matched(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.used.contains_key(block)).count()
    }

    fn touch(&mut self, blocks: &[u64]) {
        for block in blocks {
            self.uses += 1;
            if let Some(before) = self.used.insert(*block, self.uses) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.uses, *block);
        }
        while self.used.len() > CAPACITY {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.used.remove(&oldest);
        }
    }
}
