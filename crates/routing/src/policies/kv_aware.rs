//! Policy `kv_aware`: picks the candidate with the least predicted time to first token (TTFT) per
//! unit of weight, with a charge for the delay of other requests.
//!
//! ```text
//! prefill  = uncached × per_token
//! ttft     = base + queue + prefill + adapter + overdue
//! cost     = (base + queue + prefill × (1 + waiting)) × crowding
//!            + prefill × 2 × k + pressure × full × uncached ÷ prompt
//!            + adapter + overdue + half an objective, if ttft exceeds the objective
//!
//! queue    = max(backlog × per_token, slot_wait)
//! waiting  = waiting requests per backend, at most 8
//! crowding = (1 + requests) ÷ (1 + mean of requests over the candidates)
//! k        = kv_usage + (uncached + output) ÷ capacity, at most 1
//! full     = max(k − 0.9, 0) ÷ 0.1
//! ```
//!
//! The first line of `cost` is the delay of this request and of those that wait behind its prefill. The
//! numbers in brackets were measured without the term: the percentage points of goodput that are lost, and
//! the TTFT p99, which is 8.5 s with all terms (`docs/benchmarks/routing.md`, "Terms").
//!
//! - `base` and `per_token` are learned from the first outputs of the backend, so a slower backend
//!   gets fewer requests. While no output confirms it, an estimate moves towards the estimates of the
//!   other candidates, see [`impute_missing_estimates`](crate::impute_missing_estimates).
//! - `crowding` (1.8, 7.9 s for the prefill): a backend with more requests computes each step more slowly,
//!   and a prefill there delays more outputs. `crowding` counts waiting requests as well: requests of a
//!   burst that have just been sent slow down the next steps. It is relative to the fleet, so prefill does
//!   not outweigh the queue where all backends have many requests.
//! - `waiting` (2.0, 9.3 s): in an M/M/1 queue, as many requests wait for a prefill as are in the queue.
//! - `k` (eviction 0.3, 8.4 s): a prompt that is computed evicts other blocks, the more the fuller the cache
//!   is. Without this term, small and empty caches stay overloaded (`overload_tests.rs` in `lab`).
//! - `full` (0.2, 8.2 s): a request makes the engine preempt others in a full cache, however short its
//!   prefill. With this term, two real engines had 4 preemptions instead of 14. The factor
//!   `uncached ÷ prompt` keeps a request at a full backend that has its prefix. From 0.1 to 5 s the value of
//!   `pressure` does not matter.
//! - `slot_wait`: an engine runs a limited number of sequences at once. Once that number is
//!   learned, this is the time until one of them ends.
//! - `uncached` excludes the expected share of tokens at the
//!   [rendezvous backend](crate::mark_rendezvous) of the prompt.
//! - `adapter` counts if the backend has not loaded the LoRA adapter of the request.
//! - `overdue` (−0.4, 8.2 s): time for which the oldest request without output has waited beyond its own
//!   prediction. The cause also delays the requests behind it. No other term detects an engine at a
//!   standstill.
//! - A late candidate (−0.1, 8.8 s), whose `ttft` exceeds the TTFT objective, costs half of the objective
//!   more. So a candidate in time is picked unless its additional prefill delays other requests for longer.
//!   The preference must be bounded: in an overloaded fleet, requests that leave the cached prefix for the
//!   backends in time make these backends compute and evict so much that the overload stays.
//!
//! `docs/decisions/0014-routing-cost.md` lists the terms that were measured and left out.

