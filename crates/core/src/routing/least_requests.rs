//! The fewest requests in flight for the replica's weight, as far as this gateway knows. It needs
//! nothing from the replicas, and knows nothing of how long their requests are. A replica whose oldest
//! request is overdue comes last.

use super::{Ask, Candidate, Choice, load_if_not_overdue, lowest};

pub(super) fn pick(candidates: &[Candidate], ask: &Ask) -> Choice {
    Choice {
        index: lowest(candidates, &candidates.iter().map(load_if_not_overdue), 0.0, ask.sequence),
        reason: "fewest_requests",
    }
}
