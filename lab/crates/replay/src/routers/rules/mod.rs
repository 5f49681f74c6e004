//! Rules that no product ships: from papers, with few terms, or with knowledge that no gateway has.

mod dual_map;
mod formulas;
mod lookahead;

pub(super) use dual_map::DualMapRouter;
pub(super) use formulas::{exact_state, five_terms};
pub(super) use lookahead::LookaheadRouter;
