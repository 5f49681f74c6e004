//! Routing rules that no product has: rules from papers, rules with few terms, and a rule that uses the true
//! state of the engines, which no gateway can get.

mod dual_map;
mod formulas;
mod lookahead;

pub(super) use dual_map::DualMapRouter;
pub(super) use formulas::{exact_state, five_terms};
pub(super) use lookahead::LookaheadRouter;
