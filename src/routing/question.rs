//! One question to a policy, and what is predicted of each of its candidates, whatever the policy
//! looks at itself.

use super::{Ask, Candidate, Choice, Policy, PolicyKind, kv_aware};

/// A policy, and what it is asked.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    policy: &'a Policy,
    candidates: &'a [Candidate],
    ask: &'a Ask,
    /// The candidate that has the session's prompts, if the policy keeps sessions together.
    home: Option<usize>,
}

impl<'a> Question<'a> {
    /// A question to `policy`.
    pub fn new(policy: &'a Policy, candidates: &'a [Candidate], ask: &'a Ask) -> Self {
        let keeps_sessions = matches!(policy.kind, PolicyKind::KvAware | PolicyKind::Session);
        let home = keeps_sessions.then(|| kv_aware::home(candidates, ask)).flatten();
        Self { policy, candidates, ask, home }
    }

    /// The policy.
    pub const fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Those that could take the request.
    pub const fn candidates(&self) -> &'a [Candidate] {
        self.candidates
    }

    /// The policy's choice. `None` if there are no candidates.
    pub fn pick(&self) -> Option<Choice> {
        self.policy.pick(self.candidates, self.ask)
    }

    /// What another policy would choose.
    pub fn pick_by(&self, other: &Policy) -> Option<Choice> {
        other.pick(self.candidates, self.ask)
    }

    /// [`kv_aware::ttft`] of the candidate at a position, in seconds.
    pub fn ttft(&self, index: usize) -> f64 {
        let candidate = &self.candidates[index];
        kv_aware::ttft(&self.policy.kv_aware, candidate, self.home == Some(index))
    }
}
