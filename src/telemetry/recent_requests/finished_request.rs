//! A finished request in the lists of recent requests.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokenweir_core::record::{
    BackendId, ClientIdentity, ModelLabel, Outcome, RequestRecord, SlowCause,
};

/// A finished request, without any text of its prompt or response.
#[derive(Debug)]
pub struct FinishedRequest {
    /// Sequence number: the number of requests that had ended before.
    pub number: u64,
    /// The `x-request-id`. A copy, because the text in the record would retain the whole request
    /// head in memory.
    pub request_id: Box<str>,
    /// Wall-clock time of arrival.
    pub started: SystemTime,
    /// Time of the end on the monotonic clock.
    pub ended: Option<Instant>,
    /// The model as a label value.
    pub model: ModelLabel,
    /// The backend of the last attempt.
    pub backend: Option<BackendId>,
    /// The identity that the API key of the request belongs to.
    pub caller: Option<Arc<ClientIdentity>>,
    /// The outcome.
    pub outcome: Outcome,
    /// Time to first token, as seen by the client.
    pub ttft: Option<Duration>,
    /// Duration of the request.
    pub duration: Duration,
    /// Output tokens.
    pub output_tokens: Option<u64>,
    /// Cause of a slow request. `None`: not slow.
    pub slow: Option<SlowCause>,
    /// The trace. `None`: not sampled.
    pub trace_id: Option<u128>,
}

impl FinishedRequest {
    pub(super) fn from_record(record: &RequestRecord, number: u64) -> Self {
        let trace = record.trace.as_ref().filter(|_| record.sample_reason.is_some());
        Self {
            number,
            request_id: record.request_id.as_str().into(),
            started: record.started,
            ended: record.timings.ended,
            model: record.model.clone(),
            backend: record.backend().cloned(),
            caller: record.caller.clone(),
            outcome: record.outcome,
            ttft: record.ttft(),
            duration: record.duration(),
            output_tokens: record.output_tokens(),
            slow: record.slow,
            trace_id: trace.map(|trace| trace.trace_id),
        }
    }
}
