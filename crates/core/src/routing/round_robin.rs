//! One after the other, as often as their weights say. The question's own number is the only state
//! there is.

use super::{Ask, Candidate, Choice, at_weight};

pub(super) fn pick(candidates: &[Candidate], ask: &Ask) -> Choice {
    Choice { index: at_weight(candidates, ask.sequence), reason: "turn" }
}