pub use super::selection::tie_limit;
use super::selection::{least, longest_idle};
use super::session;
use crate::{CachedSource, Candidate, PolicyChoice, PrefillCost, RoutingRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Weights of the policy `kv_aware`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KvAwareSettings {
    /// Seconds added at a backend with a full KV cache for a request without a cached prefix there. Nothing is
    /// added up to a usage of 0.9.
    pub pressure: f64,
    /// Share of the prompt that counts as cached at the backend of its session, if less is known to
    /// be cached.
    pub session: f64,
    /// Age in seconds at which the last scraped load counts for half in predictions.
    pub horizon_seconds: f64,
    /// Predicted TTFT in seconds above which a backend counts as late: the strictest objective of
    /// `ttft` in `slos`. 0: none.
    #[serde(skip)]
    pub ttft_objective_seconds: f64,
}

impl Default for KvAwareSettings {
    fn default() -> Self {
        Self { pressure: 0.5, session: 0.5, horizon_seconds: 5.0, ttft_objective_seconds: 0.0 }
    }
}

/// Cost of the blocks that a prefill evicts from a full cache, relative to the cost of the prefill:
/// the evicted blocks are computed again, and then evict other blocks.
const EVICTION: f64 = 2.0;
/// KV cache usage up to which the engine rarely preempts requests.
const FREE_USAGE: f64 = 0.9;
/// Waiting requests per backend above which the cost of prefill does not grow.
const MAX_WAITING: f64 = 8.0;
/// Cost added to a late candidate, relative to the TTFT objective that it exceeds.
const LATE_PENALTY: f64 = 0.5;
/// Seconds that a backend takes to load a LoRA adapter.
const ADAPTER_SECONDS: f64 = 1.0;

/// The mean load of all candidates of a decision.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FleetLoad {
    /// Mean number of waiting requests per candidate backend, at most [`MAX_WAITING`].
    waiting: f64,
    /// Mean number of waiting and running requests.
    requests: f64,
}

/// The terms of a cost in seconds: see the [module documentation](self).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CostTerms {
    /// Time to the first output of an empty prompt × crowding.
    pub base: f64,
    /// Time of the prompts that the engine computes before this one, or of the wait for a slot, whichever
    /// is longer, × crowding.
    pub queue: f64,
    /// Time of the prompt tokens of this request that are not cached × crowding.
    pub prefill: f64,
    /// Delay of the waiting requests that `prefill` causes.
    pub charge: f64,
    /// Cost of the blocks that `prefill` evicts from the KV cache, and of preemptions in a full cache.
    pub pressure: f64,
    /// Time to load the LoRA adapter of the request. 0: the backend has loaded it.
    pub adapter: f64,
    /// Delay of the requests without output beyond their predictions.
    pub overdue: f64,
    /// Half of the TTFT objective if the predicted TTFT exceeds the objective, else 0.
    pub late: f64,
    /// Predicted TTFT. It is no part of the cost.
    #[serde(skip)]
    pub ttft: f64,
}

/// The choice of the candidate with the least cost, and its reason.
pub(crate) fn pick(
    settings: &KvAwareSettings,
    candidates: &[Candidate],
    request: &RoutingRequest,
) -> PolicyChoice {
    let home = home(candidates, request);
    let fleet = FleetLoad::new(candidates);
    let parts = |(index, candidate): (usize, &Candidate)| {
        let terms = terms(settings, candidate, home == Some(index), &fleet);
        let CostTerms { late, pressure, ttft, .. } = terms;
        Parts { cost: terms.cost(candidate), late, pressure, ttft }
    };
    let parts = candidates.iter().enumerate().map(parts).collect();
    let decision = Decision { settings, candidates, request, home, fleet, parts };
    let index = decision.choose(decision.costs(), home);
    PolicyChoice { index, reason: decision.reason(index) }
}

/// Index of the candidate to which the session of a request is hashed. `None`: the request has no session.
pub(crate) fn home(candidates: &[Candidate], request: &RoutingRequest) -> Option<usize> {
    request.session.and_then(|session| session::highest_scored(candidates, session, |_| true))
}

/// The terms of the cost of a candidate. `is_session_candidate`: the session of the request is hashed
/// to this candidate. `fleet`: all candidates of the decision.
#[inline] // a decision evaluates each candidate
pub fn terms(
    settings: &KvAwareSettings,
    candidate: &Candidate,
    is_session_candidate: bool,
    fleet: &FleetLoad,
) -> CostTerms {
    terms_with(settings, candidate, cached(settings, candidate, is_session_candidate), fleet)
}

