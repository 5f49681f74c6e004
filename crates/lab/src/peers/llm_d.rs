//! The default scorers of llm-d's endpoint picker: queue depth, KV-cache utilisation and an
//! approximate prefix index, weighted 2 : 2 : 3. The highest sum wins, equal ones at random.
//!
//! The queue counts between the longest and the shortest there are, the cache by its free share,
//! the prefix by the share of the prompt that was sent there before; the index of a replica keeps
//! as many tokens as its KV cache. Its limit of 256 blocks for a prompt is left out: its blocks
//! are shorter than the trace's.

use super::sent::Sent;
use crate::router::View;

/// The picker.
#[derive(Debug)]
pub struct LlmD {
    indexes: Vec<Sent>,
}

/// Weights of queue, KV-cache utilisation and prefix.
const WEIGHTS: [f64; 3] = [2.0, 2.0, 3.0];
/// Blocks that an index keeps if the size of the cache is not known.
const USUAL_BLOCKS: usize = 31_250;

impl LlmD {
    /// It has sent nothing.
    pub(crate) fn new(replicas: usize) -> Self {
        Self { indexes: (0..replicas).map(|_| Sent::default()).collect() }
    }

    pub(crate) fn route(&mut self, view: &View<'_>) -> usize {
        let blocks = &view.job.prompt.blocks;
        let queues = || view.reports.iter().map(|report| report.waiting);
        let (least, most) = (queues().fold(f64::INFINITY, f64::min), queues().fold(0.0, f64::max));
        let score = |index: usize| {
            let report = &view.reports[index];
            let queue = if most > least { (most - report.waiting) / (most - least) } else { 1.0 };
            let prefix = self.indexes[index].matched(blocks) as f64 / blocks.len().max(1) as f64;
            let parts = [queue, 1.0 - report.kv_usage.unwrap_or(0.0), prefix];
            parts.iter().zip(WEIGHTS).map(|(part, weight)| part * weight).sum::<f64>()
        };
        let scores: Vec<f64> = (0..self.indexes.len()).map(score).collect();
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let ties: Vec<usize> = (0..scores.len()).filter(|index| scores[*index] >= best).collect();
        let chosen = ties[(view.ask.seed % ties.len().max(1) as u64) as usize];
        let capacity = view.reports[chosen].capacity;
        let capacity = capacity.map(|tokens| (tokens as f64 / view.job.block_tokens()) as usize);
        self.indexes[chosen].send(blocks, capacity.unwrap_or(USUAL_BLOCKS));
        chosen
    }
}
