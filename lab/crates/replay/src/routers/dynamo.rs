//! The KV router of NVIDIA Dynamo with its default cost. The cost of a worker (a backend) counts in blocks:
//! the prompt tokens that the worker still has to compute, plus its active decode blocks. The worker with the
//! lowest cost wins; ties are broken at random (temperature 0).
//!
//! ```text
//! cost = (active prefill tokens + prompt tokens − overlap) ÷ block tokens + active blocks
//! ```
//!
//! The router counts only requests that it sent itself. The tokens of a prompt count as active prefill until
//! its first output. Active requests share the blocks of a common prefix: each block counts once, and a new
//! request adds only those blocks that are not active yet (`lib/kv-router/src/sequences/block_tracker.rs`,
//! with the default `router_assume_kv_reuse: true`). The overlap, that is, the cached part of the prompt, is
//! exact (from KV events) or estimated from the prompts that were sent. The queue of the original, in which
//! requests wait while all workers are busy, is left out.

use super::prefix_index::PrefixIndex;
use super::routing_input::RoutingInput;
use crate::cache_view::BlockCounts;
use std::collections::HashMap;

/// The KV router of NVIDIA Dynamo, reimplemented for simulations.
#[derive(Debug)]
pub struct DynamoRouter {
    /// Whether the overlap (the cached part of a prompt) comes from the true contents of the caches.
    /// Otherwise it is estimated from the prompts that were sent.
    is_exact: bool,
    /// The load of each backend, by its position.
    workers: Vec<WorkerLoad>,
    sent: PrefixIndex,
    /// The active requests, by their number in the trace.
    active: HashMap<usize, ActiveRequest>,
}

#[derive(Debug, Default)]
struct WorkerLoad {
    prefill_tokens: f64,
    /// Number of blocks of the active requests. A block that several requests share counts once.
    blocks: f64,
    /// The shared blocks of the trace that active requests have.
    shared: BlockCounts,
}

#[derive(Debug)]
struct ActiveRequest {
    worker: usize,
    prefill_tokens: f64,
    /// Number of blocks after the last shared block of the trace.
    own_blocks: f64,
    /// The shared blocks of the trace. `blocks_per_shared`: the number of the router's blocks in each.
    shared: Box<[u64]>,
    blocks_per_shared: f64,
}

/// Tokens in a block, as the cost counts blocks.
const BLOCK_TOKENS: f64 = 16.0;

impl DynamoRouter {
    /// Creates a router that has sent no request yet.
    pub(crate) fn new(backends: usize, is_exact: bool) -> Self {
        let workers = (0..backends).map(|_| WorkerLoad::default()).collect();
        Self {
            is_exact,
            workers,
            sent: PrefixIndex::new(backends),
            active: HashMap::new(),
        }
    }

    pub(crate) fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        let prompt = f64::from(view.job.prompt_tokens);
        let overlaps: Vec<f64> = if self.is_exact {
            let cached = |position| f64::from((view.cached_tokens)(position));
            view.candidates
                .iter()
                .map(|candidate| cached(candidate.position))
                .collect()
        } else {
            let tokens = |matched| matched as f64 * view.job.block_tokens();
            self.sent.matched(view).into_iter().map(tokens).collect()
        };
        let work: Vec<f64> = overlaps
            .iter()
            .map(|tokens| prompt - tokens.min(prompt))
            .collect();
        let cost = |index: usize| {
            let worker = &self.workers[view.candidates[index].position];
            let active = worker.shared.matched(&view.job.prompt.blocks) as f64;
            let added = (prompt - active * view.job.block_tokens()).max(0.0) / BLOCK_TOKENS;
            (worker.prefill_tokens + work[index]) / BLOCK_TOKENS + worker.blocks + added
        };
        let costs: Vec<f64> = (0..work.len()).map(cost).collect();
        let index = view.random_tie(&costs);
        let position = view.candidates[index].position;
        self.sent.send(
            &view.job.prompt.blocks,
            position,
            view.cache_blocks(position),
        );
        let worker = &mut self.workers[position];
        let shared = view.job.prompt.blocks.clone();
        let block_tokens = view.job.block_tokens();
        let active = ActiveRequest {
            worker: position,
            prefill_tokens: work[index],
            own_blocks: (prompt - shared.len() as f64 * block_tokens).max(0.0) / BLOCK_TOKENS,
            shared,
            blocks_per_shared: block_tokens / BLOCK_TOKENS,
        };
        worker.prefill_tokens += active.prefill_tokens;
        worker.add(&active);
        self.active.insert(view.number, active);
        index
    }

    pub(crate) fn on_first_output(&mut self, number: usize) {
        if let Some(active) = self.active.get_mut(&number) {
            let prefill_tokens = std::mem::take(&mut active.prefill_tokens);
            self.workers[active.worker].prefill_tokens -= prefill_tokens;
        }
    }

    pub(crate) fn on_end(&mut self, number: usize) {
        self.on_first_output(number);
        if let Some(active) = self.active.remove(&number) {
            self.workers[active.worker].remove(&active);
        }
    }
}

impl WorkerLoad {
    fn add(&mut self, request: &ActiveRequest) {
        self.blocks += request.own_blocks;
        for _ in 0..self.shared.add(&request.shared) {
            self.blocks += request.blocks_per_shared;
        }
    }

    fn remove(&mut self, request: &ActiveRequest) {
        self.blocks -= request.own_blocks;
        for _ in 0..self.shared.remove(&request.shared) {
            self.blocks -= request.blocks_per_shared;
        }
    }
}
