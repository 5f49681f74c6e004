//! The seeded list of what is sent and when. It is drawn as it is needed, so that a long run takes no
//! more memory than a short one; equal seeds give equal lists.

use super::scenario::{Arrivals, Scenario};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::routing::Prompt;
use tokenweir_lab::trace::Job;

/// A request that is to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Its place in the plan.
    pub number: u64,
    /// When, from the beginning. `None` in a closed loop: when a user is free.
    pub at: Option<Duration>,
    /// How long it is.
    pub job: Job,
}

/// The requests of a run, in order.
#[derive(Debug, Clone)]
pub struct Plan {
    scenario: Scenario,
    /// Those of a trace; without one, lengths are drawn.
    recorded: Option<Arc<[Job]>>,
    limits: Limits,
    number: u64,
    clock: f64,
    // Two, so that other lengths do not change when requests are sent.
    arrivals: fastrand::Rng,
    lengths: fastrand::Rng,
}

/// Where a plan ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// After so many requests.
    pub requests: Option<u64>,
    /// With the last request that is due before.
    pub until: Option<Duration>,
}

/// Tokens in a block that prompts may share; those that are made up share none.
const BLOCK_TOKENS: u32 = 512;

impl Plan {
    /// A plan. Lengths that the scenario does not tell are those of the trace.
    pub fn new(
        scenario: Scenario,
        recorded: Option<Arc<[Job]>>,
        limits: Limits,
        seed: u64,
    ) -> Self {
        let mut arrivals = fastrand::Rng::with_seed(seed);
        let lengths = arrivals.fork();
        Self { scenario, recorded, limits, number: 0, clock: 0.0, arrivals, lengths }
    }

    /// Requests in it, as far as it is known before.
    pub fn expected(&self) -> Option<u64> {
        let recorded = self.recorded.as_ref().map(|jobs| match self.limits.until {
            Some(until) => self.within(jobs, until),
            None => jobs.len() as u64,
        });
        let timed = match (self.scenario.arrivals, self.limits.until) {
            (
                Arrivals::Poisson { rate }
                | Arrivals::Constant { rate }
                | Arrivals::Bursts { rate, .. },
                Some(until),
            ) => Some((rate * until.as_secs_f64()).ceil() as u64),
            _ => None,
        };
        [recorded, timed, self.limits.requests].into_iter().flatten().min()
    }

    fn within(&self, jobs: &[Job], until: Duration) -> u64 {
        match self.scenario.arrivals {
            Arrivals::Recorded { speed } => {
                jobs.partition_point(|job| job.at.div_f64(speed) < until) as u64
            }
            _ => jobs.len() as u64,
        }
    }

    fn due(&mut self, job: Option<&Job>) -> Option<Duration> {
        let number = self.number as f64;
        let seconds = match self.scenario.arrivals {
            Arrivals::Poisson { rate } => {
                // The first is due at once: then the list begins with the clock.
                let gap = -(1.0 - self.arrivals.f64()).ln() / rate;
                let next = self.clock + gap;
                std::mem::replace(&mut self.clock, next)
            }
            Arrivals::Constant { rate } => number / rate,
            Arrivals::Bursts { rate, size } => {
                (self.number / u64::from(size)) as f64 * f64::from(size) / rate
            }
            Arrivals::Recorded { speed } => job.map_or(0.0, |job| job.at.as_secs_f64()) / speed,
            Arrivals::Closed { .. } => return None,
        };
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    fn job(&mut self, recorded: Option<Job>) -> Job {
        let mut job = recorded.unwrap_or_else(|| Job {
            at: Duration::ZERO,
            prompt_tokens: 1,
            output_tokens: 1,
            prompt: Prompt { bytes: 1, blocks: Box::default(), block_bytes: BLOCK_TOKENS },
            session: None,
            left_after: None,
        });
        if let Some(lengths) = self.scenario.prompt {
            job.prompt_tokens = lengths.draw(&mut self.lengths);
            // As in a trace that counts in tokens: each is a byte.
            job.prompt.bytes = job.prompt_tokens.into();
        }
        if let Some(lengths) = self.scenario.output {
            job.output_tokens = lengths.draw(&mut self.lengths);
        }
        job
    }
}

impl Iterator for Plan {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        let recorded = match &self.recorded {
            Some(jobs) => Some(jobs.get(self.number as usize)?.clone()),
            None => None,
        };
        let is_enough = self.limits.requests.is_some_and(|most| self.number >= most);
        let at = self.due(recorded.as_ref());
        let is_late = at.zip(self.limits.until).is_some_and(|(at, until)| at >= until);
        if is_enough || is_late {
            return None;
        }
        let planned = Planned { number: self.number, at, job: self.job(recorded) };
        self.number += 1;
        Some(planned)
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{Lengths, Preset};
    use super::*;
    use tokenweir_lab::trace;

