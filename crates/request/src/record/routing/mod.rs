//! The attempts of a request, the routing decision, and the condition and queue of the selected backend.

mod attempt;
mod backend_condition;
mod decision;
mod engine_queues;
#[cfg(test)]
mod tests;

pub use attempt::{Attempt, BY_PROXY, ErrorSource, FailoverDenialReason};
pub use backend_condition::{BackendCondition, Stall, WaitReports};
pub use decision::{PredictedCandidate, RoutingDecision};
pub use engine_queues::EngineQueues;
