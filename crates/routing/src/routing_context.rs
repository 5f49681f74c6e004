//! One routing decision: a policy, its input, and the predicted TTFT of each candidate. The TTFT is predicted
//! under every policy, even if the policy does not use it.

use super::kv_aware::{CostTerms, FleetLoad};
use super::{Candidate, Policy, PolicyChoice, PolicyKind, RoutingRequest, kv_aware};

/// One routing decision: a policy, the candidates and the request.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutingContext {
    policy: Policy,
    candidates: Vec<Candidate>,
    request: RoutingRequest,
    /// The backend and the rank to which the session of the request is hashed. `None`: the request has no
    /// session, or the policy has no session affinity.
    session_target: Option<(usize, Option<u32>)>,
    /// The mean load of all candidates, before [`Self::retain_best`] removes some.
    fleet_load: FleetLoad,
}

impl RoutingContext {
    /// Prepares the decision of `policy` among `candidates` for `request`.
    pub fn new(policy: Policy, candidates: Vec<Candidate>, request: RoutingRequest) -> Self {
        let has_affinity = matches!(policy.kind, PolicyKind::KvAware | PolicyKind::Session);
        let session_index = has_affinity
            .then(|| kv_aware::home(&candidates, &request))
            .flatten();
        let session_target = session_index.map(|index| candidates[index].target());
        let fleet_load = FleetLoad::new(&candidates);
        Self {
            policy,
            candidates,
            request,
            session_target,
            fleet_load,
        }
    }

    /// The policy that picks the backend.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The backends that the policy may pick.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The choice of the policy. `None`: no candidates.
    pub fn pick(&self) -> Option<PolicyChoice> {
        self.pick_with(&self.policy)
    }

    /// The choice that another policy would make.
    pub fn pick_with(&self, other: &Policy) -> Option<PolicyChoice> {
        other.pick(&self.candidates, &self.request)
    }

    /// Predicted TTFT of a candidate in seconds, see [`kv_aware::ttft`].
    pub fn ttft(&self, candidate: &Candidate) -> f64 {
        kv_aware::ttft(
            &self.policy.kv_aware,
            candidate,
            self.is_session_candidate(candidate),
        )
    }

    /// The terms of the cost that `kv_aware` compares.
    pub fn cost_terms(&self, candidate: &Candidate) -> CostTerms {
        let is_session_candidate = self.is_session_candidate(candidate);
        kv_aware::terms(
            &self.policy.kv_aware,
            candidate,
            is_session_candidate,
            &self.fleet_load,
        )
    }

    /// The cost that `kv_aware` compares.
    pub fn cost(&self, candidate: &Candidate) -> f64 {
        self.cost_terms(candidate).cost()
    }

    fn is_session_candidate(&self, candidate: &Candidate) -> bool {
        self.session_target == Some(candidate.target())
    }

    /// Keeps the candidate at `index` and the cheapest other candidates, `limit` in all. Returns the new index
    /// of the candidate that was at `index`, and the number of removed candidates.
    pub fn retain_best(&mut self, index: usize, limit: usize) -> (usize, usize) {
        if self.candidates.len() <= limit {
            // The capacity of the vector may exceed `limit`.
            self.candidates.shrink_to(limit);
            return (index, 0);
        }
        let mut best = Vec::with_capacity(limit);
        best.push((f64::NEG_INFINITY, index));
        for (other, candidate) in self.candidates.iter().enumerate() {
            // NaN counts as the highest cost.
            let cost = self.cost(candidate).min(f64::MAX);
            if other != index
                && (best.len() < limit || best.last().is_some_and(|(last, _)| cost < *last))
            {
                best.truncate(limit - 1);
                best.insert(
                    best.partition_point(|(known, _)| *known <= cost),
                    (cost, other),
                );
            }
        }
        let retained: Vec<Candidate> = best
            .iter()
            .map(|(_, index)| self.candidates[*index])
            .collect();
        let count_before = std::mem::replace(&mut self.candidates, retained).len();
        (0, count_before - self.candidates.len())
    }
}
