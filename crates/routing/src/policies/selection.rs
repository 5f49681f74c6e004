//! Functions that several policies use to compare candidates.

use crate::Candidate;

/// Costs within this relative and absolute (seconds) tolerance of the lowest cost are ties, because predictions
/// are not more accurate.
const TIE_TOLERANCE: (f64, f64) = (0.05, 0.005);

/// The maximum cost that ties with the lowest cost `least`.
pub fn tie_limit(least: f64) -> f64 {
    least + TIE_TOLERANCE.0 * least + TIE_TOLERANCE.1
}

/// The lowest of `costs`. Infinity: `costs` is empty.
pub(super) fn least(costs: impl Iterator<Item = f64>) -> f64 {
    costs.fold(
        f64::INFINITY,
        |least, cost| if cost < least { cost } else { least },
    )
}

/// Index of a candidate with the lowest cost. If several tie, [`longest_idle`] decides.
pub(super) fn lowest(candidates: &[Candidate], costs: &[f64], turn: u64) -> usize {
    let costs = costs.iter().copied();
    longest_idle(candidates, costs.clone(), least(costs), turn)
}

/// Index of a candidate with a cost of at most `limit`. `costs`: by index of the candidate.
///
/// Among such candidates, the one that has been idle longest wins. So idle backends share the requests evenly,
/// and every pooled connection is used from time to time. Candidates that have been idle equally long take
/// turns by `turn`.
pub(super) fn longest_idle(
    candidates: &[Candidate],
    costs: impl Iterator<Item = f64> + Clone,
    limit: f64,
    turn: u64,
) -> usize {
    let mut longest = 0.0;
    let mut count = 0_u64;
    let mut first = 0;
    for (index, (candidate, cost)) in candidates.iter().zip(costs.clone()).enumerate() {
        if cost <= limit && candidate.idle_seconds >= longest {
            if count == 0 || candidate.idle_seconds > longest {
                (longest, count, first) = (candidate.idle_seconds, 0, index);
            }
            count += 1;
        }
    }
    if count < 2 {
        return first;
    }
    let is_best = |(_, (candidate, cost)): &(usize, (&Candidate, f64))| {
        *cost <= limit && candidate.idle_seconds >= longest
    };
    let mut best = candidates.iter().zip(costs).enumerate().filter(is_best);
    best.nth((turn % count) as usize)
        .map_or(first, |(index, _)| index)
}

/// Requests in flight per unit of weight, including the request to be routed.
pub(super) fn load(candidate: &Candidate) -> f64 {
    f64::from(candidate.in_flight + 1) / f64::from(candidate.weight.max(1))
}

/// Mean tokens of the requests in flight at all candidates. 0: no request is in flight.
pub(super) fn mean_tokens(candidates: &[Candidate]) -> f64 {
    let tokens: f64 = candidates
        .iter()
        .map(|candidate| candidate.tokens_in_flight)
        .sum();
    let requests: u32 = candidates.iter().map(|candidate| candidate.in_flight).sum();
    tokens / f64::from(requests.max(1))
}

/// Load in requests, including the request to be routed. The share [`TOKEN_SHARE`] of the load is the number of
/// tokens in flight ÷ `mean_tokens`, and the rest is the number of requests in flight. An overdue candidate has
/// a higher load than all others.
pub(super) fn request_load(candidate: &Candidate, mean_tokens: f64) -> f64 {
    let requests = f64::from(candidate.in_flight);
    let by_tokens = if mean_tokens > 0.0 {
        candidate.tokens_in_flight / mean_tokens
    } else {
        requests
    };
    let load = 1.0 + (1.0 - TOKEN_SHARE) * requests + TOKEN_SHARE * by_tokens;
    let overdue = if candidate.overdue > 0.0 {
        OVERDUE_PENALTY
    } else {
        0.0
    };
    load + overdue
}

/// Share of the load that counts tokens. A share of 1 would ignore the fixed cost of a request.
const TOKEN_SHARE: f64 = 0.5;
/// Load added to an overdue candidate: more requests than any backend has in flight.
const OVERDUE_PENALTY: f64 = 1e9;

/// Index of the candidate at `position` if the weights are laid end to end. `position` is taken modulo the sum
/// of the weights.
pub(super) fn index_at_weight(candidates: &[Candidate], position: u64) -> usize {
    let total: u64 = candidates
        .iter()
        .map(|candidate| u64::from(candidate.weight.max(1)))
        .sum();
    let mut rest = position % total.max(1);
    for (index, candidate) in candidates.iter().enumerate() {
        let weight = u64::from(candidate.weight.max(1));
        if rest < weight {
            return index;
        }
        rest -= weight;
    }
    0
}
