//! Exemplars: a link from a histogram bucket to the trace of one of its requests.

use std::time::{Duration, SystemTime};
use tokenweir_request::record::RequestRecord;

/// An exemplar: one value of a histogram, and the trace of the request that had this value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Exemplar {
    pub(super) trace_id: u128,
    /// ID of the inference span of the request.
    pub(super) span_id: u64,
    /// The value of the request, in the unit of the metric.
    pub(super) value: f64,
    /// When the request ended, as the time since the Unix epoch.
    pub(super) ended_at: Duration,
}

impl Exemplar {
    /// Creates the exemplar of a finished request. Its value is 0 until a histogram sets it. `None`: the trace
    /// of the request is not sampled, so a trace viewer would not find it.
    pub(super) fn from_record(record: &RequestRecord) -> Option<Self> {
        record.sample_reason?;
        let trace_id = record.trace.as_ref()?.trace_id;
        let started = record
            .started
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let span_id = record.spans.inference;
        let ended_at = started + record.duration();
        Some(Self {
            trace_id,
            span_id,
            value: 0.0,
            ended_at,
        })
    }
}
