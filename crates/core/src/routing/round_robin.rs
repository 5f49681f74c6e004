//! Policy `round_robin`: each candidate in turn, by weight. Its only state is the sequence number
//! of the decision.

use super::{Candidate, PolicyChoice, RoutingRequest, index_at_weight};

pub(super) fn pick(candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
    PolicyChoice { index: index_at_weight(candidates, request.sequence), reason: "turn" }
}
