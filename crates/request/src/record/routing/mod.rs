//! The attempts of a request, the routing decision, and the condition of the selected backend.

mod attempt;
mod backend_condition;
mod continuation;

mod decision;
mod prefill_legs;
#[cfg(test)]
mod tests;

pub use attempt::{Attempt, FailoverDenialReason};
pub use backend_condition::{BackendCondition, Stall, WaitReports};
pub use continuation::{Continuation, Continuations};
pub use decision::{PredictedCandidate, RoutingDecision};
pub use prefill_legs::{PredictedTtfts, PrefillLegs};
