//! Policy `round_robin`: each candidate in turn, by weight. Its only state is the sequence number
//! of the decision.

use super::selection::index_at_weight;
use crate::{Candidate, PolicyChoice, RoutingRequest};

pub(crate) fn pick(candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
    PolicyChoice {
        index: index_at_weight(candidates, request.sequence),
        reason: "turn",
    }
}
