//! The gate of admission: an option that lets requests in one after the other, although backends have
//! capacity for more. Requests that it does not let in wait in the admission queue.

use crate::backend::pool::BackendRequirements;
use std::time::Instant;
use tokenweir_request::observe::Admission;

/// Decides which requests may be sent to backends that have capacity. Its functions are called for each
/// request that generates text, some of them under the lock of the queue, so they must not block.
pub trait AdmissionGate: Send + Sync + 'static {
    /// Whether a request that waits, or is about to wait, may go in now.
    fn standing(&self, request: &BackendRequirements<'_>, now: Instant) -> Standing;

    /// Lets a request in that has a backend. The permit is dropped when the request has ended. `None`: the request
    /// must wait, which is possible [`Entrance::AtOnce`] only.
    fn enter(
        &self,
        request: &BackendRequirements<'_>,
        entrance: Entrance,
        now: Instant,
    ) -> Option<Admission>;

    /// Why `held` requests wait for the gate, such as `14 of 41 sessions fit into the KV caches`.
    fn reason(&self, held: usize, now: Instant) -> String;
}

/// Whether a request may go in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The request goes in before those that wait for the gate, because it continues what they wait for.
    Member,
    /// The request may go in if no other waits for the gate.
    Fits,
    /// The request must wait.
    Held,
}

/// How a request goes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrance {
    /// Without a wait for the gate.
    AtOnce,
    /// The gate had room for it after a wait.
    AfterWait,
    /// The gate had no room for it until shortly before the end of its wait.
    Overdue,
}

/// The part of the time that a request may wait, in percent, for which the gate can hold it.
const GATED_PERCENT: u32 = 90;

/// The time until which the gate can hold a request that may wait from `now` until `ends_at`. `None`: the gate
/// does not hold it.
pub(super) fn gated_until(standing: Standing, now: Instant, ends_at: Instant) -> Option<Instant> {
    if standing == Standing::Member {
        return None;
    }
    let wait = ends_at.saturating_duration_since(now);
    Some(now + wait * GATED_PERCENT / 100)
}

/// Whether the request is one that the gate decides about.
pub(super) fn generates(requirements: &BackendRequirements<'_>) -> bool {
    requirements.max_tokens.is_some()
}
