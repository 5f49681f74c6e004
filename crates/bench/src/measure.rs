//! What is measured of one request. The definitions are the gateway's own, so that both can be
//! held beside each other: first and last *output* are events with generated text, reasoning or tool
//! calls; the role event and empty first events do not count.

use std::borrow::Cow;
use std::time::Duration;
use tokenweir_lab::score::{Objectives, Served};

/// One request that has ended.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Its place in the plan.
    pub number: u64,
    /// When it was intended to be sent, from the beginning of the run. All latencies count from then.
    pub due: Duration,
    /// When it was sent, from the beginning of the run.
    pub sent: Duration,
    /// When it ended, from the beginning of the run.
    pub ended: Duration,
    /// The generator itself had no place for it when it was due.
    pub has_waited: bool,
    /// What came.
    pub result: Result<Answer, Failure>,
}

/// A whole answer, or one whose client left as the trace says. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Sent → first output.
    pub ttft: f64,
    /// First → last output.
    pub decode: f64,
    /// From each event with output to the next one. Events that one read brought have one time.
    pub gaps: Vec<f64>,
    /// Tokens of the prompt, as the server counted them or as they were planned.
    pub input: u32,
    /// Of those, from a prefix cache, if it was told.
    pub cached: Option<u32>,
    /// Tokens of the answer.
    pub output: u32,
    /// The server counted them; else each event with output is one.
    pub is_counted: bool,
    /// The client left before the end, as the trace says.
    pub has_left: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// One word, such as `connect_error` or `status_503`.
    pub kind: Cow<'static, str>,
    /// What the server said.
    pub said: Option<String>,
}

impl Measured {
    /// From intended to sent, in seconds: for how long the generator or its limits held it back.
    pub fn late(&self) -> f64 {
        self.sent.saturating_sub(self.due).as_secs_f64()
    }

    /// The answer with its times from when the request was intended.
    pub fn served(&self) -> Option<Served> {
        let answer = self.result.as_ref().ok()?;
        Some(Served {
            ttft: self.late() + answer.ttft,
            decode: answer.decode,
            prompt: answer.input,
            cached: answer.cached.unwrap_or(0),
            output: answer.output,
        })
    }

    /// Whether it was served as well as it should be.
    pub fn is_good(&self, objectives: &Objectives) -> bool {
        self.served().is_some_and(|served| objectives.are_met(&served))
    }
}

impl Answer {
    /// Time per output token after the first; `None` for fewer than two counted tokens.
    pub fn tpot(&self) -> Option<f64> {
        (self.is_counted && self.output > 1).then(|| self.decode / f64::from(self.output - 1))
    }
}

impl From<&'static str> for Failure {
    fn from(kind: &'static str) -> Self {
        Self { kind: kind.into(), said: None }
    }
}
