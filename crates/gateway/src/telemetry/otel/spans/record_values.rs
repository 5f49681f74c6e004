//! Values that several spans of a request read from its record.

use opentelemetry::Value;
use std::time::{Instant, SystemTime};
use tokenweir_request::record::{Attempt, Outcome, RequestRecord};

/// Returns the attribute `error.type` of the request. For an error event inside a stream, this is the error
/// code or error type that the backend reported. `None`: no error.
pub(super) fn error_type(record: &RequestRecord) -> Option<&str> {
    if let Some(error) = &record.observed.error
        && record.outcome == Outcome::StreamError
        && let Some(reported) = error.code.as_deref().or(error.kind.as_deref())
    {
        return Some(reported);
    }
    record.error_type()
}

/// Returns the attribute `error.type` of an attempt: why the attempt failed, or the error status of
/// its response. `None`: the attempt succeeded.
pub(super) fn attempt_failure(attempt: &Attempt) -> Option<Value> {
    let error_status = attempt.status.filter(|status| *status >= 400);
    let status = || error_status.map(|status| status.to_string().into());
    attempt.failure.map(Value::from).or_else(status)
}

/// Converts an instant during a request to wall-clock time. An instant before the start of the
/// request counts as the start.
pub(super) fn to_wall_clock(record: &RequestRecord, instant: Instant) -> SystemTime {
    let elapsed = instant.saturating_duration_since(record.timings.accepted);
    record
        .started
        .checked_add(elapsed)
        .unwrap_or(record.started)
}
