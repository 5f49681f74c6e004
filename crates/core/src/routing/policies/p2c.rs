//! Policy `p2c`: power of two choices (Mitzenmacher 2001). It draws two candidates at random and
//! picks the one with fewer requests in flight per unit of weight.
//!
//! The load is almost as even as with the best of all candidates, and gateways that decide at the
//! same time do not all pick the same backend. An overdue candidate loses to one that is not
//! overdue.

use super::selection::load_with_overdue_penalty;
use crate::routing::{Candidate, PolicyChoice, RoutingRequest};

pub(in crate::routing) fn pick(candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
    let count = candidates.len() as u64;
    let first = (request.seed % count) as usize;
    // The second is drawn from the other candidates, so the two always differ.
    let offset = (request.seed >> 32) % (count - 1) + 1;
    let second = ((request.seed % count + offset) % count) as usize;
    let cost = |index: usize| load_with_overdue_penalty(&candidates[index]);
    let index = if cost(second) < cost(first) { second } else { first };
    PolicyChoice { index, reason: "fewer_of_two" }
}
