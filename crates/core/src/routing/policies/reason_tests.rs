//! The reasons of `kv_aware` hold: 4,000 random decisions are compared with a second definition of
//! each reason.

use super::kv_aware::{self, FleetLoad, KvAwareSettings};
use super::mark_rendezvous;
use crate::routing::tests::idle_candidate;
use crate::routing::{Candidate, Policy, PolicyChoice, PrefillCost, RoutingRequest, mix};
use std::collections::BTreeMap;

const DECISIONS: u64 = 4_000;
/// Tokens of a block of the prefix index.
const BLOCK_TOKENS: f64 = 128.0;

/// A decision and the values that its reason is about, by candidate.
struct Decision {
    candidates: Vec<Candidate>,
    request: RoutingRequest,
    choice: PolicyChoice,
    costs: Vec<f64>,
    is_late: Vec<bool>,
    /// What a late candidate costs more.
    late_penalty: f64,
}

impl Decision {
    fn random(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(mix(seed));
        let prompt = 100.0 + 20_000.0 * random.f64().powi(3);
        let has_overdue = random.u8(..) < 64;
        let mut candidate = |position: usize| {
            let cached_blocks = if random.bool() { 0 } else { random.u32(..20) };
            let is_overdue = has_overdue && random.bool();
            Candidate {
                position,
                key: mix(position as u64),
                prompt,
                cached: (f64::from(cached_blocks) * BLOCK_TOKENS).min(prompt),
                cached_blocks,
                backlog: if random.bool() { 0.0 } else { 40_000.0 * random.f64() },
                waiting: f64::from(random.u8(..8)),
                running: f64::from(random.u8(..32)),
                prefill: PrefillCost { base: 0.02, per_token: 3e-5 * (1.0 + random.f64()) },
                idle_seconds: random.f64(),
                overdue: if is_overdue { 2.0 * random.f64() } else { 0.0 },
                ..idle_candidate()
            }
        };
        let mut candidates: Vec<Candidate> = (0..4).map(&mut candidate).collect();
        if random.bool() {
            let blocks: Vec<u64> = (0..20).map(|block| mix(seed ^ block)).collect();
            mark_rendezvous(&mut candidates, &blocks);
        }
        let session = random.bool().then(|| random.u64(..));
        let request = RoutingRequest { sequence: seed, seed, session };
        let ttft_objective_seconds = [0.0, 0.3, 1.0][random.usize(..3)];
        let settings = KvAwareSettings { ttft_objective_seconds, ..KvAwareSettings::default() };
        let policy = Policy { kv_aware: settings, ..Policy::default() };
        let choice = policy.pick(&candidates, &request).unwrap();
        let (fleet, home) = (FleetLoad::new(&candidates), kv_aware::home(&candidates, &request));
        let evaluated = || candidates.iter().enumerate().map(|(index, c)| (c, home == Some(index)));
        let uncached = |c: &Candidate| c.prefill.seconds(c.prompt - c.cached);
        let unloaded = candidates.iter().map(uncached).fold(f64::INFINITY, f64::min);
        let limit = ttft_objective_seconds.max(4.0 * unloaded);
        let is_late = |(c, is_home)| {
            ttft_objective_seconds > 0.0 && kv_aware::ttft(&settings, c, is_home) > limit
        };
        Self {
            costs: evaluated()
                .map(|(c, home)| kv_aware::cost(&settings, c, home, &fleet))
                .collect(),
            is_late: evaluated().map(is_late).collect(),
            late_penalty: limit / 2.0,
            candidates,
            request,
            choice,
        }
    }

    fn holds(&self) -> bool {
        let chosen = self.choice.index;
        let candidate = &self.candidates[chosen];
        let blocks = || self.candidates.iter().map(|candidate| candidate.cached_blocks);
        let (most, least) = (blocks().max().unwrap(), blocks().min().unwrap());
        let home = kv_aware::home(&self.candidates, &self.request);
        let any = |matches: &dyn Fn(usize) -> bool| (0..self.candidates.len()).any(matches);
        let is_right = match self.choice.reason {
            "all_late" => return self.is_late.iter().all(|is_late| *is_late),
            "avoids_late" => {
                !self.is_late[chosen]
                    && any(&|other| self.is_late[other] && self.costs[other] < self.costs[chosen])
            }
            "avoids_overdue" => any(&|other| {
                let delay = self.candidates[other].overdue;
                delay > candidate.overdue
                    && self.costs[other] - delay <= self.costs[chosen] - candidate.overdue
            }),
            "cached_prefix" => candidate.cached_blocks == most && most > least,
            "prefix_too_busy" => candidate.cached_blocks < most,
            "session" => home == Some(chosen),
            "session_too_busy" => home.is_some_and(|home| home != chosen),
            "rendezvous" => most == least && home.is_none() && candidate.is_rendezvous,
            "lowest_ttft" => most == least && home.is_none() && !candidate.is_rendezvous,
            other => panic!("{other}"),
        };
        let penalty = |index: usize| if self.is_late[index] { self.late_penalty } else { 0.0 };
        let rank = |index: usize| self.costs[index] + penalty(index);
        let lowest = (0..self.costs.len()).map(rank).fold(f64::INFINITY, f64::min);
        is_right && rank(chosen) <= 1.05 * lowest + 0.005
    }
}

#[test]
fn the_reason_of_each_decision_holds() {
    let mut counts = BTreeMap::new();
    for seed in 0..DECISIONS {
        let decision = Decision::random(seed);
        let reason = decision.choice.reason;
        assert!(decision.holds(), "{seed}: {reason} {:?} {:?}", decision.costs, decision.choice);
        *counts.entry(reason).or_insert(0) += 1;
    }
    assert!(counts.len() >= 9 && counts.values().all(|count| *count >= 10), "{counts:?}");
}
