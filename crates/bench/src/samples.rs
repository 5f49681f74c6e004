//! Single requests for comparisons and plots: every request of a short run, every n-th request of a
//! long one, in the order of the plan.

use super::measurement::RequestMeasurement;
use serde::{Deserialize, Serialize};
use tokenweir_lab::results::LatencyObjectives;

/// Sampled requests of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestSamples {
    /// One of this many requests is sampled.
    pub every: u64,
    /// In order of the plan.
    pub requests: Vec<RequestSample>,
}

/// One request. Times in seconds since the intended send time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequestSample {
    /// Position in the plan.
    pub number: u64,
    /// Intended send time since the start of the run.
    pub at: f64,
    /// Time to the first output. `None` for a failed request, as for the other times.
    pub ttft: Option<f64>,
    /// Time per output token after the first.
    pub tpot: Option<f64>,
    /// Time to the end of the response.
    pub e2e: Option<f64>,
    /// Whether the request met the objectives.
    pub is_good: bool,
}

/// Maximum number of samples.
const MAX_SAMPLES: usize = 4_096;

impl Default for RequestSamples {
    fn default() -> Self {
        Self { every: 1, requests: Vec::new() }
    }
}

impl RequestSamples {
    /// Records a request that has ended.
    pub fn add(&mut self, measured: &RequestMeasurement, objectives: &LatencyObjectives) {
        if !measured.number.is_multiple_of(self.every) {
            return;
        }
        let answer = measured.result.as_ref().ok();
        let e2e = measured.ended.saturating_sub(measured.due).as_secs_f64();
        self.requests.push(RequestSample {
            number: measured.number,
            at: measured.due.as_secs_f64(),
            ttft: answer.map(|answer| measured.late() + answer.ttft),
            tpot: answer.and_then(super::measurement::ResponseMeasurement::tpot),
            e2e: answer.filter(|answer| !answer.has_disconnected).map(|_| e2e),
            is_good: measured.is_good(objectives),
        });
        if self.requests.len() > MAX_SAMPLES {
            self.every *= 2;
            let every = self.every;
            self.requests.retain(|sample| sample.number.is_multiple_of(every));
        }
    }

    /// Sorts the samples by their position in the plan. Requests end in a different order.
    pub fn sorted(mut self) -> Self {
        self.requests.sort_unstable_by_key(|sample| sample.number);
        self
    }
}
