//! Policy `least_requests`: the fewest requests of this gateway in flight per unit of weight.
//!
//! It needs no metrics of the backends and ignores how long requests are. An overdue candidate
//! comes after all others.

use super::selection::{load_with_overdue_penalty, lowest};
use crate::routing::{Candidate, PolicyChoice, RoutingRequest};

pub(in crate::routing) fn pick(candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
    PolicyChoice {
        index: lowest(
            candidates,
            &candidates.iter().map(load_with_overdue_penalty),
            0.0,
            request.sequence,
        ),
        reason: "fewest_requests",
    }
}
