//! Policy `session`: the same backend for all requests of a session.
//!
//! It uses weighted rendezvous hashing (highest random weight, Thaler and Ravishankar 1996): a
//! backend that is added or removed moves only its own sessions. A backend whose load is above the
//! [bound](super::prefix_affinity) is passed over for the one with the next highest score. Requests
//! without a session are routed by `least_requests`.

use super::least_requests;
use super::prefix_affinity::bound;
use super::selection::load;
use crate::{Candidate, PolicyChoice, RoutingRequest, mix, unit};

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
    let scores = eligible.map(|(index, candidate)| (index, score(candidate, session)));
    scores
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(index, _)| index)
}

/// The score of a candidate: −weight ÷ ln(u), where u in `[0, 1)` is a hash of session and backend. With
/// this score, each backend is first for a share of the sessions in proportion to its weight.
fn score(candidate: &Candidate, session: u64) -> f64 {
    let uniform = unit(mix(session ^ candidate.key));
    -f64::from(candidate.weight.max(1)) / uniform.max(f64::MIN_POSITIVE).ln()
}
