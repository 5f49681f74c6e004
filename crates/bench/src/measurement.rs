//! Measurements of one request. The definitions are those of the gateway, so that both can be
//! compared: first and last *output* are events with generated text, reasoning or tool calls. Role
//! events and empty first events are no output.

use std::borrow::Cow;
use std::time::Duration;
use tokenweir_lab::results::{LatencyObjectives, ServedRequest};

/// A request that has ended.
#[derive(Debug, Clone)]
pub struct RequestMeasurement {
    /// Position in the plan.
    pub number: u64,
    /// Intended send time since the start of the run. All latencies count from it.
    pub due: Duration,
    /// Actual send time since the start of the run.
    pub sent: Duration,
    /// End time since the start of the run.
    pub ended: Duration,
    /// The generator was at its limit of requests in flight when the request was due.
    pub has_waited: bool,
    /// The response or the failure.
    pub result: Result<ResponseMeasurement, RequestFailure>,
}

/// A complete response, or one that the client left as recorded in the trace. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseMeasurement {
    /// Sent to first output.
    pub ttft: f64,
    /// First to last output.
    pub decode: f64,
    /// Time from each event with output to the next. Events from one read have the same time.
    pub gaps: Vec<f64>,
    /// Prompt tokens, as reported by the server or else as planned.
    pub input: u32,
    /// Prompt tokens from a prefix cache, if the server reported them.
    pub cached: Option<u32>,
    /// Output tokens.
    pub output: u32,
    /// The server reported the output tokens. Otherwise each event with output counts as one token.
    pub is_counted: bool,
    /// The client disconnected before the end, as recorded in the trace.
    pub has_disconnected: bool,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFailure {
    /// Kind of failure in one word, such as `connect_error` or `status_503`.
    pub kind: Cow<'static, str>,
    /// Error message of the server.
    pub message: Option<String>,
}

impl RequestMeasurement {
    /// Delay from the intended to the actual send time in seconds, caused by the generator or its
    /// limits.
    pub fn late(&self) -> f64 {
        self.sent.saturating_sub(self.due).as_secs_f64()
    }

    /// The response, with its times counted from the intended send time.
    pub fn served(&self) -> Option<ServedRequest> {
        let answer = self.result.as_ref().ok()?;
        Some(ServedRequest {
            ttft: self.late() + answer.ttft,
            decode: answer.decode,
            prompt: answer.input,
            cached: answer.cached.unwrap_or(0),
            output: answer.output,
            ..ServedRequest::default()
        })
    }

    /// Whether the request met the objectives.
    pub fn is_good(&self, objectives: &LatencyObjectives) -> bool {
        self.served().is_some_and(|served| objectives.is_met_by(&served))
    }
}

impl ResponseMeasurement {
    /// Time per output token after the first. `None` for fewer than two reported tokens.
    pub fn tpot(&self) -> Option<f64> {
        (self.is_counted && self.output > 1).then(|| self.decode / f64::from(self.output - 1))
    }
}

impl From<&'static str> for RequestFailure {
    fn from(kind: &'static str) -> Self {
        Self { kind: kind.into(), message: None }
    }
}