/// The terms of the cost of a candidate that has `cached` tokens of the prompt in its cache.
#[inline]
pub(super) fn terms_with(
    settings: &KvAwareSettings,
    candidate: &Candidate,
    cached: f64,
    fleet: &FleetLoad,
) -> CostTerms {
    let uncached = candidate.prompt - cached;
    let crowding = (1.0 + candidate.waiting + candidate.running) / (1.0 + fleet.requests);
    let k = match (candidate.kv_usage, candidate.capacity) {
        (Some(usage), Some(capacity)) => usage + (uncached + candidate.output) / capacity as f64,
        (usage, _) => usage.unwrap_or(0.0),
    };
    let k = k.clamp(0.0, 1.0);
    let full = (k - FREE_USAGE).max(0.0) / (1.0 - FREE_USAGE);
    let uncached_share = uncached / candidate.prompt.max(1.0);
    let PrefillCost { base, per_token } = candidate.prefill;
    let backlog = candidate.backlog * per_token;
    let prefill = uncached * per_token;
    // The engine computes the prompts of the backlog while the request waits for a slot.
    let queue = if candidate.slot_wait > backlog { candidate.slot_wait } else { backlog };
    let adapter = if candidate.has_adapter { 0.0 } else { ADAPTER_SECONDS };
    let objective = settings.ttft_objective_seconds;
    let ttft = base + queue + prefill + adapter + candidate.overdue;
    let is_late = objective > 0.0 && ttft > objective;
    CostTerms {
        base: base * crowding,
        queue: queue * crowding,
        prefill: prefill * crowding,
        charge: prefill * fleet.waiting * crowding,
        pressure: prefill * k * EVICTION + settings.pressure * full * uncached_share,
        adapter,
        overdue: candidate.overdue,
        late: if is_late { LATE_PENALTY * objective } else { 0.0 },
        ttft,
    }
}

/// Predicted TTFT of a candidate in seconds: see the [module documentation](self).
/// `is_session_candidate`: the session of the request is hashed to this candidate.
pub fn ttft(settings: &KvAwareSettings, candidate: &Candidate, is_session_candidate: bool) -> f64 {
    terms(settings, candidate, is_session_candidate, &FleetLoad::default()).ttft
}

/// Tokens of the prompt that probably need not be computed.
pub(super) fn cached(
    settings: &KvAwareSettings,
    candidate: &Candidate,
    is_session_candidate: bool,
) -> f64 {
    let mut cached = candidate.cached;
    if candidate.is_rendezvous {
        cached += candidate.rendezvous_hit_share * (candidate.prompt - cached);
    }
    if is_session_candidate && candidate.cached_source == CachedSource::Approximate {
        cached = cached.max(settings.session * candidate.prompt);
    }
    cached
}

// === impl FleetLoad ===

impl FleetLoad {
    /// The mean load of these candidates.
    pub fn new(candidates: &[Candidate]) -> Self {
        let count = candidates.len().max(1) as f64;
        let sums = candidates.iter().fold([0.0; 2], |[waiting, all], candidate| {
            [waiting + candidate.waiting, all + candidate.waiting + candidate.running]
        });
        Self { waiting: (sums[0] / count).min(MAX_WAITING), requests: sums[1] / count }
    }
}

// === impl CostTerms ===

impl CostTerms {
    /// The cost that the policy compares, in seconds per unit of weight.
    #[inline]
    pub fn cost(&self, candidate: &Candidate) -> f64 {
        let Self { base, queue, prefill, charge, pressure, adapter, overdue, late, .. } = self;
        per_weight(base + queue + prefill + charge + pressure + adapter + overdue + late, candidate)
    }
}

/// Divides `seconds` by the weight of a candidate.
pub fn per_weight(seconds: f64, candidate: &Candidate) -> f64 {
    if candidate.weight > 1 { seconds / f64::from(candidate.weight) } else { seconds }
}

/// One decision of the policy `kv_aware`: its input, and the cost of each candidate.
pub(super) struct Decision<'a> {
    pub(super) settings: &'a KvAwareSettings,
    pub(super) candidates: &'a [Candidate],
    pub(super) request: &'a RoutingRequest,
    /// Index of the candidate to which the session is hashed. `None`: the request has no session.
    pub(super) home: Option<usize>,
    pub(super) fleet: FleetLoad,
    /// The cost and the terms of each candidate, by the index of the candidate.
    pub(super) parts: Vec<Parts>,
}

/// The cost of a candidate, the terms of the cost that a routing reason can name, and the predicted
/// TTFT.
pub(super) struct Parts {
    pub(super) cost: f64,
    pub(super) late: f64,
    pub(super) pressure: f64,
    pub(super) ttft: f64,
}

// === impl Decision ===

