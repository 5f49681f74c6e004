//! The load plan: the sequence of requests of a run with their send times. The plan generates each request
//! only when it is needed, so its memory does not grow with the length of the run. Equal seeds give equal
//! plans.

use super::scenario::{ArrivalProcess, LoadScenario};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_replay::trace::TraceRequest;
use tokenweir_routing::PromptFingerprint;

/// One request of a load plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedRequest {
    /// Position of the request in the plan, from 0.
    pub number: u64,
    /// Intended send time since the start of the run. `None`: the load is a closed loop. There, a request is
    /// sent as soon as one of the simulated users has no request in progress.
    pub at: Option<Duration>,
    /// The token counts of the request. If the request comes from a trace, also its session and the time of
    /// its disconnect.
    pub job: TraceRequest,
}

/// An iterator over the requests of a run, in the order of their send times.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    scenario: LoadScenario,
    /// The requests of a trace. `None`: there is no trace, and the token counts are random.
    recorded: Option<Arc<[TraceRequest]>>,
    limits: PlanLimits,
    /// Position of the next request in the plan.
    number: u64,
    /// Send time of the next request of a Poisson process, in seconds since the start of the run.
    next_arrival_seconds: f64,
    // Send times and token counts have separate random generators, so that other token ranges do
    // not change the send times.
    arrivals: fastrand::Rng,
    lengths: fastrand::Rng,
}

/// The limits at which a plan ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlanLimits {
    /// Maximum number of requests. `None`: no limit.
    pub requests: Option<u64>,
    /// Time since the start of the run at which the plan ends: no request is due at this time or later.
    /// `None`: no limit.
    pub until: Option<Duration>,
}

/// Number of tokens in a block of a prompt. Generated prompts have no blocks in common.
const BLOCK_TOKENS: u32 = 512;

impl LoadPlan {
    /// Creates a plan. `recorded`: the requests of a trace. If the scenario has no range for a token count,
    /// the count comes from the trace.
    pub fn new(
        scenario: LoadScenario,
        recorded: Option<Arc<[TraceRequest]>>,
        limits: PlanLimits,
        seed: u64,
    ) -> Self {
        let mut arrivals = fastrand::Rng::with_seed(seed);
        let lengths = arrivals.fork();
        Self {
            scenario,
            recorded,
            limits,
            number: 0,
            next_arrival_seconds: 0.0,
            arrivals,
            lengths,
        }
    }

    /// Maximum number of requests in the plan. The time limit can end the plan earlier. `None`: only the time
    /// limit ends the plan.
    pub fn max_requests(&self) -> Option<u64> {
        let recorded = self.recorded.as_ref().map(|jobs| jobs.len() as u64);
        [recorded, self.limits.requests].into_iter().flatten().min()
    }

    fn next_send_time(&mut self, job: Option<&TraceRequest>) -> Option<Duration> {
        let number = self.number as f64;
        let seconds = match self.scenario.arrivals {
            ArrivalProcess::Poisson { rate } => {
                // The first request is due at time 0.
                let gap = -(1.0 - self.arrivals.f64()).ln() / rate;
                let next = self.next_arrival_seconds + gap;
                std::mem::replace(&mut self.next_arrival_seconds, next)
            }
            ArrivalProcess::Constant { rate } => number / rate,
            ArrivalProcess::Bursts { rate, size } => {
                (self.number / u64::from(size)) as f64 * f64::from(size) / rate
            }
            ArrivalProcess::Recorded { speed } => {
                job.map_or(0.0, |job| job.at.as_secs_f64()) / speed
            }
            ArrivalProcess::Closed { .. } => return None,
        };
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    fn next_request(&mut self, recorded: Option<TraceRequest>) -> TraceRequest {
        let mut job = recorded.unwrap_or_else(|| TraceRequest {
            prompt_tokens: 1,
            output_tokens: 1,
            prompt: Arc::new(PromptFingerprint {
                bytes: 1,
                block_bytes: BLOCK_TOKENS,
                ..PromptFingerprint::default()
            }),
            ..TraceRequest::default()
        });
        if let Some(lengths) = self.scenario.prompt {
            job.prompt_tokens = lengths.draw(&mut self.lengths);
            // Each token counts as one byte, as in traces that state token counts but no bytes.
            Arc::make_mut(&mut job.prompt).bytes = job.prompt_tokens.into();
        }
        if let Some(lengths) = self.scenario.output {
            job.output_tokens = lengths.draw(&mut self.lengths);
        }
        job
    }
}

impl Iterator for LoadPlan {
    type Item = PlannedRequest;

