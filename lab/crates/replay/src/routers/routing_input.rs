//! The input of a router, and functions that several routers use.

use crate::trace::TraceRequest;
use tokenweir_routing::kv_aware::tie_limit;
use tokenweir_routing::{Candidate, LoadReport, RoutingRequest};
use tokenweir_sim::engine::{EngineSpec, SimulatedEngineLoad};

/// Input of a routing decision.
pub struct RoutingInput<'a> {
    /// Number of the request in the trace.
    pub number: usize,
    /// The request for which the router picks a backend.
    pub job: &'a TraceRequest,
    /// The candidates, with the gateway's estimates of their loads.
    pub candidates: &'a [Candidate],
    /// Last load report of each backend, by position.
    pub reports: &'a [LoadReport],
    /// Returns the true number of this prompt's tokens in the prefix cache of a backend, by position.
    pub cached_tokens: &'a dyn Fn(usize) -> u32,
    /// Returns the engine of a backend and its true load, by position.
    pub engine: &'a dyn Fn(usize) -> (EngineSpec, SimulatedEngineLoad),
    /// Sequence number, random seed and session of the decision.
    pub routing_request: RoutingRequest,
}

impl RoutingInput<'_> {
    /// One of the indexes with the lowest cost, picked at random.
    pub(crate) fn random_tie(&self, costs: &[f64]) -> usize {
        let best = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let ties: Vec<usize> = (0..costs.len())
            .filter(|index| costs[*index] <= best)
            .collect();
        ties[(self.routing_request.seed % ties.len().max(1) as u64) as usize]
    }

    /// Index of the candidate with the lowest cost in seconds. Costs tie if the policies of the gateway treat
    /// them as equal. Of several candidates that tie, the one that has been idle longest.
    pub(crate) fn least(&self, costs: &[f64]) -> usize {
        let limit = tie_limit(costs.iter().copied().fold(f64::INFINITY, f64::min));
        let ties = (0..costs.len()).filter(|index| costs[*index] <= limit);
        let idle = |index: &usize| self.candidates[*index].idle_seconds;
        ties.max_by(|a, b| idle(a).total_cmp(&idle(b))).unwrap_or(0)
    }

    /// Index of the first candidate with the fewest requests in flight.
    pub(crate) fn least_loaded(&self) -> usize {
        let loads = self.candidates.iter().map(|candidate| candidate.in_flight);
        loads
            .enumerate()
            .min_by_key(|(_, load)| *load)
            .map_or(0, |(index, _)| index)
    }

    /// Number of blocks of this prompt that the cache of a backend can hold.
    pub(crate) fn cache_blocks(&self, position: usize) -> usize {
        let capacity = self.reports[position].capacity;
        let blocks = |tokens: u64| (tokens as f64 / self.job.block_tokens()) as usize;
        capacity.map_or(DEFAULT_INDEX_BLOCKS, blocks)
    }
}

/// Number of blocks that a cache is assumed to hold if its capacity is not reported, as in llm-d.
const DEFAULT_INDEX_BLOCKS: usize = 31_250;
