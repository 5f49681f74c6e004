//! The fewest requests in flight, as far as this gateway knows. It needs nothing from the
//! replicas, and knows nothing of how long their requests are.

use super::{Ask, Candidate, Choice, lowest};

pub(super) fn pick(candidates: &[Candidate], ask: &Ask) -> Choice {
    let loads = candidates.iter().map(|candidate| f64::from(candidate.in_flight));
    Choice { index: lowest(loads, ask.sequence), reason: "fewest_requests" }
}
