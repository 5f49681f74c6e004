//! Routing decisions: the loads and predictions of every candidate, and the selected candidate.
//!
//! Every request causes a decision, so a decision must be cheap. It stores the input of the policy, from which
//! readers compute the predictions again. A decision is shared and never copied.

use super::backend_condition::BackendCondition;
use std::sync::Arc;
use tokenweir_engine::address::BackendId;
use tokenweir_routing::kv_aware::CostTerms;
use tokenweir_routing::{Candidate, PolicyChoice, RoutingContext};

/// The recorded result of a routing policy, with its input.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutingDecision {
    /// The input of the policy. If there were more than [`RoutingDecision::MAX_RECORDED_CANDIDATES`]
    /// candidates, the context contains the selected one and the cheapest others.
    routing_context: RoutingContext,
    /// The choice of the policy. Its index is an index into the recorded candidates.
    selection: PolicyChoice,
    /// Load and state of the selected backend at the decision.
    pub backend_condition: BackendCondition,
    /// Names of the backends of the pool, indexed by [`Candidate::position`].
    backend_ids: Arc<[BackendId]>,
    /// Candidates beyond the recorded ones.
    pub omitted_candidates: usize,
    /// The backends of the route that were no candidates: their positions, each with a short reason. At most
    /// [`RoutingDecision::MAX_RECORDED_CANDIDATES`].
    pub excluded: Box<[(usize, &'static str)]>,
}

/// A recorded candidate of a decision, with its predictions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedCandidate<'a> {
    /// The candidate's backend.
    pub backend: &'a BackendId,
    /// The load and state of the backend at the decision, and its values for this prompt.
    pub candidate: &'a Candidate,
    /// Predicted time from sending the request to the first output, in seconds.
    pub ttft: f64,
    /// The value by which `kv_aware` compares candidates: the sum of `terms`, per unit of weight.
    pub cost: f64,
    /// The parts of `cost`, in seconds.
    pub terms: CostTerms,
}

impl RoutingDecision {
    /// Maximum number of candidates that a decision records.
    pub const MAX_RECORDED_CANDIDATES: usize = 16;

    /// Records the choice that a policy made in `context`. The positions of the candidates are indexes into
    /// `fleet`.
    pub fn new(
        mut context: RoutingContext,
        choice: PolicyChoice,
        condition: BackendCondition,
        fleet: &Arc<[BackendId]>,
    ) -> Self {
        let (index, omitted) = context.retain_best(choice.index, Self::MAX_RECORDED_CANDIDATES);
        let choice = PolicyChoice { index, ..choice };
        Self {
            routing_context: context,
            selection: choice,
            backend_condition: condition,
            backend_ids: fleet.clone(),
            omitted_candidates: omitted,
            excluded: Box::default(),
        }
    }

    /// The name of the policy that selected the backend.
    pub const fn policy(&self) -> &'static str {
        self.routing_context.policy().name()
    }

    /// Reason of the choice, from a closed set.
    pub const fn reason(&self) -> &'static str {
        self.selection.reason
    }

    /// The picked candidate, with its predictions.
    pub fn selected(&self) -> PredictedCandidate<'_> {
        self.predict(&self.routing_context.candidates()[self.selection.index])
    }

    /// The selected candidate without its predictions, whose computation takes time.
    pub fn selected_candidate(&self) -> &Candidate {
        &self.routing_context.candidates()[self.selection.index]
    }

    /// The backends of the route that were no candidates, each with the reason.
    pub fn excluded_backends(&self) -> impl Iterator<Item = (&BackendId, &'static str)> {
        let name = |(position, reason): &(usize, &'static str)| {
            Some((self.backend_ids.get(*position)?, *reason))
        };
        self.excluded.iter().filter_map(name)
    }

    /// Number of candidates that the policy saw.
    pub fn candidate_count(&self) -> usize {
        self.routing_context.candidates().len() + self.omitted_candidates
    }

    /// The highest predicted number of cached prompt tokens among the recorded candidates.
    pub fn max_cached_tokens(&self) -> f64 {
        self.routing_context
            .candidates()
            .iter()
            .map(|candidate| candidate.cached)
            .fold(0.0, f64::max)
    }

    /// Number of prompt tokens that the selected backend must compute although a recorded candidate probably
    /// has cached them.
    pub fn cache_regret(&self) -> f64 {
        (self.max_cached_tokens() - self.selected_candidate().cached).max(0.0)
    }

    /// The recorded candidates by ascending cost.
    pub fn ranked_candidates(&self) -> Vec<PredictedCandidate<'_>> {
        let candidates = self.routing_context.candidates().iter();
        let mut ranked: Vec<_> = candidates
            .map(|candidate| self.predict(candidate))
            .collect();
        ranked.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        ranked
    }

    fn predict<'a>(&'a self, candidate: &'a Candidate) -> PredictedCandidate<'a> {
        let terms = self.routing_context.cost_terms(candidate);
        PredictedCandidate {
            backend: &self.backend_ids[candidate.position],
            candidate,
            ttft: terms.ttft,
            cost: terms.cost(),
            terms,
        }
    }
}

impl PredictedCandidate<'_> {
    /// Whether both candidates are the same backend and rank.
    pub fn is_same(&self, other: &Self) -> bool {
        self.candidate.target() == other.candidate.target()
    }
}
