//! A request in the admission queue, and the results of adding and removing it.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// A group of requests that the same backends can serve. They wait for the same capacity.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CapacityGroup {
    /// Requested model. `None`: the clients named no model.
    pub model: Option<Arc<str>>,
    /// Hash of the set of backends that can serve the requests, for example because their context is long
    /// enough. 0: all backends of the model.
    pub backends: u64,
}

/// A request that waits for a backend.
#[derive(Debug)]
pub struct QueuedRequest<T> {
    /// Index of the priority class. 0 is the highest class.
    pub class: usize,
    /// Id of the tenant. The queue is shared fairly among tenants.
    pub tenant: u64,
    /// The group of the request.
    pub group: CapacityGroup,
    /// Tokens that the request may occupy in a KV cache. A grant charges them to the tenant.
    pub tokens: u64,
    /// Tokens that the engine has to compute for the request: uncached prompt and expected output.
    pub work: u64,
    /// Whether the client already has a part of the response, from a backend that failed. Such a request is
    /// always queued, as the first of its tenant, and is never displaced. It must avoid the backend that
    /// failed, so other requests may have capacity although it finds none.
    pub is_begun: bool,
    /// Until this time, the request also waits for the admission gate. Meanwhile, ungated requests may have
    /// capacity although this request finds none. `None`: the request waits for capacity only.
    pub gated_until: Option<Instant>,
    /// After this time, the request is not granted.
    pub deadline: Instant,
    /// Data of the code that fills the queue.
    pub payload: T,
}

/// A request that left the queue.
#[derive(Debug)]
pub struct DequeuedRequest<T> {
    /// The request, with the data of its caller.
    pub ticket: QueuedRequest<T>,
    /// Part of the wait in which no backend could serve the request.
    pub without_backend: Duration,
}

/// The waiting requests of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingModel {
    /// The requested model. `None`: the clients named no model.
    pub model: Option<Arc<str>>,
    /// Number of waiting requests.
    pub requests: usize,
    /// Time since which no backend can serve these requests. `None`: a backend can serve them.
    pub without_backend_since: Option<Instant>,
}

/// Identifies a request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuedRequestId(pub(super) u64);

/// Result of adding a request to the queue.
#[derive(Debug)]
pub enum EnqueueOutcome<T> {
    /// The request is queued behind others.
    Waits(QueuedRequestId),
    /// The request is queued. It displaced another request, which is rejected.
    QueuedDisplacing(QueuedRequestId, RejectedRequest<T>),
    /// The request is rejected, because the queue is full and the request may not displace another one.
    Full(RejectedRequest<T>),
}

/// A request that was not queued, or that was removed from the queue without a grant.
#[derive(Debug)]
pub struct RejectedRequest<T> {
    /// The request that gets an error response.
    pub ticket: QueuedRequest<T>,
    /// Part of the wait in which no backend could serve the request.
    pub without_backend: Duration,
    /// Time after which the client should retry, in seconds, from 1 to 60.
    pub retry_after: u32,
}

/// Groups for which no backend has capacity. [`select`](super::AdmissionQueue::select) adds groups and skips
/// their requests.
#[derive(Debug, Default)]
pub struct ExhaustedGroups {
    groups: Vec<CapacityGroup>,
    for_begun: Vec<CapacityGroup>,
    /// Groups from which the gate admits no further request, or without capacity for one.
    for_gated: Vec<CapacityGroup>,
}

/// Time by which a request gives way to later requests for each token of its work. A request with 1,000 tokens
/// more than later requests goes after those that arrive within 2 s. So no request waits for an unbounded
/// number of smaller ones.
const TIME_PER_TOKEN: Duration = Duration::from_millis(2);
/// Time by which a request that already has a part of its response is ordered before its arrival.
const BEGUN_PRECEDENCE: Duration = Duration::from_mins(10);

/// Factor by which the TTFT of a request may exceed its prediction.
const TTFT_FACTOR: f64 = 2.0;

/// The longest wait after which a request probably still meets its TTFT limit. `predicted_ttft`: its TTFT in
/// seconds without the wait. A long TTFT shortens the wait by at most half, so that requests with long prompts
/// wait too.
pub fn longest_wait(limit: Duration, predicted_ttft: f64) -> Duration {
    let expected = Duration::try_from_secs_f64(TTFT_FACTOR * predicted_ttft).unwrap_or(limit);
    limit.saturating_sub(expected.min(limit / 2))
}

/// Whole seconds, from 1 to 60, after which a client should retry if the wait of its request would be too long
/// by `excess`.
pub fn retry_seconds(excess: Duration) -> u32 {
    excess.as_secs().saturating_add(1).min(60) as u32
}

impl<T> QueuedRequest<T> {
    /// Whether the request also waits for the gate.
    pub fn is_gated(&self, now: Instant) -> bool {
        self.gated_until.is_some_and(|until| now < until)
    }

    /// Whether the gate can hold the request until its deadline.
    pub(super) fn is_held_to_end(&self) -> bool {
        self.gated_until.is_some_and(|until| until >= self.deadline)
    }

    /// Time after the arrival of this request in which later requests with less work can go first. It is at
    /// most half of this request's maximum wait.
    pub(super) fn precedence_given(&self, now: Instant) -> Duration {
        let tokens = u32::try_from(self.work).unwrap_or(u32::MAX);
        let longest = self.deadline.saturating_duration_since(now) / 2;
        TIME_PER_TOKEN.saturating_mul(tokens).min(longest)
    }

    /// The time that orders the request among the requests of its tenant.
    pub(super) fn service_time(&self, now: Instant) -> Instant {
        if self.is_begun {
            return now.checked_sub(BEGUN_PRECEDENCE).unwrap_or(now);
        }
        now + self.precedence_given(now)
    }
}

impl ExhaustedGroups {
    /// Whether no backend has capacity for the group.
    pub fn has(&self, group: &CapacityGroup) -> bool {
        self.groups.contains(group)
    }

    /// Whether no backend has capacity for this request, or the gate does not admit such a request.
    pub fn has_for<T>(&self, request: &QueuedRequest<T>, now: Instant) -> bool {
        self.has(&request.group)
            || request.is_begun && self.for_begun.contains(&request.group)
            || request.is_gated(now) && self.for_gated.contains(&request.group)
    }

    /// Adds the group of a request for which no backend has capacity, or that the gate does not admit.
    pub(super) fn add<T>(&mut self, request: &QueuedRequest<T>, now: Instant) {
        let groups = if request.is_begun {
            &mut self.for_begun
        } else if request.is_gated(now) {
            &mut self.for_gated
        } else {
            &mut self.groups
        };
        groups.push(request.group.clone());
    }

    /// Number of groups for which no backend has capacity.
    pub(super) const fn count(&self) -> usize {
        self.groups.len()
    }
}
