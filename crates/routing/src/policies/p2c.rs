//! Policy `p2c`: power of two choices (Mitzenmacher 2001). It draws two candidates at random and picks the one
//! with fewer requests in flight. Half of the load is the number of requests. The other half grows with their
//! prompt and expected output tokens.
//!
//! The load is almost as even as with the least loaded of all candidates, and gateways that decide at the same
//! time do not all pick the same backend. An overdue candidate loses to one that is not overdue.

use super::selection::{mean_tokens, request_load};
use crate::{Candidate, PolicyChoice, RoutingRequest};

pub(crate) fn pick(candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
    let count = candidates.len() as u64;
    let first = (request.seed % count) as usize;
    // The second candidate is drawn from the others, so that the two differ.
    let offset = (request.seed >> 32) % (count - 1) + 1;
    let second = ((request.seed % count + offset) % count) as usize;
    let mean_tokens = mean_tokens(candidates);
    let cost = |index: usize| request_load(&candidates[index], mean_tokens);
    let index = if cost(second) < cost(first) {
        second
    } else {
        first
    };
    PolicyChoice {
        index,
        reason: "fewer_of_two",
    }
}
