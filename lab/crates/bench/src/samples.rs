//! Sampled requests of a run, for plots and for an estimate of the random variation within the run. In a
//! short run every request is sampled, in a long run a random part. A hash of the position in the plan
//! selects the part. If instead each n-th request were sampled, requests to some backends would be missing,
//! because a router can pick the backends in turn.

use super::measurement::RequestMeasurement;
use serde::{Deserialize, Serialize};
use tokenweir_replay::results::LatencyObjectives;
use tokenweir_routing::mix;

/// Sampled requests of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestSamples {
    /// One of this number of requests is sampled, selected by a hash of its position in the plan. The number
    /// is a power of two; 1 samples all requests.
    pub every: u64,
    /// The sampled requests. After [`sorted`](Self::sorted), they are in the order of the plan.
    pub requests: Vec<RequestSample>,
}

/// The latencies of one sampled request, in seconds. TTFT and E2E count from its intended send time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequestSample {
    /// Position of the request in the load plan.
    pub number: u64,
    /// Intended send time, in seconds since the start of the run.
    pub at: f64,
    /// Time to the first output. `None`: the request failed.
    pub ttft: Option<f64>,
    /// Time per output token after the first token. `None`: the request failed, or the server
    /// did not report at least two output tokens.
    pub tpot: Option<f64>,
    /// Time to the end of the response. `None`: the request failed, or the client disconnected.
    pub e2e: Option<f64>,
    /// Whether the request met the latency objectives.
    pub is_good: bool,
}

/// Maximum number of samples. If it is exceeded, about half of the samples are removed at random.
const MAX_SAMPLES: usize = 4_096;

impl Default for RequestSamples {
    fn default() -> Self {
        Self {
            every: 1,
            requests: Vec::new(),
        }
    }
}

impl RequestSamples {
    /// Adds a request that has ended, if it is sampled.
    pub fn add(&mut self, measured: &RequestMeasurement, objectives: &LatencyObjectives) {
        if !is_sampled(measured.number, self.every) {
            return;
        }
        let response = measured.result.as_ref().ok();
        let e2e = measured.ended.saturating_sub(measured.due).as_secs_f64();
        self.requests.push(RequestSample {
            number: measured.number,
            at: measured.due.as_secs_f64(),
            ttft: response.map(|response| measured.late() + response.ttft),
            tpot: response.and_then(super::measurement::ResponseMeasurement::tpot),
            e2e: response
                .filter(|response| !response.has_disconnected)
                .map(|_| e2e),
            is_good: measured.is_good(objectives),
        });
        if self.requests.len() > MAX_SAMPLES {
            self.every *= 2;
            let every = self.every;
            self.requests
                .retain(|sample| is_sampled(sample.number, every));
        }
    }

    /// Sorts the samples by their position in the plan. Before, they are in the order in which the requests
    /// ended.
    pub fn sorted(mut self) -> Self {
        self.requests.sort_unstable_by_key(|sample| sample.number);
        self
    }
}

/// Whether request `number` is sampled, if one of `every` requests is sampled.
const fn is_sampled(number: u64, every: u64) -> bool {
    mix(number).is_multiple_of(every)
}
