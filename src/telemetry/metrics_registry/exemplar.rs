//! Exemplars: a link from a histogram bucket to the trace of one of its requests.

use std::time::{Duration, SystemTime};
use tokenweir_core::record::RequestRecord;

/// The trace of a request, and its value of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::telemetry) struct Exemplar {
    /// The trace.
    pub(in crate::telemetry) trace_id: u128,
    /// The gateway's inference span.
    pub(in crate::telemetry) span_id: u64,
    /// The value, in the unit of the metric.
    pub(in crate::telemetry) value: f64,
    /// When the request ended: time since the Unix epoch.
    pub(in crate::telemetry) at: Duration,
}

// === impl Exemplar ===

impl Exemplar {
    /// The exemplar of a finished request. `None` if its trace is not sampled, because the link
    /// would lead to nothing. The value is set later.
    pub(super) fn from_record(record: &RequestRecord) -> Option<Self> {
        let trace = record.trace.as_ref().filter(|_| record.sample_reason.is_some())?;
        let started = record.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let [_, span_id] = record.spans;
        let at = started + record.duration();
        Some(Self { trace_id: trace.trace_id, span_id, value: 0.0, at })
    }
}
