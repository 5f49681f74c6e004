//! The endpoint picker of llm-d with its default scorers: queue depth, KV cache usage and an
//! approximate prefix index, weighted 2 : 2 : 3. The highest sum wins; ties are broken at random.
//!
//! The queue score is relative to the shortest and the longest queue. The KV cache score is the
//! free share of the cache. The prefix score is the share of the prompt that was sent to the
//! backend before. The prefix index of a backend holds as many tokens as its KV cache. The limit of
//! 256 blocks per prompt of the original is left out, because its blocks are shorter than those of
//! a trace.

use super::prefix_index::PrefixIndex;
use crate::router::RoutingInput;

/// State of the endpoint picker.
#[derive(Debug)]
pub struct LlmDRouter {
    /// By position of the backend.
    prefix_indexes: Vec<PrefixIndex>,
}

/// Weights of queue, KV cache usage and prefix.
const SCORER_WEIGHTS: [f64; 3] = [2.0, 2.0, 3.0];
/// Capacity of a prefix index in blocks, if the capacity of the KV cache is not reported.
const DEFAULT_INDEX_BLOCKS: usize = 31_250;

impl LlmDRouter {
    /// A picker that has sent no request yet.
    pub(crate) fn new(backends: usize) -> Self {
        Self { prefix_indexes: (0..backends).map(|_| PrefixIndex::default()).collect() }
    }

    pub(crate) fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        let blocks = &view.job.prompt.blocks;
        let queues = || view.reports.iter().map(|report| report.waiting);
        let (least, most) = (queues().fold(f64::INFINITY, f64::min), queues().fold(0.0, f64::max));
        let score = |index: usize| {
            let report = &view.reports[index];
            let queue = if most > least { (most - report.waiting) / (most - least) } else { 1.0 };
            let prefix =
                self.prefix_indexes[index].matched(blocks) as f64 / blocks.len().max(1) as f64;
            let parts = [queue, 1.0 - report.kv_usage.unwrap_or(0.0), prefix];
            parts.iter().zip(SCORER_WEIGHTS).map(|(part, weight)| part * weight).sum::<f64>()
        };
        let scores: Vec<f64> = (0..self.prefix_indexes.len()).map(score).collect();
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let ties: Vec<usize> = (0..scores.len()).filter(|index| scores[*index] >= best).collect();
        let chosen = ties[(view.routing_request.seed % ties.len().max(1) as u64) as usize];
        let capacity = view.reports[chosen].capacity;
        let capacity = capacity.map(|tokens| (tokens as f64 / view.job.block_tokens()) as usize);
        self.prefix_indexes[chosen].send(blocks, capacity.unwrap_or(DEFAULT_INDEX_BLOCKS));
        chosen
    }
}
