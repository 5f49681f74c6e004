//! Policy `random`: a random candidate, by weight.

use super::selection::index_at_weight;
use crate::{Candidate, PolicyChoice, RoutingRequest};

pub(crate) fn pick(candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
    PolicyChoice {
        index: index_at_weight(candidates, request.seed),
        reason: "random",
    }
}
