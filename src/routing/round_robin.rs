//! One after the other. The question's own number is the only state there is.

use super::{Ask, Candidate, Choice};

pub(super) fn pick(candidates: &[Candidate], ask: &Ask) -> Choice {
    let index = (ask.sequence % candidates.len() as u64) as usize;
    Choice { index, reason: "turn" }
}
