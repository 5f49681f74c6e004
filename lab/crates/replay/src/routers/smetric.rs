//! `SMetric` of the vLLM router (vllm-project/router 8bef7312, `src/policies/smetric.rs`). A later turn of a
//! session goes to the backend that has most of the prompt, if that is more than half of the session's history.
//! If this backend cannot meet the TTFT objective and another one can, the turn counts as a first turn. First
//! turns go to the backend with the least cost.
//!
//! ```text
//! work  = n + c × n × (prompt − n ÷ 2)       n: uncached tokens
//! cost  = (pending work + work) × requests in flight
//! meets = (pending work + work) ÷ rate ≤ objective
//! rate  = 90th percentile of work ÷ TTFT of the last 64 requests of the backend
//! ```
//!
//! The original has no defaults for `c`, the share of the history and the objective. Here `c` is that of the
//! simulated engines, the share is that of its tests, and the objective is that of the simulation. It counts
//! characters, and the end of the history is the last message of an assistant; here tokens count, and the
//! history is the previous turn with its output.

use super::prefix_index::PrefixIndex;
use super::radix_tree::MAX_TREE_TOKENS;
use super::routing_input::RoutingInput;
use std::collections::{HashMap, VecDeque};
use tokenweir_protocol::histogram::sample_quantile;
use tokenweir_protocol::limits::push_bounded;

/// The policy `smetric` of the vLLM router, reimplemented for simulations.
#[derive(Debug)]
pub struct SMetricRouter {
    /// Objective of the TTFT in seconds. Infinity: there is no objective.
    objective: f64,
    /// The blocks of the prompts that were sent to each backend.
    sent: PrefixIndex,
    backends: Vec<BackendWork>,
    /// The requests without output, by their number.
    pending: HashMap<usize, PendingWork>,
    /// The tokens of prompt and output of each request, by its number.
    texts: HashMap<usize, f64>,
}

#[derive(Debug, Default)]
struct BackendWork {
    /// Work of the requests without output.
    pending: f64,
    /// Work ÷ TTFT of the last requests.
    rates: VecDeque<f64>,
}

#[derive(Debug)]
struct PendingWork {
    position: usize,
    work: f64,
}

/// Time of a pair of tokens in attention ÷ time of a prompt token, of the engines of the tournament.
const ATTENTION: f64 = 4e-5;
/// Share of the history that the backend must have.
const HIT_SHARE: f64 = 0.5;
/// Number of requests from which the rate is computed, and the number below which it is not known.
const RATE_WINDOW: usize = 64;
const MIN_RATES: usize = 8;
const RATE_QUANTILE: f64 = 0.9;

impl SMetricRouter {
    /// Creates a router that has sent no request yet.
    pub(crate) fn new(backends: usize, objective: f64) -> Self {
        Self {
            objective,
            sent: PrefixIndex::new(backends),
            backends: (0..backends).map(|_| BackendWork::default()).collect(),
            pending: HashMap::new(),
            texts: HashMap::new(),
        }
    }

    pub(crate) fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        let prompt = f64::from(view.job.prompt_tokens);
        let hits = self.hits(view);
        let chosen = self.choose(view, &hits);
        let position = view.candidates[chosen].position;
        let work = work(prompt, prompt - hits[chosen]);
        self.backends[position].pending += work;
        self.pending
            .insert(view.number, PendingWork { position, work });
        self.texts
            .insert(view.number, prompt + f64::from(view.job.output_tokens));
        let max_blocks = (MAX_TREE_TOKENS / view.job.block_tokens()) as usize;
        self.sent
            .send(&view.job.prompt.blocks, position, max_blocks);
        chosen
    }

    /// The tokens of the prompt that were sent to each candidate before.
    fn hits(&self, view: &RoutingInput<'_>) -> Vec<f64> {
        let prompt = f64::from(view.job.prompt_tokens);
        let tokens = |blocks: usize| (blocks as f64 * view.job.block_tokens()).min(prompt);
        self.sent.matched(view).into_iter().map(tokens).collect()
    }

    fn choose(&self, view: &RoutingInput<'_>, hits: &[f64]) -> usize {
        let prompt = f64::from(view.job.prompt_tokens);
        let backend = |index: usize| &self.backends[view.candidates[index].position];
        let queued = |index: usize| backend(index).pending + work(prompt, prompt - hits[index]);
        let meets = |index: usize| {
            let rate = backend(index).rate();
            rate.is_none_or(|rate| queued(index) / rate <= self.objective)
        };
        let previous = view.job.after.and_then(|number| self.texts.get(&number));
        let missing: Vec<f64> = hits.iter().map(|hit| prompt - hit).collect();
        let holder = view.random_tie(&missing);
        let stays = previous.is_some_and(|history| hits[holder] > HIT_SHARE * history);
        if stays && (meets(holder) || !(0..hits.len()).any(meets)) {
            return holder;
        }
        let cost = |index| queued(index) * f64::from(view.candidates[index].in_flight);
        let costs: Vec<f64> = (0..hits.len()).map(cost).collect();
        view.random_tie(&costs)
    }

    pub(crate) fn on_first_output(&mut self, number: usize, ttft: f64) {
        let Some(PendingWork { position, work }) = self.pending.remove(&number) else {
            return;
        };
        let backend = &mut self.backends[position];
        backend.pending -= work;
        if work > 0.0 && ttft > 0.0 {
            push_bounded(&mut backend.rates, work / ttft, RATE_WINDOW);
        }
    }

    pub(crate) fn on_end(&mut self, number: usize) {
        if let Some(PendingWork { position, work }) = self.pending.remove(&number) {
            self.backends[position].pending -= work;
        }
    }
}

impl BackendWork {
    /// Work per second. `None`: not known yet.
    fn rate(&self) -> Option<f64> {
        let mut rates: Vec<f64> = self.rates.iter().copied().collect();
        if rates.len() < MIN_RATES {
            return None;
        }
        sample_quantile(&mut rates, RATE_QUANTILE)
    }
}

/// The work of a prompt of which `uncached` tokens have to be computed.
fn work(prompt: f64, uncached: f64) -> f64 {
    uncached + ATTENTION * uncached * (prompt - uncached / 2.0)
}
