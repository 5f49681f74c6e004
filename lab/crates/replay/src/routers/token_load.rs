//! Routers that count the prompt tokens in flight at each backend, with an index of the prompts that were
//! sent to it.

use super::prefix_index::PrefixIndex;
use super::routing_input::RoutingInput;
use std::collections::HashMap;

/// A router that counts the prompt tokens in flight at each backend.
#[derive(Debug)]
pub struct TokenLoadRouter {
    rule: TokenLoadRule,
    /// The blocks that were sent to each backend, by its position.
    sent: PrefixIndex,
    /// Uncached prompt tokens of the requests without output at each backend, by position.
    backlogs: Vec<f64>,
    /// The requests without output, by their number: the position of the backend, and the uncached prompt
    /// tokens.
    pending: HashMap<usize, (usize, f64)>,
}

/// The rule by which the router computes costs. The lowest cost wins; ties are broken at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenLoadRule {
    /// llm-d's "optimized baseline" (llm-d `guides/optimized-baseline`, July 2026): picks the backend with
    /// the fewest tokens in flight, among the backends that have at least 80 % of the prompt. If these have
    /// so many more tokens in flight than the others that it would cost more than 18 s at 15,928 tokens per
    /// second, picks among all backends.
    LlmDOptimized,
    /// `LMetric` (arXiv 2603.15202, and the scorer `lmetric` of llm-d-router 1fee9c80): uncached tokens of this
    /// prompt × (requests in flight + 1).
    LMetric,
    /// Least pending work with locality: tokens in flight + the uncached tokens of this prompt.
    Lpwl,
    /// A rule that no product has: 2 × tokens in flight ÷ 65,536 − 1.5 × cached share of the prompt.
    BacklogAndShare,
}

/// Minimum share of the prompt that a backend must have got before, so that llm-d prefers this backend.
const AFFINITY_SHARE: f64 = 0.8;
/// Maximum number of tokens in flight by which a backend that has the prefix may exceed the others.
const AFFINITY_PENALTY_TOKENS: f64 = 18.0 * 15_928.0;
/// Tokens in flight that count as a full backlog in `backlog_and_share`.
const FULL_BACKLOG_TOKENS: f64 = 65_536.0;
const BACKLOG_WEIGHT: f64 = 2.0;
/// Weight of the cached share in `backlog_and_share`.
const SHARE_WEIGHT: f64 = 1.5;

impl TokenLoadRouter {
    /// Creates a router that has sent no request yet.
    pub(crate) fn new(backends: usize, rule: TokenLoadRule) -> Self {
        Self {
            rule,
            sent: PrefixIndex::new(backends),
            backlogs: vec![0.0; backends],
            pending: HashMap::new(),
        }
    }

    pub(crate) fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        let shares = self.sent.shares(view);
        let index = view.random_tie(&self.costs(view, &shares));
        let position = view.candidates[index].position;
        let uncached = (1.0 - shares[index]) * f64::from(view.job.prompt_tokens);
        self.backlogs[position] += uncached;
        self.pending.insert(view.number, (position, uncached));
        self.sent.send(
            &view.job.prompt.blocks,
            position,
            view.cache_blocks(position),
        );
        index
    }

    fn costs(&self, view: &RoutingInput<'_>, shares: &[f64]) -> Vec<f64> {
        let backlog = |index: usize| self.backlogs[view.candidates[index].position];
        let uncached = |index: usize| (1.0 - shares[index]) * f64::from(view.job.prompt_tokens);
        let indexes = 0..shares.len();
        match self.rule {
            TokenLoadRule::BacklogAndShare => {
                let cost = |index: usize| {
                    let load = BACKLOG_WEIGHT * backlog(index) / FULL_BACKLOG_TOKENS;
                    load - SHARE_WEIGHT * shares[index]
                };
                indexes.map(cost).collect()
            }
            TokenLoadRule::LMetric => indexes
                .map(|index| uncached(index) * f64::from(view.candidates[index].in_flight + 1))
                .collect(),
            TokenLoadRule::Lpwl => indexes
                .map(|index| backlog(index) + uncached(index))
                .collect(),
            TokenLoadRule::LlmDOptimized => {
                let least = |is_sticky: bool| {
                    indexes
                        .clone()
                        .filter(|index| (shares[*index] >= AFFINITY_SHARE) == is_sticky)
                        .map(backlog)
                        .fold(f64::INFINITY, f64::min)
                };
                let has_sticky = least(true).is_finite()
                    && least(true) - least(false) <= AFFINITY_PENALTY_TOKENS;
                let cost = |index: usize| {
                    let is_excluded = has_sticky && shares[index] < AFFINITY_SHARE;
                    if is_excluded {
                        f64::INFINITY
                    } else {
                        backlog(index)
                    }
                };
                indexes.clone().map(cost).collect()
            }
        }
    }

    pub(crate) fn on_first_output(&mut self, number: usize) {
        if let Some((position, uncached)) = self.pending.remove(&number) {
            self.backlogs[position] -= uncached;
        }
    }
}
