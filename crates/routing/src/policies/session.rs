//! Policy `session`: the same backend for all requests of a session.
//!
//! The policy uses [weighted rendezvous hashing](crate::rendezvous_score), so a backend that is added or
//! removed moves only its own sessions. If the load of a backend is above the [bound](super::prefix_affinity),
//! the one with the next highest score is chosen. Requests without a session are routed by `least_requests`.

use super::least_requests;
use super::prefix_affinity::bound;
use super::selection::load;
use crate::{Candidate, PolicyChoice, RoutingRequest, rendezvous_score};

pub(crate) fn pick(candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
    let Some(session) = request.session else {
        return least_requests::pick(candidates, request);
    };
    let bound = bound(candidates);
    let preferred = highest_scored(candidates, session, |_| true);
    let within_bound = |candidate: &Candidate| load(candidate) <= bound;
    let index = highest_scored(candidates, session, within_bound).or(preferred);
    let reason = if index == preferred {
        "session"
    } else {
        "session_too_busy"
    };
    PolicyChoice {
        index: index.unwrap_or(0),
        reason,
    }
}

/// Index of the eligible candidate with the highest score for a session. `None`: no candidate is eligible.
pub(super) fn highest_scored(
    candidates: &[Candidate],
    session: u64,
    is_eligible: impl Fn(&Candidate) -> bool,
) -> Option<usize> {
    let eligible = candidates
        .iter()
        .enumerate()
        .filter(|(_, candidate)| is_eligible(candidate));
    let score =
        |candidate: &Candidate| rendezvous_score(candidate.key, session, candidate.weight.max(1));
    let scores = eligible.map(|(index, candidate)| (index, score(candidate)));
    scores
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(index, _)| index)
}
