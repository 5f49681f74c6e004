//! Policy `least_requests`: the fewest requests of this gateway in flight. Half of the load is the number of
//! requests. The other half grows with their prompt and expected output tokens.
//!
//! The policy needs no metrics of the backends. Overdue candidates come last.

use super::selection::{lowest, mean_tokens, request_load};
use crate::{Candidate, PolicyChoice, RoutingRequest};

pub(crate) fn pick(candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
    let mean_tokens = mean_tokens(candidates);
    let load = |candidate| request_load(candidate, mean_tokens);
    let loads: Vec<f64> = candidates.iter().map(load).collect();
    PolicyChoice {
        index: lowest(candidates, &loads, request.sequence),
        reason: "fewest_requests",
    }
}
