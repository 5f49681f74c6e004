//! Any replica, as often as their weights say.

use super::{Ask, Candidate, Choice, at_weight};

pub(super) fn pick(candidates: &[Candidate], ask: &Ask) -> Choice {
    Choice { index: at_weight(candidates, ask.seed), reason: "random" }
}