impl Decision<'_> {
    /// Cost of each candidate.
    pub(super) fn costs(&self) -> impl Iterator<Item = f64> + Clone {
        self.parts.iter().map(|parts| parts.cost)
    }

    /// Returns the index of the candidate with the least cost. Candidates that tie take turns,
    /// except that a session stays at its backend, `home`.
    pub(super) fn choose(
        &self,
        costs: impl Iterator<Item = f64> + Clone,
        home: Option<usize>,
    ) -> usize {
        let limit = tie_limit(least(costs.clone()));
        home.filter(|home| costs.clone().nth(*home).is_some_and(|cost| cost <= limit))
            .unwrap_or_else(|| longest_idle(self.candidates, costs, limit, self.request.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrefillCost;
    use crate::tests::idle_candidate;

    fn choose(candidates: &[Candidate]) -> PolicyChoice {
        choose_for(&RoutingRequest::default(), candidates)
    }

    fn choose_for(request: &RoutingRequest, candidates: &[Candidate]) -> PolicyChoice {
        pick(&KvAwareSettings::default(), candidates, request)
    }

    const fn choice(index: usize, reason: &'static str) -> PolicyChoice {
        PolicyChoice { index, reason }
    }

    #[test]
    fn a_short_queue_can_beat_a_prefix() {
        let idle = idle_candidate();
        let warm =
            Candidate { cached: 500.0, cached_blocks: 4, backlog: 20_000.0, ..idle_candidate() };
        assert_eq!(choose(&[warm, idle]), choice(1, "prefix_too_busy"));
        let warm = Candidate { backlog: 400.0, ..warm };
        assert_eq!(choose(&[warm, idle]), choice(0, "cached_prefix"));
    }

    #[test]
    fn a_faster_backend_gets_more_requests() {
        let fast = PrefillCost { base: 0.05, per_token: 2.5e-5 };
        let mut fleet = [Candidate { prefill: fast, ..idle_candidate() }, idle_candidate()];
        let mut counts = [0; 2];
        for _ in 0..100 {
            let index = choose(&fleet).index;
            counts[index] += 1;
            fleet[index].backlog += 1_000.0;
        }
        assert!((75..=85).contains(&counts[0]), "{counts:?}");
    }

    /// Returns the cost of a candidate that is the only one of the decision.
    fn cost(candidate: Candidate) -> f64 {
        let settings = KvAwareSettings::default();
        terms(&settings, &candidate, false, &FleetLoad::default()).cost(&candidate)
    }

    #[test]
    fn cost_grows_with_kv_cache_usage() {
        let at = |usage| cost(Candidate { kv_usage: Some(usage), ..idle_candidate() });
        let costs: Vec<f64> = (0..=19).map(|n| at(f64::from(n) / 20.0)).collect();
        assert!(costs.windows(2).all(|pair| pair[1] > pair[0]));
        assert!(at(0.95) - at(0.90) > 4.0 * (at(0.55) - at(0.50)));
        assert!(at(1e9).is_finite());
        let cached =
            |usage| cost(Candidate { cached: 1_000.0, kv_usage: Some(usage), ..idle_candidate() });
        assert!((cached(0.97) - cached(0.1)).abs() < 1e-9, "nothing is computed");
    }

    #[test]
    fn full_caches_are_avoided_unless_they_help() {
        let full = Candidate { kv_usage: Some(0.97), ..idle_candidate() };
        assert_eq!(choose(&[full, idle_candidate()]), choice(1, "kv_pressure"));
        let hot = Candidate { cached: 900.0, cached_blocks: 7, ..full };
        assert_eq!(choose(&[hot, idle_candidate()]), choice(0, "cached_prefix"));
    }

    #[test]
    fn fewer_running_requests_win_between_equal_queues() {
        let crowded = Candidate { running: 12.0, ..idle_candidate() };
        let other = Candidate { running: 6.0, ..idle_candidate() };
        assert_eq!(choose(&[crowded, other]), choice(1, "lowest_ttft"));
    }

    #[test]
    fn a_session_stays_until_its_backend_is_busy() {
        for prompt in [1_000.0, 5.0] {
            let mut fleet = [1, 2, 3].map(|key| Candidate { key, prompt, ..idle_candidate() });
            let request = RoutingRequest { session: Some(77), ..RoutingRequest::default() };
            let first = choose_for(&request, &fleet);
            assert_eq!(first.reason, "session", "{prompt} tokens");
            for sequence in 0..10 {
                assert_eq!(choose_for(&RoutingRequest { sequence, ..request }, &fleet), first);
            }
            fleet[first.index].backlog = 50_000.0;
            let moved = choose_for(&request, &fleet);
            assert_ne!(moved.index, first.index, "{prompt} tokens");
            assert_eq!(moved.reason, "session_too_busy", "{prompt} tokens");
        }
    }

    #[test]
    fn a_loaded_adapter_wins_unless_it_takes_longer() {
        let without = Candidate { has_adapter: false, ..idle_candidate() };
        assert_eq!(choose(&[without, idle_candidate()]).index, 1);
        let busy = Candidate { backlog: 50_000.0, ..idle_candidate() };
        assert_eq!(choose(&[without, busy]).index, 0);
    }

    #[test]
    fn an_overdue_backend_is_avoided_with_its_reason() {
        let overdue = Candidate { overdue: 0.5, ..idle_candidate() };
        assert_eq!(choose(&[overdue, idle_candidate()]), choice(1, "avoids_overdue"));
        let warm = Candidate { cached: 900.0, ..overdue };
        assert_eq!(choose(&[warm, idle_candidate()]), choice(1, "avoids_overdue"));
        // A backend with an even longer backlog is no better.
        let busy = Candidate { backlog: 50_000.0, ..idle_candidate() };
        assert_eq!(choose(&[overdue, busy]), choice(0, "lowest_ttft"));
    }

    /// Returns the choice of the policy under this TTFT objective.
    fn choose_within(ttft_objective_seconds: f64, candidates: &[Candidate]) -> PolicyChoice {
        let settings = KvAwareSettings { ttft_objective_seconds, ..KvAwareSettings::default() };
        pick(&settings, candidates, &RoutingRequest::default())
    }

    /// A backend with most of a long prompt in its cache, and a backlog of 2 s.
    fn late_with_long_prefix() -> Candidate {
        Candidate {
            prompt: 30_000.0,
            cached: 29_000.0,
            cached_blocks: 200,
            backlog: 20_000.0,
            ..idle_candidate()
        }
    }

    #[test]
    fn a_backend_within_the_objective_wins() {
        // The cached prefix saves more than the wait costs, but the wait is too long.
        let warm = late_with_long_prefix();
        let cold = Candidate { cached: 14_000.0, cached_blocks: 105, backlog: 0.0, ..warm };
        assert_eq!(choose(&[warm, cold]).reason, "cached_prefix");
        assert_eq!(choose_within(2.0, &[warm, cold]), choice(1, "avoids_late"));
    }

    #[test]
    fn under_overload_a_prefix_outweighs_the_objective() {
        let late = Candidate { waiting: 8.0, ..late_with_long_prefix() };
        let in_time = Candidate { cached: 12_000.0, cached_blocks: 90, backlog: 0.0, ..late };
        assert_eq!(choose_within(2.0, &[late, in_time]), choice(0, "cached_prefix"));
    }

    #[test]
    fn of_two_late_backends_the_unqueued_wins() {
        let long = Candidate { prompt: 20_000.0, ..idle_candidate() };
        let fleet = [long, Candidate { backlog: 1_000.0, ..long }];
        assert_eq!(choose_within(0.5, &fleet).index, 0);
    }

    #[test]
    fn uncached_tokens_cost_more_in_busy_pools() {
        let warm = Candidate { cached: 900.0, backlog: 2_500.0, ..idle_candidate() };
        let calm = [warm, idle_candidate()];
        assert_eq!(choose(&calm).index, 1);
        let busy = calm.map(|candidate| Candidate { waiting: 4.0, ..candidate });
        assert_eq!(choose(&busy).index, 0);
    }

    #[test]
    fn queues_count_even_if_all_are_overdue() {
        let overdue = Candidate { overdue: 3.0, ..idle_candidate() };
        let busy = Candidate { overdue: 2.0, backlog: 20_000.0, ..idle_candidate() };
        assert_eq!(choose(&[overdue, busy]).index, 0);
        assert_eq!(choose(&[overdue, Candidate { backlog: 0.0, ..busy }]).index, 1);
    }

    #[test]
    fn slot_wait_and_backlog_are_not_summed() {
        let full = Candidate { slot_wait: 0.5, ..idle_candidate() };
        assert_eq!(choose(&[full, idle_candidate()]).index, 1);
        let both = Candidate { backlog: 5_000.0, ..full };
        assert!((cost(both) - cost(full)).abs() < 1e-9, "5,000 tokens take half a second too");
    }

    #[test]
    fn backends_without_load_reports_are_picked_equally_often() {
        let unknown =
            Candidate { kv_usage: None, capacity: None, certainty: 0.0, ..idle_candidate() };
        let counts = (0..300).fold([0; 3], |mut counts, sequence| {
            let request = RoutingRequest { sequence, ..RoutingRequest::default() };
            counts[choose_for(&request, &[unknown; 3]).index] += 1;
            counts
        });
        assert_eq!(counts, [100; 3]);
    }
}
