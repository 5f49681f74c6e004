//! Token counts of the engine. Estimated counts are `None`.

mod decaying_rate;
mod fair_queue;
mod priority_classes;
mod queue;
mod queued_request;
#[cfg(test)]
mod selection_tests;
#[cfg(test)]
mod tests;

pub use priority_classes::{DEFAULT_CLASS, PriorityClasses};
pub use queue::AdmissionQueue;
pub use queued_request::{
    CapacityGroup, DequeuedRequest, EnqueueOutcome, ExhaustedGroups, QueuedRequest,
    QueuedRequestId, RejectedRequest, WaitingModel, longest_wait, retry_seconds,
};