    fn plan(arrivals: Arrivals, requests: u64, seed: u64) -> Plan {
        let scenario = Scenario { arrivals, ..Preset::LowLoad.scenario() };
        Plan::new(scenario, None, Limits { requests: Some(requests), until: None }, seed)
    }

    fn millis(plan: Plan) -> Vec<u128> {
        plan.map(|planned| planned.at.unwrap().as_millis()).collect()
    }

    #[test]
    fn equal_seeds_give_equal_lists_and_others_do_not() {
        let poisson = Arrivals::Poisson { rate: 10.0 };
        let list = |seed| plan(poisson, 50, seed).collect::<Vec<_>>();
        assert_eq!(list(1), list(1));
        assert_ne!(list(1), list(2));
    }

    #[test]
    fn other_lengths_do_not_change_when_requests_are_sent() {
        let usual = plan(Arrivals::Poisson { rate: 10.0 }, 50, 1);
        let mut other = usual.clone();
        other.scenario.prompt = Some(Lengths { least: 1, most: 9_000 });
        assert_eq!(millis(usual), millis(other));
    }

    #[test]
    fn a_poisson_rate_is_kept_on_the_mean_and_gaps_vary_as_much_as_they_are_long() {
        let at = millis(plan(Arrivals::Poisson { rate: 100.0 }, 20_000, 3));
        let gaps: Vec<f64> = at.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>();
        let deviation = (square / gaps.len() as f64).sqrt();
        assert!((9.5..10.5).contains(&mean), "{mean}");
        assert!((0.9..1.1).contains(&(deviation / mean)), "{deviation}");
    }

    #[test]
    fn even_and_bursty_arrivals_are_where_they_should_be() {
        assert_eq!(millis(plan(Arrivals::Constant { rate: 4.0 }, 4, 1)), [0, 250, 500, 750]);
        let bursts = Arrivals::Bursts { rate: 4.0, size: 2 };
        assert_eq!(millis(plan(bursts, 5, 1)), [0, 0, 500, 500, 1_000]);
        assert!(plan(Arrivals::Closed { users: 2 }, 3, 1).all(|planned| planned.at.is_none()));
    }

    #[test]
    fn a_plan_ends_in_time_and_a_trace_with_its_last_line() {
        let line = |at| format!("{{\"timestamp\":{at},\"input_length\":7,\"output_length\":3}}\n");
        let jobs = trace::read([0, 1_000, 4_000].map(line).concat().as_bytes()).unwrap();
        let scenario = Scenario {
            name: "trace".to_owned(),
            arrivals: Arrivals::Recorded { speed: 2.0 },
            prompt: None,
            output: None,
        };
        let whole = Plan::new(scenario, Some(jobs.into()), Limits::default(), 1);
        assert_eq!(whole.expected(), Some(3));
        assert_eq!(millis(whole.clone()), [0, 500, 2_000]);
        let until = Some(Duration::from_secs(1));
        let short = Plan { limits: Limits { until, requests: None }, ..whole };
        assert_eq!((short.expected(), short.clone().count()), (Some(2), 2));
        assert_eq!(short.last().unwrap().job.prompt_tokens, 7);
    }
}
