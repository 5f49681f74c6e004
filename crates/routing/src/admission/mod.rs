//! Admission queue: requests wait here while all backends that could serve them are full.
//!
//! ```text
//! order         highest class first; within a class tenants in turn, by granted tokens (fair
//!               queueing); within a tenant by the time of arrival + `TIME_PER_TOKEN` for each token
//!               of work. A later request goes first if the prompt of the first one is in the cache of a
//!               full backend, and the later request fits the backend with capacity better
//! full queue    a new request may displace the last request of the tenant with the most requests
//!               in the lowest class. It does so if it has a higher class, or if it has the same
//!               class and its tenant has fewer requests, including the new request
//! retry_after   ⌈queue position ÷ grants per second⌉ seconds, from 1 to 60. 1 if a gate held the request to its end
//! ```
//!
//! Requests that no backend can serve now wait in the same queue. They do not delay other requests for the same
//! model that a backend can serve, because requests wait in groups that the same backends can serve. If the
//! queue is full, a new request that a backend could serve displaces them, unless their class is higher.
//!
//! Priority between classes is strict: a higher class is always served first, and a request does not change its
//! class while it waits. If the class rose with the wait, a flood of requests of the lowest class would
//! overtake the highest class under overload, which is when classes matter. Requests of a low class do not wait
//! forever, because each wait ends at a deadline with a response.

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
