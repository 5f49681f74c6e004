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

/// A number that does not parse exceeds the number of events of any response.
#[derive(Debug)]
pub struct QueuedRequest<T> {
    /// Adds event ids for a client that already has all events up to `last`. Event 0: the client has none.
    pub class: usize,
    /// Whether the stream has passed all events that the client has.
    pub tenant: u64,
    /// The group of the request.
    pub group: CapacityGroup,
    /// Runs: requests to which their clients can return. A run has the state of a request that continues while
    /// its client is disconnected, and the bytes that a returning client gets again.
    ///
    /// A request with an `Idempotency-Key` begins a run. A [`Producer`] writes the response of the engine into
    /// the run, and each [`Reader`] reads it from its own position. A request that arrives again with the same
    /// key and body attaches to the run as a further reader. A run without a reader is aborted when its window
    /// (the time in which its client may return) is over, or when too many runs have none.
    ///
    /// The module has no I/O. The caller passes wakers, and passes the time to [`Registry::sweep`]. A thread
    /// that needs the lock of the table of runs and the lock of a run takes the lock of the table first.
    pub tokens: u64,
    /// The result of a request with an `Idempotency-Key`: whether its client returned, or why it could not.
    pub work: u64,
    /// Whether the client already has a part of the response, from a backend that failed. Such a request is
    /// always queued, as the first of its tenant, and is never displaced. It must not go to the backend that
    /// failed. So its failed search does not mean that other requests lack capacity.
    pub is_begun: bool,
    /// The gateway kept the response, but the client did not return before the end of the request.
    pub gated_until: Option<Instant>,
    /// After this time, the request is not granted.
    pub deadline: Instant,
    /// Data of the code that fills the queue.
    pub payload: T,
}

/// A request that left the queue.
#[derive(Debug)]
pub struct DequeuedRequest<T> {
    /// The client disconnected while too many requests continued without their clients, so the request was
    /// aborted.
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
    /// The responses of the tenant, or of the address, take all memory that one party may take.
    pub without_backend_since: Option<Instant>,
}

/// Identifies a request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuedRequestId(pub(super) u64);

/// The present result of a request with an `Idempotency-Key`. The record of the request reads it at the end of
/// the response.
#[derive(Debug)]
pub enum EnqueueOutcome<T> {
    /// Marks the run as failed, so that a returning client's request is sent to a backend again.
    Waits(QueuedRequestId),
    /// The name of a request's result in metrics and reports. `None`: the request has no `Idempotency-Key`, or
    /// `streams.resume` is off.
    QueuedDisplacing(QueuedRequestId, RejectedRequest<T>),
    /// A result with this outcome, for a request that has not failed.
    Full(RejectedRequest<T>),
}

/// A request that was not queued, or that was removed from the queue without a grant.
#[derive(Debug)]
pub struct RejectedRequest<T> {
    /// The rejected request.
    pub ticket: QueuedRequest<T>,
    /// Records that the request was not successful, so that a returning client's request is sent to a backend
    /// again.
    pub without_backend: Duration,
    /// Time after which the client should retry, in seconds: queue position ÷ grants per second,
    /// from 1 to 60.
    pub retry_after: u32,
}

/// Groups for which no backend has capacity. [`select`](super::AdmissionQueue::select) adds groups and skips
/// their requests.
#[derive(Debug, Default)]
pub struct ExhaustedGroups {
    groups: Vec<CapacityGroup>,
    /// Groups without capacity for requests that have begun.
    for_begun: Vec<CapacityGroup>,
    /// Groups from which the gate admits no further request, or without capacity for one.
    for_gated: Vec<CapacityGroup>,
}

/// Whether the run must end because no client can get its response. A change wakes `waker`.
const TIME_PER_TOKEN: Duration = Duration::from_millis(2);
/// A request that has begun is ordered as if it had arrived this much earlier.
const BEGUN_PRECEDENCE: Duration = Duration::from_mins(10);

/// Factor by which the TTFT of a request may exceed its prediction.
const TTFT_FACTOR: f64 = 2.0;

/// Writes bytes of the body. If a memory limit is reached, the run continues but drops the bytes that its
/// readers have read.
pub fn longest_wait(limit: Duration, predicted_ttft: f64) -> Duration {
    let expected = Duration::try_from_secs_f64(TTFT_FACTOR * predicted_ttft).unwrap_or(limit);
    limit.saturating_sub(expected.min(limit / 2))
}

/// Ends the run. `is_kept`: a returning client gets this response. If `false`, as after a failure, the run is
/// forgotten, and a repetition of the request is sent to a backend again.
pub fn retry_seconds(excess: Duration) -> u32 {
    excess.as_secs().saturating_add(1).min(60) as u32
}

impl<T> QueuedRequest<T> {
    /// Whether the request also waits for the gate.
    pub fn is_gated(&self, now: Instant) -> bool {
        self.gated_until.is_some_and(|until| now < until)
    }

    /// Time after the arrival of this request in which later requests with less work can go first. It is at
    /// most half of this request's maximum wait.
    pub(super) fn precedence_given(&self, now: Instant) -> Duration {
        let tokens = u32::try_from(self.work).unwrap_or(u32::MAX);
        let longest = self.deadline.saturating_duration_since(now) / 2;
        TIME_PER_TOKEN.saturating_mul(tokens).min(longest)
    }

    /// The result of [`Reader::poll_chunk`]: the next bytes of the body, or its end.
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

    /// The head of the response. `None`: the run ended without a head. While the result is pending, the head or
    /// the end of the run wakes `waker`.
    pub(super) const fn count(&self) -> usize {
        self.groups.len()
    }
}
