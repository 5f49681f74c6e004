//! A policy sees a snapshot and a question and names a replica. It holds no lock, reads no clock
//! and draws no luck of its own, so equal inputs give equal choices.

pub mod kv_aware;
mod least_requests;
mod p2c;
mod round_robin;

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A replica that could take the request, as it is believed to be now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Requests that this gateway has at the replica.
    pub in_flight: u32,
    /// Tokens that those requests may hold in its KV cache.
    pub tokens_in_flight: u64,
    /// What the replica last said. `None` if it never said anything that was understood.
    pub report: Option<Report>,
}

/// What a replica last said of itself, and what this gateway had at it at that moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// How old it is.
    pub age: Duration,
    /// Share of the KV cache that requests hold, from 0 to 1.
    pub kv_usage: f64,
    /// Requests that wait in the engine.
    pub waiting: u32,
    /// Requests that run in the engine.
    pub running: u32,
    /// Tokens that its KV cache can hold.
    pub capacity: Option<u64>,
    /// [`Candidate::in_flight`] at that moment.
    pub in_flight_then: u32,
    /// [`Candidate::tokens_in_flight`] at that moment.
    pub tokens_then: u64,
}

/// The question: one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The number of this question, counted up.
    pub sequence: u64,
    /// Randomness for the policies that want some.
    pub seed: u64,
    /// Tokens that the request may hold in a KV cache: its prompt, estimated.
    pub tokens: u64,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The position of the replica among the candidates.
    pub index: usize,
    /// Why, from a closed set.
    pub reason: &'static str,
}

/// The policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[clap(rename_all = "snake_case")]
pub enum PolicyKind {
    /// The lowest predicted cost: queue, KV pressure and load.
    #[default]
    KvAware,
    /// One after the other.
    RoundRobin,
    /// The fewest requests of this gateway in flight.
    LeastRequests,
    /// The less loaded of two drawn at random.
    P2c,
}

/// A policy with its settings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Policy {
    /// Which.
    pub kind: PolicyKind,
    /// For [`PolicyKind::KvAware`].
    pub kv_aware: kv_aware::Settings,
}

impl Policy {
    /// The name in the configuration, in metrics and in logs.
    pub const fn name(&self) -> &'static str {
        match self.kind {
            PolicyKind::KvAware => "kv_aware",
            PolicyKind::RoundRobin => "round_robin",
            PolicyKind::LeastRequests => "least_requests",
            PolicyKind::P2c => "p2c",
        }
    }

    /// Chooses among the candidates. `None` if there are none.
    pub fn pick(&self, candidates: &[Candidate], ask: &Ask) -> Option<Choice> {
        if candidates.len() < 2 {
            return candidates.first().map(|_| Choice { index: 0, reason: "only_candidate" });
        }
        Some(match self.kind {
            PolicyKind::KvAware => kv_aware::pick(&self.kv_aware, candidates, ask),
            PolicyKind::RoundRobin => round_robin::pick(candidates, ask),
            PolicyKind::LeastRequests => least_requests::pick(candidates, ask),
            PolicyKind::P2c => p2c::pick(candidates, ask),
        })
    }
}

/// Every reason that a policy gives: a label value is one of these.
pub const REASONS: &[&str] =
    &["only_candidate", "lowest_cost", "turn", "fewest_requests", "fewer_of_two"];

/// The position of the lowest cost. Equal ones take turns, so that an idle fleet shares the work.
fn lowest(costs: impl Iterator<Item = f64> + Clone, turn: u64) -> usize {
    let least = costs.clone().fold(f64::INFINITY, f64::min);
    let ties = costs.clone().filter(|cost| *cost <= least).count().max(1);
    let wanted = (turn % ties as u64) as usize;
    let mut best = costs.enumerate().filter(|(_, cost)| *cost <= least);
    best.nth(wanted).map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use proptest::prelude::*;

    fn report() -> impl Strategy<Value = Report> {
        (
            0_u64..100_000,
            -0.5..1.5_f64,
            any::<u16>(),
            any::<u16>(),
            any::<Option<u32>>(),
            any::<u16>(),
            any::<u32>(),
        )
            .prop_map(|(age, kv_usage, waiting, running, capacity, in_flight, tokens)| {
                Report {
                    age: Duration::from_millis(age),
                    kv_usage,
                    waiting: waiting.into(),
                    running: running.into(),
                    capacity: capacity.map(u64::from),
                    in_flight_then: in_flight.into(),
                    tokens_then: tokens.into(),
                }
            })
    }

    fn candidate() -> impl Strategy<Value = Candidate> {
        (any::<u16>(), any::<u32>(), proptest::option::of(report())).prop_map(
            |(in_flight, tokens, report)| Candidate {
                in_flight: in_flight.into(),
                tokens_in_flight: tokens.into(),
                report,
            },
        )
    }

    proptest! {
        #[test]
        fn every_policy_names_a_candidate_and_equal_inputs_give_equal_choices(
            candidates in proptest::collection::vec(candidate(), 0..20),
            sequence: u64, seed: u64, tokens in 0_u64..1_000_000,
        ) {
            let ask = Ask { sequence, seed, tokens };
            for kind in PolicyKind::value_variants() {
                let policy = Policy { kind: *kind, ..Policy::default() };
                let choice = policy.pick(&candidates, &ask);
                prop_assert_eq!(choice, policy.pick(&candidates, &ask));
                match choice {
                    None => prop_assert!(candidates.is_empty()),
                    Some(choice) => {
                        prop_assert!(choice.index < candidates.len());
                        prop_assert!(REASONS.contains(&choice.reason));
                    }
                }
            }
        }
    }

    #[test]
    fn every_policy_shares_out_an_idle_fleet() {
        let idle = [Candidate { in_flight: 0, tokens_in_flight: 0, report: None }; 4];
        for kind in PolicyKind::value_variants() {
            let policy = Policy { kind: *kind, ..Policy::default() };
            let mut random = fastrand::Rng::with_seed(5);
            let mut counts = [0; 4];
            for sequence in 0..4_000 {
                let ask = Ask { sequence, seed: random.u64(..), tokens: 100 };
                counts[policy.pick(&idle, &ask).unwrap().index] += 1;
            }
            assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{kind:?} {counts:?}");
        }
    }

    #[test]
    fn a_name_in_the_configuration_is_the_name_in_metrics() {
        for kind in PolicyKind::value_variants() {
            let policy = Policy { kind: *kind, ..Policy::default() };
            assert_eq!(kind.to_possible_value().unwrap().get_name(), policy.name());
        }
    }
}
