//! The outcome of a request, from its status, the observed response and its termination.

use crate::openai::FinishReason;
use crate::record::{Outcome, RequestRecord, Termination};

/// Determines the outcome of a request whose response has ended.
pub(super) fn outcome(record: &RequestRecord) -> Outcome {
    let observed = &record.observed;
    let finish_reasons = &observed.finish_reasons;
    let is_complete = observed.is_complete;
    match (record.status, record.end) {
        (Some(400..=499), _) => Outcome::ClientError,
        (Some(500..), _) => Outcome::UpstreamError,
        // Clients disconnect on an error event without waiting for the end of the body.
        _ if observed.is_stream && observed.error.is_some() => Outcome::StreamError,
        (_, Termination::IdleTimeout | Termination::TotalTimeout) => Outcome::Timeout,
        (_, Termination::UpstreamReset) => Outcome::Truncated,
        (_, Termination::KeyRevoked) => Outcome::Cancelled,
        (_, Termination::Complete) if !is_complete => Outcome::Truncated,
        (_, Termination::ClientDisconnected | Termination::WriteTimeout) if !is_complete => {
            Outcome::Cancelled
        }
        (status, Termination::Shutdown) if !is_complete || status == Some(101) => Outcome::Shutdown,
        _ if finish_reasons.contains(&Some(FinishReason::Abort)) => Outcome::Aborted,
        // Many clients disconnect after the last event without reading the end of the body.
        _ => Outcome::Ok,
    }
}
