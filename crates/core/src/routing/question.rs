//! One question to a policy, and what is predicted of each of its candidates, whatever the policy
//! looks at itself.

use super::{Ask, Candidate, Choice, Policy, PolicyKind, kv_aware};

/// A policy, and what it is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    policy: Policy,
    candidates: Vec<Candidate>,
    ask: Ask,
    /// The place of the candidate that has the session's prompts, if the policy keeps sessions
    /// together.
    home: Option<usize>,
}

impl Question {
    /// A question to `policy`.
    pub fn new(policy: Policy, candidates: Vec<Candidate>, ask: Ask) -> Self {
        let keeps_sessions = matches!(policy.kind, PolicyKind::KvAware | PolicyKind::Session);
        let home = keeps_sessions.then(|| kv_aware::home(&candidates, &ask)).flatten();
        let home = home.map(|index| candidates[index].place);
        Self { policy, candidates, ask, home }
    }

    /// The policy.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Those that could take the request.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The policy's choice. `None` if there are no candidates.
    pub fn pick(&self) -> Option<Choice> {
        self.pick_by(&self.policy)
    }

    /// What another policy would choose.
    pub fn pick_by(&self, other: &Policy) -> Option<Choice> {
        other.pick(&self.candidates, &self.ask)
    }

    /// [`kv_aware::ttft`] of a candidate, in seconds.
    pub fn ttft(&self, candidate: &Candidate) -> f64 {
        let is_home = self.home == Some(candidate.place);
        kv_aware::ttft(&self.policy.kv_aware, candidate, is_home)
    }

    /// What `kv_aware` compares: the predicted time for each unit of weight.
    fn cost(&self, candidate: &Candidate) -> f64 {
        kv_aware::for_weight(self.ttft(candidate), candidate)
    }

    /// Forgets all candidates but one and those of the others that cost least, up to `most` of all.
    /// Where that one is then, and how many were forgotten.
    pub fn keep_best(&mut self, index: usize, most: usize) -> (usize, usize) {
        if self.candidates.len() <= most {
            // There may have been room for more, which had none themselves.
            self.candidates.shrink_to(most);
            return (index, 0);
        }
        let mut best = Vec::with_capacity(most);
        best.push((f64::NEG_INFINITY, index));
        for (other, candidate) in self.candidates.iter().enumerate() {
            // What is no number costs most.
            let cost = self.cost(candidate).min(f64::MAX);
            if other != index
                && (best.len() < most || best.last().is_some_and(|(last, _)| cost < *last))
            {
                best.truncate(most - 1);
                best.insert(best.partition_point(|(known, _)| *known <= cost), (cost, other));
            }
        }
        let kept: Vec<Candidate> = best.iter().map(|(_, index)| self.candidates[*index]).collect();
        let before = std::mem::replace(&mut self.candidates, kept).len();
        (0, before - self.candidates.len())
    }
}
