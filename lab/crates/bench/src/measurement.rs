//! Measurements of one benchmark request by the client. The definitions are those of the gateway, so that the
//! values of client and gateway can be compared. An *output* is an event with generated text, reasoning or
//! tool calls. An empty event, or an event with only a role, is no output.

use std::borrow::Cow;
use std::time::Duration;
use tokenweir_replay::results::{LatencyObjectives, time_per_token};

/// The measurement of one request that has ended.
#[derive(Debug, Clone)]
pub struct RequestMeasurement {
    /// Position of the request in the load plan.
    pub number: u64,
    /// Intended send time since the start of the run.
    pub due: Duration,
    /// Actual send time since the start of the run.
    pub sent: Duration,
    /// End time since the start of the run.
    pub ended: Duration,
    /// Whether the request was sent late because the generator had reached its limit of requests in
    /// flight (`--max-in-flight`).
    pub has_waited: bool,
    /// The measurement of the response, or the failure of the request.
    pub result: Result<ResponseMeasurement, RequestFailure>,
}

/// The measurement of a complete response, or of a response at which the client disconnected because the
/// trace says so. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseMeasurement {
    /// Time from the actual send time to the first output.
    pub ttft: f64,
    /// Time from the first to the last output.
    pub decode: f64,
    /// Times between consecutive events with output. The time between two events that arrived in one read is
    /// 0.
    pub gaps: Vec<f64>,
    /// Number of prompt tokens: the number that the server reported, or else the planned number.
    pub input: u32,
    /// Number of prompt tokens from a prefix cache. `None`: the server did not report it.
    pub cached: Option<u32>,
    /// Number of output tokens: the number that the server reported, or else an estimate.
    pub output: u32,
    /// Whether the server reported the number of output tokens. If not, `output` counts each event
    /// with output as one token.
    pub is_counted: bool,
    /// Whether the benchmark client disconnected before the end of the response, because the client of the
    /// recorded request had done so.
    pub has_disconnected: bool,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFailure {
    /// Kind of failure in one word, such as `connect_error` or `status_503`. The report counts the failures
    /// of each kind.
    pub kind: Cow<'static, str>,
    /// Error message of the server or of the connection. `None`: there is no message.
    pub message: Option<String>,
}

impl RequestMeasurement {
    /// Time from the intended to the actual send time, in seconds. The delay comes from a slow generator or
    /// from its limit of requests in flight.
    pub fn late(&self) -> f64 {
        self.sent.saturating_sub(self.due).as_secs_f64()
    }

    /// Whether the response met the latency objectives. The TTFT counts from the intended send time of the
    /// request.
    pub fn is_good(&self, objectives: &LatencyObjectives) -> bool {
        self.result.as_ref().is_ok_and(|response| {
            let tpot = time_per_token(response.decode, response.output);
            objectives.are_met(self.late() + response.ttft, tpot)
        })
    }
}

impl ResponseMeasurement {
    /// Time per output token after the first, in seconds. `None`: the server did not report the
    /// number of output tokens, or reported fewer than two.
    pub fn tpot(&self) -> Option<f64> {
        (self.is_counted && self.output > 1).then(|| time_per_token(self.decode, self.output))
    }
}

impl From<&'static str> for RequestFailure {
    fn from(kind: &'static str) -> Self {
        Self {
            kind: kind.into(),
            message: None,
        }
    }
}
