//! Where most of the prompt was sent before, if that is a good part of it and the replica has not
//! far more to do than the others; else the fewest requests.

use super::{Ask, Candidate, Choice, least_requests, load, lowest};

/// The least share of a prompt that is worth going after.
const WORTH: f64 = 0.1;
/// A replica is too busy with this many times the mean load (Mirrokni, Thorup and Zadimoghaddam
/// 2018: consistent hashing with bounded loads).
pub(super) const BOUND: f64 = 1.25;

pub(super) fn pick(candidates: &[Candidate], ask: &Ask) -> Choice {
    let most = candidates.iter().map(|candidate| candidate.cached).fold(0.0, f64::max);
    if candidates.iter().all(|candidate| candidate.cached < WORTH * candidate.prompt) {
        return least_requests::pick(candidates, ask);
    }
    let bound = bound(candidates);
    let is_best = |candidate: &Candidate| candidate.cached >= most && load(candidate) <= bound;
    if !candidates.iter().any(is_best) {
        return Choice { reason: "prefix_too_busy", ..least_requests::pick(candidates, ask) };
    }
    let loads = candidates.iter().map(|candidate| match candidate {
        best if is_best(best) => load(best),
        _ => f64::INFINITY,
    });
    Choice { index: lowest(candidates, &loads, 0.0, ask.sequence), reason: "cached_prefix" }
}

/// The load above which a replica is too busy.
pub(super) fn bound(candidates: &[Candidate]) -> f64 {
    let loads: f64 = candidates.iter().map(load).sum();
    BOUND * loads / candidates.len() as f64 + 1.0
}
