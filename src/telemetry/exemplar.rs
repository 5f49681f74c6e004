//! One request that stands for a bucket: the way from a bad latency to its trace.

use std::time::{Duration, SystemTime};
use tokenweir_core::record::RequestRecord;

/// The trace of a request, and the value that it had.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Exemplar {
    /// The trace.
    pub(super) trace_id: u128,
    /// Our span for the inference.
    pub(super) span_id: u64,
    /// The value, in the unit of the metric.
    pub(super) value: f64,
    /// When the request ended, since 1970.
    pub(super) at: Duration,
}

// === impl Exemplar ===

impl Exemplar {
    /// Of a request that has ended and whose trace is kept. Any other would lead to nothing.
    pub(super) fn of(record: &RequestRecord) -> Option<Self> {
        let trace = record.trace.as_ref().filter(|_| record.kept.is_some())?;
        let started = record.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let [_, span_id] = record.spans;
        let at = started + record.duration();
        Some(Self { trace_id: trace.trace_id, span_id, value: 0.0, at })
    }
}
