//! How a request ended, by what was seen of its answer.

use crate::openai::Finish;
use crate::record::{End, Outcome, RequestRecord};

/// What an answer was, by its status, by what was seen of it and by how its bytes ended.
pub(super) fn outcome(record: &RequestRecord) -> Outcome {
    let observed = &record.observed;
    let finishes = &observed.finish_reasons;
    let is_whole = observed.is_terminal
        && (finishes.is_empty() || finishes.iter().any(Option::is_some) || !observed.is_stream);
    match (record.status, record.end) {
        (Some(400..=499), _) => Outcome::ClientError,
        (Some(500..), _) => Outcome::UpstreamError,
        // Clients hang up on an error event without waiting for what follows.
        _ if observed.is_stream && observed.error.is_some() => Outcome::StreamError,
        (_, End::Stalled) => Outcome::Timeout,
        (_, End::Broken) => Outcome::Truncated,
        (_, End::Whole) if !is_whole => Outcome::Truncated,
        (_, End::Left | End::Untaken) if !is_whole => Outcome::Cancelled,
        (_, End::Shutdown) if !is_whole => Outcome::Shutdown,
        _ if finishes.contains(&Some(Finish::Abort)) => Outcome::Aborted,
        // Many clients hang up on the last event without reading the end of the body.
        _ => Outcome::Ok,
    }
}
