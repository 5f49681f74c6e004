//! Single requests, for comparing runs and for drawing them: every one of a short run, every n-th of
//! a long one, in the order in which they were intended.

use super::measure::Measured;
use serde::{Deserialize, Serialize};
use tokenweir_lab::score::Objectives;

/// Some requests of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// One of so many is here.
    pub every: u64,
    /// In order of the plan.
    pub requests: Vec<Sample>,
}

/// One request. Times in seconds, from when it was intended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its place in the plan.
    pub number: u64,
    /// When it was intended.
    pub at: f64,
    /// Intended → first output. `None`: it failed, as are the others.
    pub ttft: Option<f64>,
    /// Time per output token after the first.
    pub tpot: Option<f64>,
    /// Intended → last byte.
    pub e2e: Option<f64>,
    /// It met the objectives of its run.
    pub is_good: bool,
}

/// As many as are kept.
const MOST: usize = 4_096;

impl Default for Samples {
    fn default() -> Self {
        Self { every: 1, requests: Vec::new() }
    }
}

impl Samples {
    /// A request has ended.
    pub fn add(&mut self, measured: &Measured, objectives: &Objectives) {
        if !measured.number.is_multiple_of(self.every) {
            return;
        }
        let answer = measured.result.as_ref().ok();
        let e2e = measured.ended.saturating_sub(measured.due).as_secs_f64();
        self.requests.push(Sample {
            number: measured.number,
            at: measured.due.as_secs_f64(),
            ttft: answer.map(|answer| measured.late() + answer.ttft),
            tpot: answer.and_then(super::measure::Answer::tpot),
            e2e: answer.filter(|answer| !answer.has_left).map(|_| e2e),
            is_good: measured.is_good(objectives),
        });
        if self.requests.len() > MOST {
            self.every *= 2;
            let every = self.every;
            self.requests.retain(|sample| sample.number.is_multiple_of(every));
        }
    }

    /// In the order of the plan: requests end in another.
    pub fn sorted(mut self) -> Self {
        self.requests.sort_unstable_by_key(|sample| sample.number);
        self
    }
}