    fn next(&mut self) -> Option<PlannedRequest> {
        let recorded = match &self.recorded {
            Some(jobs) => Some(jobs.get(self.number as usize)?.clone()),
            None => None,
        };
        let is_request_limit_reached = self
            .limits
            .requests
            .is_some_and(|limit| self.number >= limit);
        let at = self.next_send_time(recorded.as_ref());
        let is_time_limit_reached = at
            .zip(self.limits.until)
            .is_some_and(|(at, until)| at >= until);
        if is_request_limit_reached || is_time_limit_reached {
            return None;
        }
        let planned = PlannedRequest {
            number: self.number,
            at,
            job: self.next_request(recorded),
        };
        self.number += 1;
        Some(planned)
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{ScenarioPreset, TokenRange};
    use super::*;
    use tokenweir_replay::trace;

    fn plan(arrivals: ArrivalProcess, requests: u64, seed: u64) -> LoadPlan {
        let scenario = LoadScenario {
            arrivals,
            ..ScenarioPreset::LowLoad.scenario()
        };
        LoadPlan::new(
            scenario,
            None,
            PlanLimits {
                requests: Some(requests),
                until: None,
            },
            seed,
        )
    }

    fn millis(plan: LoadPlan) -> Vec<u128> {
        plan.map(|planned| planned.at.unwrap().as_millis())
            .collect()
    }

    #[test]
    fn equal_seeds_give_equal_plans() {
        let poisson = ArrivalProcess::Poisson { rate: 10.0 };
        let sequence = |seed| plan(poisson, 50, seed).collect::<Vec<_>>();
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
    }

    #[test]
    fn token_counts_do_not_change_send_times() {
        let usual = plan(ArrivalProcess::Poisson { rate: 10.0 }, 50, 1);
        let mut other = usual.clone();
        other.scenario.prompt = Some(TokenRange { min: 1, max: 9_000 });
        assert_eq!(millis(usual), millis(other));
    }

    #[test]
    fn poisson_gaps_have_the_inverse_rate() {
        let at = millis(plan(ArrivalProcess::Poisson { rate: 100.0 }, 20_000, 3));
        let gaps: Vec<f64> = at
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as f64)
            .collect();
        let (mean, deviation) = tokenweir_replay::results::spread(&gaps);
        assert!((9.5..10.5).contains(&mean), "{mean}");
        assert!((0.9..1.1).contains(&(deviation / mean)), "{deviation}");
    }

    #[test]
    fn constant_and_bursty_arrivals_have_exact_send_times() {
        assert_eq!(
            millis(plan(ArrivalProcess::Constant { rate: 4.0 }, 4, 1)),
            [0, 250, 500, 750]
        );
        let bursts = ArrivalProcess::Bursts { rate: 4.0, size: 2 };
        assert_eq!(millis(plan(bursts, 5, 1)), [0, 0, 500, 500, 1_000]);
        assert!(
            plan(ArrivalProcess::Closed { users: 2 }, 3, 1).all(|planned| planned.at.is_none())
        );
    }

    #[test]
    fn a_plan_ends_at_its_limit_or_trace() {
        let line = |at| format!("{{\"timestamp\":{at},\"input_length\":7,\"output_length\":3}}\n");
        let jobs = trace::read([0, 1_000, 4_000].map(line).concat().as_bytes()).unwrap();
        let scenario = LoadScenario {
            name: "trace".to_owned(),
            arrivals: ArrivalProcess::Recorded { speed: 2.0 },
            prompt: None,
            output: None,
        };
        let full = LoadPlan::new(scenario, Some(jobs.into()), PlanLimits::default(), 1);
        assert_eq!(full.max_requests(), Some(3));
        assert_eq!(millis(full.clone()), [0, 500, 2_000]);
        let until = Some(Duration::from_secs(1));
        let short = LoadPlan {
            limits: PlanLimits {
                until,
                requests: None,
            },
            ..full
        };
        assert_eq!(short.clone().count(), 2);
        assert_eq!(short.last().unwrap().job.prompt_tokens, 7);
    }
}
