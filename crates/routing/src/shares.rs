//! The shares of requests that follow from the weights of backends. A policy that compares load picks among the
//! backends that have not had more than their share.
//!
//! ```text
//! share  = weight ÷ sum of the weights of the candidates
//! credit = Σ (share − 1 if the candidate was chosen), over the decisions in which it was a candidate
//! ```
//!
//! A candidate is within its share if its credit is at most `MAX_DEBT` requests below the mean. Because the
//! difference is bounded, each backend gets its share in the long run, and the policy can still follow prefixes
//! and load. The parts of a backend, such as data-parallel ranks, divide its weight.

use super::Candidate;

/// Units of a credit for one request.
const UNITS: f64 = 1e6;
/// Maximum number of requests that a backend may get ahead of its share.
const MAX_DEBT: f64 = 4.0 * UNITS;

pub(crate) fn are_equal(candidates: &[Candidate]) -> bool {
    candidates
        .windows(2)
        .all(|pair| pair[0].weight == pair[1].weight)
}

/// The indexes of the candidates that are at most [`MAX_DEBT`] requests ahead of their share. The weights must
/// differ.
pub(crate) fn within(candidates: &[Candidate]) -> Vec<usize> {
    let sum: f64 = candidates
        .iter()
        .map(|candidate| candidate.credit as f64)
        .sum();
    let least = sum / candidates.len() as f64 - MAX_DEBT;
    let is_within = |index: &usize| candidates[*index].credit as f64 >= least;
    (0..candidates.len()).filter(is_within).collect()
}

/// The changes of the credits by a decision, by the index of the candidate. Empty if all candidates have the
/// same weight.
pub fn credit_changes(candidates: &[Candidate], chosen: usize) -> Vec<i64> {
    if are_equal(candidates) {
        return Vec::new();
    }
    let parts = |candidate: &Candidate| {
        candidates
            .iter()
            .filter(|other| other.position == candidate.position)
            .count() as f64
    };
    let weight = |candidate: &Candidate| f64::from(candidate.weight.max(1)) / parts(candidate);
    let sum: f64 = candidates.iter().map(weight).sum();
    let change = |(index, candidate): (usize, &Candidate)| {
        let share = weight(candidate) / sum;
        let sent = if index == chosen { 1.0 } else { 0.0 };
        (UNITS * (share - sent)) as i64
    };
    candidates.iter().enumerate().map(change).collect()
}
