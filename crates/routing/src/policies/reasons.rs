//! The reasons that `kv_aware` gives for its choices. `docs/concepts/routing.md#reasons` lists them for users.
//!
//! A reason is a cause if the policy would have chosen another candidate without it. Causes are tried in a
//! fixed order. A choice without a cause gets a reason that states a fact about it.

use super::kv_aware::{Decision, Parts, cached, terms_with};
use super::selection::{least, tie_limit};

impl Decision<'_> {
    /// Returns the reason why a candidate was chosen, as a label value of metrics.
    pub(super) fn reason(&self, chosen: usize) -> &'static str {
        self.cause(chosen)
            .or_else(|| self.refused(chosen))
            .unwrap_or_else(|| self.fact(chosen))
    }

    /// Returns the label of the first of session, cached prefix and KV cache pressure without which another
    /// candidate would have been chosen. `None`: none of the three decided the choice.
    fn cause(&self, chosen: usize) -> Option<&'static str> {
        let own = &self.candidates[chosen];
        if self.home == Some(chosen) {
            let costs = self.costs_of(|at| self.cost_with_cached(at, self.cached(at, None)));
            if self.is_undecided(&costs, None, chosen) {
                return Some("session");
            }
        }
        let without_cache = || self.costs_of(|index| self.cost_with_cached(index, 0.0));
        if own.cached > 0.0 && self.choose(without_cache().iter().copied(), self.home) != chosen {
            return Some("cached_prefix");
        }
        (self.choose_without_pressure() != chosen).then_some("kv_pressure")
    }

    /// Returns the reason if another candidate was not chosen because of its load, although it has more of the
    /// prompt in its cache or is the backend of the session. `None`: no such candidate.
    fn refused(&self, chosen: usize) -> Option<&'static str> {
        let own_blocks = self.candidates[chosen].cached_blocks;
        if self
            .candidates
            .iter()
            .any(|other| other.cached_blocks > own_blocks)
        {
            return Some("prefix_too_busy");
        }
        self.home
            .is_some_and(|home| home != chosen)
            .then_some("session_too_busy")
    }

    /// Returns a reason that compares the choice with the other candidates by cost and predicted TTFT.
    fn fact(&self, chosen: usize) -> &'static str {
        if ties(self.costs()) > 1 {
            return "tie";
        }
        let own = self.parts[chosen].ttft;
        let is_lowest = self.parts.iter().all(|other| own <= other.ttft);
        if is_lowest {
            "lowest_ttft"
        } else {
            "lowest_cost"
        }
    }

    /// The costs of all candidates, computed by `cost` from the index of each candidate.
    fn costs_of(&self, cost: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..self.candidates.len()).map(cost).collect()
    }

    fn cached(&self, index: usize, home: Option<usize>) -> f64 {
        cached(self.settings, &self.candidates[index], home == Some(index))
    }

    fn cost_with_cached(&self, index: usize, cached: f64) -> f64 {
        let candidate = &self.candidates[index];
        terms_with(self.settings, candidate, cached, &self.fleet).cost()
    }

    /// The candidate that would be chosen without the term `pressure`.
    fn choose_without_pressure(&self) -> usize {
        let without = |parts: &Parts| parts.cost - parts.pressure;
        self.choose(self.parts.iter().map(without), self.home)
    }

    /// Whether these costs do not lead to the chosen candidate, because several candidates tie or another one
    /// wins.
    fn is_undecided(&self, costs: &[f64], home: Option<usize>, chosen: usize) -> bool {
        let costs = costs.iter().copied();
        ties(costs.clone()) > 1 || self.choose(costs, home) != chosen
    }
}

/// Number of costs that tie with the lowest cost, which counts too.
fn ties(costs: impl Iterator<Item = f64> + Clone) -> usize {
    let limit = tie_limit(least(costs.clone()));
    costs.filter(|cost| *cost <= limit).count()
}
