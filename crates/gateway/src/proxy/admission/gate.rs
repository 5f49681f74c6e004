//! The admission gate: an option that holds requests back although backends have capacity for them. Held
//! requests wait in the admission queue.

use crate::backend::pool::BackendRequirements;
use std::time::Instant;
use tokenweir_request::observe::Admission;

/// Decides which requests may be sent to backends that have capacity. The gateway calls these methods for each
/// request that generates text, some of them under the lock of the queue. So they must not block.
pub trait AdmissionGate: Send + Sync + 'static {
    /// Whether the gate would admit a request that waits, or is about to wait.
    fn standing(&self, request: &BackendRequirements<'_>, now: Instant) -> Standing;

    /// Admits a request for which a backend has capacity. The permit is dropped when the request has ended.
    /// `None`: the request must wait, which is allowed for [`Entrance::AtOnce`] only.
    fn enter(
        &self,
        request: &BackendRequirements<'_>,
        entrance: Entrance,
        now: Instant,
    ) -> Option<Admission>;

    /// The reason why `held` requests wait for the gate, such as `14 of 41 sessions fit into the KV caches`.
    fn reason(&self, held: usize, now: Instant) -> String;
}

/// Whether the gate admits a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The gate admits the request before those that wait, because it continues work, such as a session, that
    /// the gate has admitted.
    Member,
    /// The gate admits the request if no other request waits for the gate.
    Fits,
    /// The request must wait.
    Held,
}

/// How a request passed the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrance {
    /// The request did not wait for the gate.
    AtOnce,
    /// The gate admitted the request after a wait.
    AfterWait,
    /// The gate had no room until shortly before the end of the request's maximum wait.
    Overdue,
}

/// The part of its maximum wait, in percent, for which the gate can hold a request.
const GATED_PERCENT: u32 = 90;

/// The time until which the gate can hold a request that may wait from `now` until `ends_at`. `None`: the gate
/// does not hold the request.
pub(super) fn gated_until(standing: Standing, now: Instant, ends_at: Instant) -> Option<Instant> {
    if standing == Standing::Member {
        return None;
    }
    let wait = ends_at.saturating_duration_since(now);
    Some(now + wait * GATED_PERCENT / 100)
}

/// Whether the gate decides about the request, because the request generates text.
pub(super) fn generates(requirements: &BackendRequirements<'_>) -> bool {
    requirements.max_tokens.is_some()
}
