//! Why a request went where it went: what was believed of every replica that it could have gone
//! to, what was predicted of each, and what other policies would have done.
//!
//! A decision is made for every request, so it is cheap: it keeps what the policy was asked as it
//! was, and predictions are made again by whoever reads it. It is shared, never copied.

use super::{BackendId, Condition, RequestRecord, UsageSource};
use crate::routing::{Candidate, Choice, Policy, Question, kv_aware};
use std::sync::Arc;

/// Why a replica was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What was asked. Of more than [`Decision::MOST`] candidates the chosen one is here and the
    /// others that cost least.
    question: Question,
    choice: Choice,
    /// What the replica last said of itself.
    pub condition: Condition,
    /// The names of the fleet that it was made in.
    fleet: Arc<[BackendId]>,
    /// How many more there were.
    pub left_out: usize,
    /// What policies that are not obeyed would have chosen.
    pub shadow: Box<[Shadow]>,
}

/// A replica that could have been chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Considered<'a> {
    /// Its name.
    pub backend: &'a BackendId,
    /// What was believed of it then, for this prompt.
    pub candidate: &'a Candidate,
    /// The predicted time from sending the request there to its first output, in seconds.
    pub ttft: f64,
}

/// What a policy that is not obeyed would have chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Shadow {
    /// The policy.
    pub policy: &'static str,
    /// Its reason.
    pub reason: &'static str,
    /// The replica that it would have chosen.
    pub backend: BackendId,
    /// Whether that is the one that was chosen.
    pub is_same: bool,
    /// Predicted time to first token there less that at the chosen one, in seconds: more than 0
    /// if it would have been slower.
    pub regret: f64,
}

// === impl Decision ===

impl Decision {
    /// Most candidates of one decision that are kept.
    pub const MOST: usize = 16;

    /// What was decided of a question, whose candidates have their places among these names; and
    /// what policies in shadow would have chosen among them.
    pub fn new(
        mut question: Question,
        choice: Choice,
        condition: Condition,
        fleet: &Arc<[BackendId]>,
        shadow: &[Policy],
    ) -> Self {
        let shadow =
            shadow.iter().filter_map(|policy| Shadow::of(policy, &question, choice, fleet));
        let shadow = shadow.collect();
        let (index, left_out) = question.keep_best(choice.index, Self::MOST);
        let choice = Choice { index, ..choice };
        Self { question, choice, condition, fleet: fleet.clone(), left_out, shadow }
    }

    /// The name of the policy.
    pub const fn policy(&self) -> &'static str {
        self.question.policy().name()
    }

    /// The winning reason, from a closed set.
    pub const fn reason(&self) -> &'static str {
        self.choice.reason
    }

    /// The replica that was chosen.
    pub fn chosen(&self) -> Considered<'_> {
        self.considered(&self.question.candidates()[self.choice.index])
    }

    /// How many there were to choose among.
    pub fn candidates(&self) -> usize {
        self.question.candidates().len() + self.left_out
    }

    /// The most prompt tokens that one of those that are kept was believed to have cached.
    pub fn most_cached(&self) -> f64 {
        self.question.candidates().iter().map(|candidate| candidate.cached).fold(0.0, f64::max)
    }

    /// Those that are kept, the one that costs least first.
    pub fn ranked(&self) -> Vec<Considered<'_>> {
        let candidates = self.question.candidates().iter();
        let mut ranked: Vec<_> = candidates.map(|candidate| self.considered(candidate)).collect();
        ranked.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
        ranked
    }

    fn considered<'a>(&'a self, candidate: &'a Candidate) -> Considered<'a> {
        Considered {
            backend: &self.fleet[candidate.place],
            candidate,
            ttft: self.question.ttft(candidate),
        }
    }
}

// === impl Considered, Shadow ===

impl Considered<'_> {
    /// What `kv_aware` compares: the predicted time for each unit of weight.
    pub fn cost(&self) -> f64 {
        kv_aware::for_weight(self.ttft, self.candidate)
    }

    /// Whether the other is this replica.
    pub const fn is(&self, other: &Self) -> bool {
        self.candidate.place == other.candidate.place
    }
}

impl Shadow {
    fn of(
        policy: &Policy,
        question: &Question,
        choice: Choice,
        fleet: &[BackendId],
    ) -> Option<Self> {
        let Choice { index, reason } = question.pick_by(policy)?;
        let [its, chosen] = [index, choice.index].map(|index| &question.candidates()[index]);
        Some(Self {
            policy: policy.name(),
            reason,
            backend: fleet[its.place].clone(),
            is_same: its.place == chosen.place,
            regret: question.ttft(its) - question.ttft(chosen),
        })
    }
}

// === impl RequestRecord ===

impl RequestRecord {
    /// What was believed of the replica that the request went to, when it was chosen.
    pub fn predicted(&self) -> Option<Considered<'_>> {
        Some(self.decision.as_ref()?.chosen())
    }

    /// Time to first token in the replica's view, and what it was predicted to be, in seconds.
    pub fn actual_and_predicted_ttft(&self) -> Option<(f64, f64)> {
        let actual = self.upstream_ttft()?.as_secs_f64();
        let predicted = self.predicted()?.ttft;
        predicted.is_finite().then_some((actual, predicted))
    }

    /// Cached prompt tokens that the engine reported, and how many were predicted. `None` if it
    /// did not report any count of them.
    pub fn reported_and_predicted_cached(&self) -> Option<(u64, f64)> {
        let is_exact = self.observed.usage_source == UsageSource::Exact;
        let reported = self.observed.usage.cached.filter(|_| is_exact)?;
        let predicted = self.predicted()?.candidate.cached;
        predicted.is_finite().then_some((reported, predicted))
    }
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
