//! Why a request went where it went: what was believed of every replica that it could have gone
//! to, what was predicted of each, and what other policies would have done.
//!
//! A decision is made for every request, so it is cheap: one allocation for the table, and one
//! more if policies are asked in shadow. The table is shared, never copied.

use super::{BackendId, Condition, RequestRecord, UsageSource};
use crate::routing::{Candidate, Choice, Policy, Question, kv_aware};
use std::sync::Arc;

/// Why a replica was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The policy.
    pub policy: &'static str,
    /// The winning reason, from a closed set.
    pub reason: &'static str,
    /// What the replica last said of itself.
    pub condition: Condition,
    /// The names of the fleet that it was made in.
    pub fleet: Arc<[BackendId]>,
    /// The replicas that it was chosen among. The chosen one is the first; of more than
    /// [`Decision::MOST`] the others that cost least are here.
    pub considered: Arc<[Considered]>,
    /// How many more there were.
    pub left_out: usize,
    /// What policies that are not obeyed would have chosen.
    pub shadow: Box<[Shadow]>,
}

/// A replica that could have been chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Considered {
    /// Its place in the fleet. Names have counts of who has them, which lie all over the memory.
    pub place: usize,
    /// What was believed of it then, for this prompt.
    pub candidate: Candidate,
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

    /// What was decided of a question, whose candidates have these places in the fleet.
    pub fn new(
        question: &Question<'_>,
        choice: Choice,
        condition: Condition,
        fleet: &Arc<[BackendId]>,
        places: &[usize],
    ) -> Self {
        let candidates = question.candidates();
        let considered = |index: usize| Considered {
            place: places[index],
            candidate: candidates[index],
            ttft: question.ttft(index),
        };
        let chosen = choice.index;
        let table = if candidates.len() > Self::MOST {
            best(question, chosen).iter().map(|index| considered(*index)).collect()
        } else {
            let chosen_first = |place: usize| match place {
                0 => chosen,
                place if place <= chosen => place - 1,
                place => place,
            };
            (0..candidates.len()).map(|place| considered(chosen_first(place))).collect()
        };
        Self {
            policy: question.policy().name(),
            reason: choice.reason,
            condition,
            fleet: fleet.clone(),
            considered: table,
            left_out: candidates.len().saturating_sub(Self::MOST),
            shadow: Box::default(),
        }
    }

    /// With what these policies would have chosen among the same candidates.
    pub fn with_shadow(
        self,
        question: &Question<'_>,
        policies: &[Policy],
        places: &[usize],
    ) -> Self {
        let Some(chosen) = self.chosen() else { return self };
        let shadow = policies.iter().filter_map(|policy| {
            let Choice { index, reason } = question.pick_by(policy)?;
            Some(Shadow {
                policy: policy.name(),
                reason,
                backend: self.fleet[places[index]].clone(),
                is_same: places[index] == chosen.place,
                regret: question.ttft(index) - chosen.ttft,
            })
        });
        Self { shadow: shadow.collect(), ..self }
    }

    /// The replica that was chosen.
    pub fn chosen(&self) -> Option<&Considered> {
        self.considered.first()
    }

    /// The name of a replica that was considered.
    pub fn name(&self, considered: &Considered) -> &BackendId {
        &self.fleet[considered.place]
    }

    /// All that were considered.
    pub fn candidates(&self) -> usize {
        self.considered.len() + self.left_out
    }

    /// Those that are kept, the one that costs least first.
    pub fn ranked(&self) -> Vec<&Considered> {
        let mut ranked: Vec<&Considered> = self.considered.iter().collect();
        ranked.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
        ranked
    }
}

/// The positions of the chosen candidate, and after it of those that cost least.
fn best(question: &Question<'_>, chosen: usize) -> [usize; Decision::MOST] {
    let mut best = [(f64::INFINITY, chosen); Decision::MOST];
    best[0].0 = f64::NEG_INFINITY;
    for (index, candidate) in question.candidates().iter().enumerate() {
        // What is no number costs most.
        let cost = kv_aware::for_weight(question.ttft(index), candidate).min(f64::MAX);
        if index != chosen && cost < best[Decision::MOST - 1].0 {
            let place = best.partition_point(|(known, _)| *known <= cost);
            best[place..].rotate_right(1);
            best[place] = (cost, index);
        }
    }
    best.map(|(_, index)| index)
}

impl Considered {
    /// What `kv_aware` compares: the predicted time for each unit of weight.
    pub fn cost(&self) -> f64 {
        kv_aware::for_weight(self.ttft, &self.candidate)
    }
}

// === impl RequestRecord ===

impl RequestRecord {
    /// What was believed of the replica that the request went to, when it was chosen.
    pub fn predicted(&self) -> Option<&Considered> {
        self.decision.as_ref()?.chosen()
    }

    /// Time to first token in the replica's view, and what it was predicted to be, in seconds.
    pub fn actual_and_predicted_ttft(&self) -> Option<(f64, f64)> {
        let predicted = self.predicted()?.ttft;
        let actual = self.upstream_ttft()?.as_secs_f64();
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
