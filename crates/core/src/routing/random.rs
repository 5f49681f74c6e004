//! Policy `random`: a random candidate, by weight.

use super::{Candidate, PolicyChoice, RoutingRequest, index_at_weight};

pub(super) fn pick(candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
    PolicyChoice { index: index_at_weight(candidates, request.seed), reason: "random" }
}
