//! The input of a policy besides the candidates, and its choice.

/// The input of a policy besides the candidates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoutingRequest {
    /// Sequence number of the decision, for round robin and for alternating between equal candidates.
    pub sequence: u64,
    /// Random number, for the policies that need one.
    pub seed: u64,
    /// Hash of the session of the request. `None`: the request names no session.
    pub session: Option<u64>,
}

/// The candidate that a policy chose, and the reason of the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyChoice {
    /// Index of the chosen backend among the candidates.
    pub index: usize,
    /// Why the policy chose the candidate: one of [`REASONS`](super::REASONS).
    pub reason: &'static str,
}
