//! A request that ended, as a line of a list.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokenweir_core::record::{BackendId, Caller, ModelLabel, Outcome, RequestRecord, SlowCause};

/// A request that ended. Nothing of its prompt or its answer.
#[derive(Debug)]
pub struct Ended {
    /// How many had ended before.
    pub number: u64,
    /// The `x-request-id`. A copy: the text in the record keeps the whole head of the request in
    /// memory.
    pub request_id: Box<str>,
    /// When it began, for people.
    pub started: SystemTime,
    /// When it ended.
    pub ended: Option<Instant>,
    /// The model as a label.
    pub model: ModelLabel,
    /// The replica that was asked last.
    pub backend: Option<BackendId>,
    /// Whose key it came with.
    pub caller: Option<Arc<Caller>>,
    /// How it ended.
    pub outcome: Outcome,
    /// Time to first token, in the client's view.
    pub ttft: Option<Duration>,
    /// How long it took.
    pub duration: Duration,
    /// Tokens of its answer.
    pub output_tokens: Option<u64>,
    /// Why it was slow, if it was.
    pub slow: Option<SlowCause>,
    /// Its trace, if it is kept.
    pub trace_id: Option<u128>,
}

impl Ended {
    pub(super) fn of(record: &RequestRecord, number: u64) -> Self {
        let trace = record.trace.as_ref().filter(|_| record.kept.is_some());
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
