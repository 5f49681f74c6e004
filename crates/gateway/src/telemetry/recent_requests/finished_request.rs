//! A finished request in the lists of recent requests.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokenweir_engine::address::BackendId;
use tokenweir_request::record::{ClientIdentity, ModelLabel, Outcome, RequestRecord, SlowCause};

/// A finished request, without any text of its prompt or response.
#[derive(Debug)]
pub struct FinishedRequest {
    /// Sequence number: the number of requests that ended before this request.
    pub number: u64,
    /// The data about the request that the decision log also has.
    pub facts: RequestFacts,
    /// Instant at which the request ended, on the monotonic clock.
    pub ended: Option<Instant>,
    /// The backend of the last attempt. `None`: no attempt.
    pub backend: Option<BackendId>,
    /// Output tokens, exact or estimated. `None`: not known.
    pub output_tokens: Option<u64>,
}

/// Data about a finished request that both the lists of recent requests and the decision log have.
#[derive(Debug)]
pub struct RequestFacts {
    /// The `x-request-id`. It is a copy, because the text in the record would keep the complete request head in
    /// memory.
    pub request_id: Box<str>,
    /// Wall-clock time at which the request arrived.
    pub started: SystemTime,
    /// The model, as the label value in metrics.
    pub model: ModelLabel,
    /// Tenant and name of the API key of the request. `None`: no keys are configured, or the
    /// request has no known key.
    pub caller: Option<Arc<ClientIdentity>>,
    /// How the request ended, such as `ok` or `timeout`.
    pub outcome: Outcome,
    /// Time from the request head to the first output. `None`: the response is not a stream, or had
    /// no output.
    pub ttft: Option<Duration>,
    /// Time from the request head to the first output that is not reasoning. `None`: no reasoning.
    pub first_answer: Option<Duration>,
    /// The address at the other end of the connection.
    pub client: IpAddr,
    /// Time from the request head to the end of the response.
    pub duration: Duration,
    /// The longest cause of slowness. `None`: the request was not slow.
    pub slow: Option<SlowCause>,
    /// Links the request to its trace. `None`: the trace is not sampled.
    pub trace_id: Option<u128>,
}

impl FinishedRequest {
    pub(super) fn from_record(record: &RequestRecord, number: u64) -> Self {
        Self {
            number,
            facts: RequestFacts::from_record(record),
            ended: record.timings.ended,
            backend: record.backend().cloned(),
            output_tokens: record.output_tokens(),
        }
    }
}

impl RequestFacts {
    pub(in crate::telemetry) fn from_record(record: &RequestRecord) -> Self {
        let is_sampled = record.sample_reason.is_some();
        let trace = if is_sampled {
            record.trace.as_ref()
        } else {
            None
        };
        Self {
            request_id: record.request_id.as_str().into(),
            started: record.started,
            model: record.model.clone(),
            caller: record.caller.clone(),
            outcome: record.outcome,
            ttft: record.ttft(),
            first_answer: record.reasoning_wait(),
            client: record.client,
            duration: record.duration(),
            slow: record.slow,
            trace_id: trace.map(|trace| trace.trace_id),
        }
    }
}
