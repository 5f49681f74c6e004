//! Tests that the reasons of `kv_aware` are true. They check the reasons of 4,000 random decisions against a
//! second definition of each reason.

use super::kv_aware::{self, FleetLoad, KvAwareSettings};
use crate::tests::idle_candidate;
use crate::{Candidate, Policy, PolicyChoice, PrefillCost, RoutingRequest, mix};
use std::collections::BTreeMap;

const DECISIONS: u64 = 4_000;
const BLOCK_TOKENS: f64 = 128.0;

struct Decision {
    settings: KvAwareSettings,
    candidates: Vec<Candidate>,
    request: RoutingRequest,
    choice: PolicyChoice,
}

impl Decision {
    fn random(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(mix(seed));
        let prompt = 100.0 + 20_000.0 * random.f64().powi(3);
        let is_quiet = random.u8(..) < 64;
        let mut candidate = |position: usize| {
            let cached_blocks = if is_quiet || random.bool() {
                0
            } else {
                random.u32(..20)
            };
            let is_idle = is_quiet || random.bool();
            Candidate {
                position,
                key: mix(position as u64),
                prompt,
                cached: (f64::from(cached_blocks) * BLOCK_TOKENS).min(prompt),
                cached_blocks,
                backlog: if is_idle {
                    0.0
                } else {
                    20_000.0 * random.f64()
                },
                waiting: if is_quiet {
                    0.0
                } else {
                    f64::from(random.u8(..4))
                },
                running: f64::from(random.u8(6..10)),
                prefill: PrefillCost {
                    base: 0.02,
                    per_token: 3e-5 * (1.0 + random.f64()),
                },
                kv_usage: Some(random.f64().sqrt()),
                idle_seconds: random.f64(),
                ..idle_candidate()
            }
        };
        let candidates: Vec<Candidate> = (0..4).map(&mut candidate).collect();
        let session = random.bool().then(|| random.u64(..));
        let request = RoutingRequest {
            sequence: seed,
            seed,
            session,
        };
        let settings = KvAwareSettings::default();
        let choice = Policy::default().pick(&candidates, &request).unwrap();
        Self {
            settings,
            candidates,
            request,
            choice,
        }
    }

    fn home(&self) -> Option<usize> {
        kv_aware::home(&self.candidates, &self.request)
    }

    /// Returns the costs of the candidates after `change` is applied to each. `home`: index of the
    /// candidate to which the session is hashed.
    fn costs(&self, home: Option<usize>, change: impl Fn(&mut Candidate)) -> Vec<f64> {
        self.costs_without(home, change, |_| 0.0)
    }

    fn costs_without(
        &self,
        home: Option<usize>,
        change: impl Fn(&mut Candidate),
        part: impl Fn(&kv_aware::CostTerms) -> f64,
    ) -> Vec<f64> {
        let fleet = FleetLoad::new(&self.candidates);
        let cost = |(index, candidate): (usize, &Candidate)| {
            let mut candidate = *candidate;
            change(&mut candidate);
            let terms = kv_aware::terms(&self.settings, &candidate, home == Some(index), &fleet);
            terms.cost() - part(&terms)
        };
        self.candidates.iter().enumerate().map(cost).collect()
    }

    /// Returns the indexes of the candidates whose cost ties with the lowest cost, within the tolerance of
    /// predictions.
    fn ties(costs: &[f64]) -> Vec<usize> {
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        (0..costs.len())
            .filter(|index| costs[*index] <= 1.05 * least + 0.005)
            .collect()
    }

    /// Among the candidates that tie for the lowest cost, returns the session's candidate or, if it is not
    /// among them, the one that has been idle longest.
    fn best(&self, costs: &[f64], home: Option<usize>) -> usize {
        let ties = Self::ties(costs);
        let idle = |index: &&usize| (self.candidates[**index].idle_seconds * 1e9) as u64;
        home.filter(|home| ties.contains(home))
            .unwrap_or_else(|| *ties.iter().max_by_key(idle).unwrap())
    }

    fn holds(&self) -> bool {
        let chosen = self.choice.index;
        let home = self.home();
        let own = &self.candidates[chosen];
        let differs = |costs: Vec<f64>| self.best(&costs, home) != chosen;
        let own_costs = self.costs(home, |_| ());
        let others_blocks = self.candidates.iter().map(|other| other.cached_blocks);
        let has_longer = others_blocks.max().unwrap() > own.cached_blocks;
        let ttfts: Vec<f64> = (self.candidates.iter().enumerate())
            .map(|(index, it)| kv_aware::ttft(&self.settings, it, home == Some(index)))
            .collect();
        let is_lowest_ttft = ttfts.iter().all(|ttft| ttfts[chosen] <= *ttft);
        let is_right = match self.choice.reason {
            "session" => home == Some(chosen) && Self::ties(&self.costs(None, |_| ())) != [chosen],
            "cached_prefix" => differs(self.costs(None, |it| it.cached = 0.0)),
            "kv_pressure" => differs(self.costs_without(home, |_| (), |terms| terms.pressure)),
            "prefix_too_busy" => has_longer,
            "session_too_busy" => home.is_some_and(|home| home != chosen) && !has_longer,
            "tie" => Self::ties(&own_costs).len() > 1,
            "lowest_ttft" => is_lowest_ttft && Self::ties(&own_costs) == [chosen],
            "lowest_cost" => !is_lowest_ttft && Self::ties(&own_costs) == [chosen],
            other => panic!("{other}"),
        };
        is_right && self.best(&own_costs, home) == chosen
    }
}

#[test]
fn reasons_agree_with_a_second_definition() {
    let mut counts = BTreeMap::new();
    for seed in 0..DECISIONS {
        let decision = Decision::random(seed);
        let reason = decision.choice.reason;
        assert!(decision.holds(), "{seed}: {reason} {:?}", decision.choice);
        *counts.entry(reason).or_insert(0) += 1;
    }
    assert!(
        counts.len() == 8 && counts.values().all(|count| *count >= 10),
        "{counts:?}"
    );
}
