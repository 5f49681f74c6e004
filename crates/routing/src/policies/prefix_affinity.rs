//! Policy `prefix_affinity`: the backend with the longest cached prefix of the prompt.
//!
//! The policy falls back to `least_requests` in two cases: no backend has at least [`MIN_CACHED_SHARE`] of the
//! prompt, or all backends with the longest prefix are loaded above the bound.

use super::least_requests;
use super::selection::{load, lowest};
use crate::{Candidate, PolicyChoice, RoutingRequest};

/// Minimum share of a prompt, from 0 to 1, that a preferred backend must have in its cache.
const MIN_CACHED_SHARE: f64 = 0.1;
/// The factor of the mean load in the `bound` above which a backend is too busy (Mirrokni, Thorup and
/// Zadimoghaddam 2018: consistent hashing with bounded loads).
pub(super) const BOUNDED_LOAD_FACTOR: f64 = 1.25;

pub(crate) fn pick(candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
    let most = candidates
        .iter()
        .map(|candidate| candidate.cached)
        .fold(0.0, f64::max);
    if candidates
        .iter()
        .all(|candidate| candidate.cached < MIN_CACHED_SHARE * candidate.prompt)
    {
        return least_requests::pick(candidates, request);
    }
    let bound = bound(candidates);
    let is_best = |candidate: &Candidate| candidate.cached >= most && load(candidate) <= bound;
    if !candidates.iter().any(is_best) {
        return PolicyChoice {
            reason: "prefix_too_busy",
            ..least_requests::pick(candidates, request)
        };
    }
    let load_of_best = |candidate| {
        if is_best(candidate) {
            load(candidate)
        } else {
            f64::INFINITY
        }
    };
    let loads: Vec<f64> = candidates.iter().map(load_of_best).collect();
    PolicyChoice {
        index: lowest(candidates, &loads, request.sequence),
        reason: "cached_prefix",
    }
}

/// Load above which a backend is too busy: [`BOUNDED_LOAD_FACTOR`] × mean load + 1.
pub(super) fn bound(candidates: &[Candidate]) -> f64 {
    let loads: f64 = candidates.iter().map(load).sum();
    BOUNDED_LOAD_FACTOR * loads / candidates.len() as f64 + 1.0
}
