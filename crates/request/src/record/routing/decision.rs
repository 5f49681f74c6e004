//! Routing decisions: the loads and predictions of every candidate, the selected candidate, and the
//! choices of shadow policies.
//!
//! The gateway makes a decision for every request, so a decision must be cheap. It stores the input
//! of the policy, and readers compute the predictions from that input again. A decision is shared,
//! never copied.

use super::backend_condition::BackendCondition;
use std::sync::Arc;
use tokenweir_engine::address::BackendId;
use tokenweir_routing::kv_aware::CostTerms;
use tokenweir_routing::{Candidate, Policy, PolicyChoice, RoutingContext};

/// The recorded result of a routing policy, with its input.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutingDecision {
    /// The input of the policy. If there were more than
    /// [`RoutingDecision::MAX_RECORDED_CANDIDATES`] candidates, the context contains the selected
    /// candidate and the other candidates of the lowest cost.
    routing_context: RoutingContext,
    /// The choice of the policy. Its index is an index into the recorded candidates.
    selection: PolicyChoice,
    /// The condition of the selected backend at the decision.
    pub backend_condition: BackendCondition,
    /// Names of the backends of the pool, indexed by [`Candidate::position`].
    backend_ids: Arc<[BackendId]>,
    /// Number of candidates that are not recorded.
    pub omitted_candidates: usize,
    /// The choices of shadow policies.
    pub shadow_decisions: Box<[ShadowDecision]>,
    /// The backends of the route that were no candidates: their positions, and why in a few words.
    /// At most [`RoutingDecision::MAX_RECORDED_CANDIDATES`].
    pub excluded: Box<[(usize, &'static str)]>,
}

/// A recorded candidate of a decision, with its predictions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedCandidate<'a> {
    /// Name of the backend.
    pub backend: &'a BackendId,
    /// The load and state of the backend at the decision, and its values for this prompt.
    pub candidate: &'a Candidate,
    /// Predicted time from sending the request to the first output, in seconds.
    pub ttft: f64,
    /// The value by which `kv_aware` compares candidates: the sum of `terms`, per unit of weight.
    pub cost: f64,
    /// The terms of the cost in seconds.
    pub terms: CostTerms,
}

/// The choice of a shadow policy. A shadow policy is evaluated, but the request does not follow its
/// choice.
#[derive(Debug, Clone, PartialEq)]
pub struct ShadowDecision {
    /// Name of the shadow policy.
    pub policy: &'static str,
    /// Reason of the choice, from a closed set.
    pub reason: &'static str,
    /// The backend that the shadow policy chose.
    pub backend: BackendId,
    /// Whether the shadow policy chose the backend and the rank that the active policy selected.
    pub is_same: bool,
    /// Predicted TTFT of the shadow policy's choice minus the predicted TTFT of the selected
    /// backend, in seconds. Positive if the choice of the shadow policy would have been slower.
    pub regret: f64,
    /// Prompt tokens that are probably cached at the shadow policy's choice.
    pub cached: f64,
}

// === impl RoutingDecision ===

impl RoutingDecision {
    /// Greatest number of candidates that a decision records.
    pub const MAX_RECORDED_CANDIDATES: usize = 16;

    /// Records the choice that a policy made in `context`, and evaluates the shadow policies on the
    /// same context. The positions of the candidates are indices into `fleet`.
    pub fn new(
        mut context: RoutingContext,
        choice: PolicyChoice,
        condition: BackendCondition,
        fleet: &Arc<[BackendId]>,
        shadow: &[Policy],
    ) -> Self {
        let shadow = shadow
            .iter()
            .filter_map(|policy| ShadowDecision::evaluate(policy, &context, choice, fleet));
        let shadow = shadow.collect();
        let (index, omitted) = context.retain_best(choice.index, Self::MAX_RECORDED_CANDIDATES);
        let choice = PolicyChoice { index, ..choice };
        Self {
            routing_context: context,
            selection: choice,
            backend_condition: condition,
            backend_ids: fleet.clone(),
            omitted_candidates: omitted,
            shadow_decisions: shadow,
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

    /// The selected candidate.
    pub fn selected(&self) -> PredictedCandidate<'_> {
        self.predict(&self.routing_context.candidates()[self.selection.index])
    }

    /// The selected candidate without its predictions, which take time to compute.
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

    /// Number of candidates, including those that are not recorded.
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

    /// For the policy that selected the backend and for each shadow policy: its name, and the number of
    /// prompt tokens that its choice must compute although a recorded candidate probably has them cached.
    pub fn cache_regrets(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let best = self.max_cached_tokens();
        let selected = self.routing_context.candidates()[self.selection.index].cached;
        let shadows = self.shadow_decisions.iter().map(|shadow| (shadow.policy, shadow.cached));
        let choices = std::iter::once((self.policy(), selected)).chain(shadows);
        choices.map(move |(policy, cached)| (policy, (best - cached).max(0.0)))
    }

    /// The recorded candidates by ascending cost.
    pub fn ranked_candidates(&self) -> Vec<PredictedCandidate<'_>> {
        let candidates = self.routing_context.candidates().iter();
        let mut ranked: Vec<_> = candidates.map(|candidate| self.predict(candidate)).collect();
        ranked.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        ranked
    }

    fn predict<'a>(&'a self, candidate: &'a Candidate) -> PredictedCandidate<'a> {
        let terms = self.routing_context.cost_terms(candidate);
        PredictedCandidate {
            backend: &self.backend_ids[candidate.position],
            candidate,
            ttft: terms.ttft,
            cost: terms.cost(candidate),
            terms,
        }
    }
}

// === impl PredictedCandidate, ShadowDecision ===

impl PredictedCandidate<'_> {
    /// Whether both candidates are the same backend and rank.
    pub fn is_same(&self, other: &Self) -> bool {
        self.candidate.target() == other.candidate.target()
    }
}

impl ShadowDecision {
    fn evaluate(
        policy: &Policy,
        context: &RoutingContext,
        choice: PolicyChoice,
        fleet: &[BackendId],
    ) -> Option<Self> {
        let PolicyChoice { index, reason } = context.pick_with(policy)?;
        let [shadow_candidate, selected] =
            [index, choice.index].map(|index| &context.candidates()[index]);
        Some(Self {
            policy: policy.name(),
            reason,
            backend: fleet[shadow_candidate.position].clone(),
            is_same: index == choice.index,
            regret: context.ttft(shadow_candidate) - context.ttft(selected),
            cached: shadow_candidate.cached,
        })
    }
}
