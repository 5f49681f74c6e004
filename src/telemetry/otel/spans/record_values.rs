//! Values of a record that several spans have.

use opentelemetry::Value;
use std::time::{Instant, SystemTime};
use tokenweir_core::record::{Attempt, Outcome, RequestRecord};

/// `error.type` of the request. For an error inside a response with status 200, it is the code or
/// type that the backend reported.
pub(super) fn error_type(record: &RequestRecord) -> Option<&str> {
    let is_in_band = record.outcome == Outcome::StreamError;
    let reported = record.observed.error.as_ref().filter(|_| is_in_band);
    let named = reported.and_then(|error| error.code.as_deref().or(error.kind.as_deref()));
    named.or_else(|| record.error_type())
}

/// Why an attempt had no response, or the error status of its response.
pub(super) fn attempt_failure(attempt: &Attempt) -> Option<Value> {
    let error_status = attempt.status.filter(|status| *status >= 400);
    let status = || error_status.map(|status| status.to_string().into());
    attempt.failure.map(Value::from).or_else(status)
}

/// Converts an instant of a request to wall-clock time. An instant before the request counts as its
/// start.
pub(super) fn to_wall_clock(record: &RequestRecord, instant: Instant) -> SystemTime {
    let elapsed = instant.saturating_duration_since(record.timings.accepted);
    record.started.checked_add(elapsed).unwrap_or(record.started)
}
