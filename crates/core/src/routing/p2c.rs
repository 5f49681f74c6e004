//! Power of two choices (Mitzenmacher 2001): draw two replicas, take the one with fewer requests.
//! Nearly as even as taking the best of all, and it cannot herd.
//! A replica whose oldest request is overdue loses to one where that is not so.

use super::{Ask, Candidate, Choice, load_if_not_overdue};

pub(super) fn pick(candidates: &[Candidate], ask: &Ask) -> Choice {
    let count = candidates.len() as u64;
    let first = (ask.seed % count) as usize;
    // The second is any of the others, so that the two differ.
    let offset = (ask.seed >> 32) % (count - 1) + 1;
    let second = ((ask.seed % count + offset) % count) as usize;
    let cost = |index: usize| load_if_not_overdue(&candidates[index]);
    let index = if cost(second) < cost(first) { second } else { first };
    Choice { index, reason: "fewer_of_two" }
}
