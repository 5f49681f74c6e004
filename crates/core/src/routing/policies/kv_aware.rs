//! Policy `kv_aware`: picks the candidate with the least predicted time to first token (TTFT) per
//! unit of weight, with a charge for the delay of other requests.
//!
//! ```text
//! ttft   = base + queue + uncached × per_token + adapter_seconds + overdue
//! queue  = max(backlog × per_token, slot_wait)
//!
//! cost   = base + queue + work × per_token × (1 + charge)
//!          + pressure × k ÷ (1 − k) + adapter_seconds + overdue
//! work   = prompt − cached × reuse              prompt tokens to compute
//! reuse  = (1 − k) ÷ (1 − cache_reuse_threshold), from 0 to 1
//! k      = kv_usage + (prompt − cached + output) ÷ capacity
//! charge = charge_base + min(charge_per_waiting × waiting requests per backend, charge_max) × crowding
//! crowding = (1 + running) ÷ (1 + mean of running over the candidates)
//! ```
//!
//! - `base` and `per_token` are learned from the first outputs of the backend, so a slower backend
//!   gets fewer requests. A learned difference between backends needs evidence, see
//!   [`impute_missing_estimates`](crate::routing::impute_missing_estimates).
//! - `charge`: the request waits for its own prefill, and so do the requests behind it. In an M/M/1
//!   queue, their number is the number of requests in the queue. A prompt that is computed at a
//!   second backend also evicts blocks there, therefore the charge of an idle fleet is not 0.
//! - `crowding`: a backend that runs more requests delays more of them by a prefill. It is relative
//!   to the fleet, so prefill does not outweigh the queue where all backends run many requests. Where
//!   no request waits it has no effect: long prompts would avoid the backend with the least TTFT.
//! - `k` is the KV cache usage with this request. In a full cache the engine makes requests wait
//!   or preempts them, and it computes a preempted request twice. The pressure therefore grows
//!   without bound, and a prefix in an almost full cache counts for nothing: it may be evicted.
//! - `slot_wait`: an engine runs a limited number of sequences at once. Once that number is
//!   learned, this is the time until one of them ends.
//! - `cached` contains the expected share of the uncached tokens at the
//!   [rendezvous backend](crate::routing::mark_rendezvous) of the prompt.
//! - `adapter_seconds` counts if the backend has not loaded the LoRA adapter of the request.
//! - `overdue`: time for which the oldest request without output has waited beyond its own
//!   prediction. The cause also delays the requests behind it. No other term detects a frozen
//!   engine.
//!
//! # Objective
//!
//! A candidate is late if its `ttft` exceeds the objective. A late candidate costs half an objective
//! more, so a candidate in time is picked unless its additional prefill delays other requests for
//! longer. The preference must be bounded: in an overloaded fleet, requests that leave the cached
//! prefix for the backends in time make these backends compute and evict so much that the overload
//! stays. If all candidates are late, a policy that makes all requests equally late meets no objective
//! at all. Then, among the candidates with the fewest uncached tokens, the one with the greatest
//! lateness wins: the request is late anyway, and there it delays only requests that are late as
//! well; the other backends recover. No backend gets later than [`MAX_LATENESS`] in this way.
//!
//! # Terms that were measured and left out
//!
//! In the tournament of `tokenweir-lab replay`, these terms did not raise the goodput: the decode time
//! that the request sees and causes, an objective of the time per output token (avoiding backends
//! above it breaks up shared prefixes), and the preemption rate (the pressure acts before the engine
//! preempts).

use super::selection::longest_idle;
pub use super::selection::tie_limit;
use super::session;
use crate::routing::{CachedSource, Candidate, PolicyChoice, RoutingRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Weights of the policy `kv_aware`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KvAwareSettings {
    /// Seconds added to the cost of a backend whose KV cache is half full. At a usage of k,
    /// `pressure` × k ÷ (1 − k) seconds are added.
    pub pressure: f64,
    /// Charge for prefill in an idle fleet: 1 counts each second of prefill twice.
    pub charge_base: f64,
    /// Increase of the charge for each waiting request per backend. It counts more at a backend that
    /// runs more requests than the mean of the fleet.
    pub charge_per_waiting: f64,
    /// Upper limit of that increase.
    pub charge_max: f64,
    /// KV cache usage, from 0 to 1, above which a cached prefix counts less. The part that counts
    /// falls linearly and is 0 at a usage of 1.
    pub cache_reuse_threshold: f64,
    /// Share of the prompt that is assumed to be cached at the backend of its session, if less of
    /// the prompt is known to be cached there.
    pub session: f64,
    /// Seconds that a backend takes to load a LoRA adapter.
    pub adapter_seconds: f64,
    /// Age in seconds at which the last scraped load counts for half in predictions.
    pub horizon_seconds: f64,
    /// Predicted TTFT in seconds above which a backend counts as late, if `slos` has no objective of
    /// `ttft`. A late backend costs half an objective more. 0: no backend is late.
    pub ttft_objective_seconds: f64,
}

impl Default for KvAwareSettings {
    fn default() -> Self {
        Self {
            pressure: 0.2,
            charge_base: 0.7,
            charge_per_waiting: 1.0,
            charge_max: 8.0,
            cache_reuse_threshold: 0.9,
            session: 0.5,
            adapter_seconds: 1.0,
            horizon_seconds: 5.0,
            ttft_objective_seconds: 0.0,
        }
    }
}

/// KV cache usage above which the pressure grows linearly, so that it stays finite.
const MAX_PRESSURE_USAGE: f64 = 0.98;
/// Slope of the pressure above [`MAX_PRESSURE_USAGE`]. It is multiplied by
/// [`KvAwareSettings::pressure`], like the rest of the pressure.
const OVERFULL_PRESSURE_SLOPE: f64 = 60.0;
/// Multiple of the TTFT without a queue up to which no request is late. A long prompt on a slow
/// engine would otherwise always be late, and all its kind would be sent to one backend.
const MIN_SLOWDOWN: f64 = 4.0;
/// Cost added to a late candidate, relative to the objective.
const LATE_PENALTY: f64 = 0.5;
/// Greatest lateness of a backend that gets further late requests.
pub const MAX_LATENESS: f64 = 30.0;
/// Uncached tokens by which candidates differ only by the size of a block: a few milliseconds of
/// prefill.
const WORK_TOLERANCE: f64 = 128.0;

/// Mean numbers of waiting and of running requests per candidate backend of a decision.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FleetLoad {
    waiting: f64,
    running: f64,
}

/// A candidate as the policy evaluates it.
#[derive(Debug, Clone, Copy)]
struct Evaluation {
    /// See [`cost`].
    cost: f64,
    /// The cost, plus [`LATE_PENALTY`] for a late candidate.
    rank: f64,
    /// Predicted TTFT ÷ objective. 0: there is no objective.
    lateness: f64,
}

pub(in crate::routing) fn pick(
    settings: &KvAwareSettings,
    candidates: &[Candidate],
    request: &RoutingRequest,
) -> PolicyChoice {
    let session_index = home(candidates, request);
    let fleet = FleetLoad::new(candidates);
    let ttft_limit = ttft_limit(settings, candidates);
    let evaluations: Vec<Evaluation> = candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| {
            let is_session_candidate = session_index == Some(index);
            let cost = cost(settings, candidate, is_session_candidate, &fleet);
            let mut evaluation = Evaluation { cost, rank: cost, lateness: 0.0 };
            // Without an objective no candidate is late.
            if ttft_limit.is_finite() {
                evaluation.lateness = ttft(settings, candidate, is_session_candidate) / ttft_limit;
                if evaluation.is_late() {
                    evaluation.rank += LATE_PENALTY * ttft_limit;
                }
            }
            evaluation
        })
        .collect();
    if evaluations.iter().all(Evaluation::is_late) {
        let uncached = |(index, candidate): (usize, &Candidate)| {
            candidate.prompt - cached(settings, candidate, session_index == Some(index))
        };
        let uncached: Vec<f64> = candidates.iter().enumerate().map(uncached).collect();
        return pick_latest(&evaluations, &uncached);
    }
    let ranks = evaluations.iter().map(|evaluation| evaluation.rank);
    let least = ranks.clone().fold(f64::INFINITY, f64::min);
    let limit = tie_limit(least);
    // Ties take turns, except that a session stays at its backend.
    let is_tie = |index: &usize| evaluations[*index].rank <= limit;
    let index = session_index
        .filter(is_tie)
        .unwrap_or_else(|| longest_idle(candidates, &ranks, limit, request.sequence));
    PolicyChoice { index, reason: reason(candidates, &evaluations, index, session_index) }
}

/// All candidates are late: picks the latest up to [`MAX_LATENESS`] among those with the fewest
/// uncached tokens, else the one that is least late. `uncached`: prompt tokens by candidate.
fn pick_latest(evaluations: &[Evaluation], uncached: &[f64]) -> PolicyChoice {
    let limit = uncached.iter().copied().fold(f64::INFINITY, f64::min) + WORK_TOLERANCE;
    let rank = |evaluation: &Evaluation| {
        let lateness = evaluation.lateness;
        if lateness <= MAX_LATENESS { -lateness } else { lateness }
    };
    let ranks = evaluations.iter().enumerate().filter(|(index, _)| uncached[*index] <= limit);
    let ranks = ranks.map(|(index, evaluation)| (index, rank(evaluation)));
    let first = ranks.min_by(|a, b| a.1.total_cmp(&b.1));
    PolicyChoice { index: first.map_or(0, |(index, _)| index), reason: "all_late" }
}

/// Predicted TTFT above which a candidate is late for this request.
/// Infinity without an objective.
fn ttft_limit(settings: &KvAwareSettings, candidates: &[Candidate]) -> f64 {
    if settings.ttft_objective_seconds <= 0.0 {
        return f64::INFINITY;
    }
    let without_queue = |candidate: &Candidate| {
        candidate.prefill.seconds((candidate.prompt - candidate.cached).max(0.0))
    };
    let least = candidates.iter().map(without_queue).fold(f64::INFINITY, f64::min);
    settings.ttft_objective_seconds.max(MIN_SLOWDOWN * least)
}

// === impl FleetLoad ===

impl FleetLoad {
    /// The means over these candidates.
    pub fn new(candidates: &[Candidate]) -> Self {
        let count = candidates.len().max(1) as f64;
        let sums = candidates.iter().fold([0.0; 2], |[waiting, running], candidate| {
            [waiting + candidate.waiting, running + candidate.running]
        });
        Self { waiting: sums[0] / count, running: sums[1] / count }
    }

    /// Delay of other requests in seconds for each second of prefill at a candidate.
    fn charge(&self, settings: &KvAwareSettings, candidate: &Candidate) -> f64 {
        let waiting = (settings.charge_per_waiting * self.waiting).min(settings.charge_max);
        let crowding = (1.0 + candidate.running) / (1.0 + self.running);
        settings.charge_base + waiting * crowding
    }
}

// === impl Evaluation ===

impl Evaluation {
    fn is_late(&self) -> bool {
        self.lateness > 1.0
    }
}

/// Index of the candidate to which the session of a request is hashed. `None`: no session.
pub(in crate::routing) fn home(
    candidates: &[Candidate],
    request: &RoutingRequest,
) -> Option<usize> {
    request.session.and_then(|session| session::highest_scored(candidates, session, |_| true))
}

/// The terms of a cost in seconds: see the [module documentation](self).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CostTerms {
    /// First output of an empty prompt.
    pub base: f64,
    /// Prompts that the engine computes before this one, or the wait for a slot.
    pub queue: f64,
    /// The prompt tokens of this request that are not cached.
    pub prefill: f64,
    /// Delay of other requests by `prefill`.
    pub charge: f64,
    /// Use of the KV cache.
    pub pressure: f64,
    /// Loading of the LoRA adapter.
    pub adapter: f64,
    /// Delay of the requests without output beyond their predictions.
    pub overdue: f64,
}

/// The terms of the cost of a candidate. `is_session_candidate`: the session of the request is hashed
/// to this candidate. `fleet`: load of all candidates of the decision.
#[inline] // a decision evaluates each candidate
pub fn terms(
    settings: &KvAwareSettings,
    candidate: &Candidate,
    is_session_candidate: bool,
    fleet: &FleetLoad,
) -> CostTerms {
    let cached = cached(settings, candidate, is_session_candidate);
    let new_tokens = candidate.prompt - cached + candidate.output;
    let k = match (candidate.kv_usage, candidate.capacity) {
        (Some(usage), Some(capacity)) => usage + new_tokens / capacity as f64,
        (usage, _) => usage.unwrap_or(0.0),
    };
    let reuse = ((1.0 - k) / (1.0 - settings.cache_reuse_threshold).max(0.001)).clamp(0.0, 1.0);
    let prefill = (candidate.prompt - cached * reuse) * candidate.prefill.per_token;
    CostTerms {
        base: candidate.prefill.base,
        queue: queue(candidate),
        prefill,
        charge: prefill * fleet.charge(settings, candidate),
        pressure: settings.pressure * pressure(k),
        adapter: adapter(settings, candidate),
        overdue: candidate.overdue,
    }
}

/// The cost that the policy compares, in seconds per unit of weight: the sum of the [`terms`].
#[inline]
pub fn cost(
    settings: &KvAwareSettings,
    candidate: &Candidate,
    is_session_candidate: bool,
    fleet: &FleetLoad,
) -> f64 {
    let terms = terms(settings, candidate, is_session_candidate, fleet);
    let CostTerms { base, queue, prefill, charge, pressure, adapter, overdue } = terms;
    per_weight(base + queue + prefill + charge + pressure + adapter + overdue, candidate)
}

/// Predicted TTFT of a candidate in seconds: see the [module documentation](self).
/// `is_session_candidate`: the session of the request is hashed to this candidate.
pub fn ttft(settings: &KvAwareSettings, candidate: &Candidate, is_session_candidate: bool) -> f64 {
    let uncached = candidate.prompt - cached(settings, candidate, is_session_candidate);
    candidate.prefill.base
        + queue(candidate)
        + uncached * candidate.prefill.per_token
        + adapter(settings, candidate)
        + candidate.overdue
}

/// Seconds until the engine begins with the prompt. The engine computes the prompts of the backlog
/// while the request waits for a slot.
fn queue(candidate: &Candidate) -> f64 {
    let backlog = candidate.backlog * candidate.prefill.per_token;
    if candidate.slot_wait > backlog { candidate.slot_wait } else { backlog }
}

fn adapter(settings: &KvAwareSettings, candidate: &Candidate) -> f64 {
    if candidate.has_adapter { 0.0 } else { settings.adapter_seconds }
}

fn cached(settings: &KvAwareSettings, candidate: &Candidate, is_session_candidate: bool) -> f64 {
    let is_assumed = is_session_candidate && candidate.cached_source == CachedSource::Approximate;
    let session_cached = if is_assumed { settings.session * candidate.prompt } else { 0.0 };
    let found = if candidate.is_rendezvous {
        candidate.rendezvous_hit_share * (candidate.prompt - candidate.cached)
    } else {
        0.0
    };
    (candidate.cached + found).max(session_cached)
}

/// Divides `seconds` by the weight of a candidate.
pub fn per_weight(seconds: f64, candidate: &Candidate) -> f64 {
    if candidate.weight > 1 { seconds / f64::from(candidate.weight) } else { seconds }
}

/// k ÷ (1 − k), which is 1 for a cache that is half full; linear above [`MAX_PRESSURE_USAGE`].
fn pressure(k: f64) -> f64 {
    let usage = k.clamp(0.0, MAX_PRESSURE_USAGE);
    usage / (1.0 - usage) + OVERFULL_PRESSURE_SLOPE * (k - MAX_PRESSURE_USAGE).max(0.0)
}

/// Why a candidate was chosen.
fn reason(
    candidates: &[Candidate],
    evaluations: &[Evaluation],
    chosen: usize,
    session_index: Option<usize>,
) -> &'static str {
    if is_avoiding_overdue(candidates, evaluations, chosen) {
        return "avoids_overdue";
    }
    let cheaper_late = |evaluation: &Evaluation| {
        evaluation.is_late() && evaluation.cost < evaluations[chosen].cost
    };
    if !evaluations[chosen].is_late() && evaluations.iter().any(cheaper_late) {
        return "avoids_late";
    }
    let blocks = candidates[chosen].cached_blocks;
    let has = |is_other: fn(u32, u32) -> bool| {
        candidates.iter().any(|candidate| is_other(candidate.cached_blocks, blocks))
    };
    // A prefix that all candidates have cached, such as a system prompt, did not decide.
    if has(|other, own| other > own) {
        "prefix_too_busy"
    } else if has(|other, own| other < own) {
        "cached_prefix"
    } else {
        match session_index {
            Some(session_index) if session_index == chosen => "session",
            Some(_) => "session_too_busy",
            None if candidates[chosen].is_rendezvous => "rendezvous",
            None => "lowest_ttft",
        }
    }
}

/// Whether the choice avoids an overdue candidate: the candidate with the least cost apart from
/// overdue delays was not chosen, and it is overdue for longer than the chosen candidate.
fn is_avoiding_overdue(
    candidates: &[Candidate],
    evaluations: &[Evaluation],
    chosen: usize,
) -> bool {
    if candidates.iter().all(|candidate| candidate.overdue <= 0.0) {
        return false;
    }
    let cost = |index: usize| {
        let candidate = &candidates[index];
        evaluations[index].cost - per_weight(candidate.overdue, candidate)
    };
    let least = (0..candidates.len()).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
    least.is_some_and(|least| {
        candidates[least].overdue > candidates[chosen].overdue && cost(least) <= cost(chosen)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::PrefillCost;
    use crate::routing::tests::idle_candidate;

    fn choose(candidates: &[Candidate]) -> PolicyChoice {
        pick(&KvAwareSettings::default(), candidates, &RoutingRequest::default())
    }

    #[test]
    fn a_short_queue_can_outweigh_a_cached_prefix() {
        let idle = idle_candidate();
        let warm =
            Candidate { cached: 500.0, cached_blocks: 4, backlog: 20_000.0, ..idle_candidate() };
        assert_eq!(choose(&[warm, idle]), PolicyChoice { index: 1, reason: "prefix_too_busy" });
        let warm = Candidate { backlog: 400.0, ..warm };
        assert_eq!(choose(&[warm, idle]), PolicyChoice { index: 0, reason: "cached_prefix" });
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

    #[test]
    fn the_cost_grows_faster_the_fuller_the_cache_is() {
        let at = |usage| {
            cost(
                &KvAwareSettings::default(),
                &Candidate { kv_usage: Some(usage), ..idle_candidate() },
                false,
                &FleetLoad::default(),
            )
        };
        let costs: Vec<f64> = (0..=30).map(|n| at(f64::from(n) / 20.0)).collect();
        assert!(costs.windows(2).all(|pair| pair[1] > pair[0]));
        assert!(at(0.95) - at(0.90) > 4.0 * (at(0.55) - at(0.50)));
        assert!(at(1e9).is_finite());
    }

    #[test]
    fn a_cached_prefix_does_not_count_in_a_full_cache() {
        let hot =
            Candidate { cached: 900.0, cached_blocks: 7, kv_usage: Some(0.99), ..idle_candidate() };
        assert_eq!(
            choose(&[hot, idle_candidate()]),
            PolicyChoice { index: 1, reason: "prefix_too_busy" }
        );
    }

    #[test]
    fn a_session_stays_on_its_backend_until_that_is_busy() {
        let mut fleet = [1, 2, 3].map(|key| Candidate { key, ..idle_candidate() });
        let request = RoutingRequest { session: Some(77), ..RoutingRequest::default() };
        let first = pick(&KvAwareSettings::default(), &fleet, &request);
        assert_eq!(first.reason, "session");
        for sequence in 0..10 {
            assert_eq!(
                pick(&KvAwareSettings::default(), &fleet, &RoutingRequest { sequence, ..request }),
                first
            );
        }
        fleet[first.index].backlog = 50_000.0;
        let moved = pick(&KvAwareSettings::default(), &fleet, &request);
        assert_ne!(moved.index, first.index);
        assert_eq!(moved.reason, "session_too_busy");
    }

    #[test]
    fn a_session_of_short_prompts_does_not_move_among_equal_candidates() {
        let fleet = [1, 2, 3].map(|key| Candidate { key, prompt: 5.0, ..idle_candidate() });
        let at = |sequence| {
            let request =
                RoutingRequest { sequence, session: Some(77), ..RoutingRequest::default() };
            pick(&KvAwareSettings::default(), &fleet, &request)
        };
        assert!((0..10).all(|sequence| at(sequence) == at(0)));
        assert_eq!(at(0).reason, "session");
    }

    #[test]
    fn a_request_for_an_adapter_prefers_a_backend_that_has_loaded_it_unless_that_takes_longer() {
        let without = Candidate { has_adapter: false, ..idle_candidate() };
        assert_eq!(choose(&[without, idle_candidate()]).index, 1);
        let busy = Candidate { backlog: 50_000.0, ..idle_candidate() };
        assert_eq!(choose(&[without, busy]).index, 0);
    }

    #[test]
    fn an_overdue_backend_is_avoided_with_the_reason_avoids_overdue() {
        let overdue = Candidate { overdue: 0.5, ..idle_candidate() };
        assert_eq!(
            choose(&[overdue, idle_candidate()]),
            PolicyChoice { index: 1, reason: "avoids_overdue" }
        );
        let warm = Candidate { cached: 900.0, ..overdue };
        assert_eq!(
            choose(&[warm, idle_candidate()]),
            PolicyChoice { index: 1, reason: "avoids_overdue" }
        );
        // A backend with an even longer backlog is no better.
        let busy = Candidate { backlog: 50_000.0, ..idle_candidate() };
        assert_eq!(choose(&[overdue, busy]), PolicyChoice { index: 0, reason: "lowest_ttft" });
    }

    /// The choice with a TTFT objective of 2 s.
    fn choose_in_time(candidates: &[Candidate]) -> PolicyChoice {
        let settings =
            KvAwareSettings { ttft_objective_seconds: 2.0, ..KvAwareSettings::default() };
        pick(&settings, candidates, &RoutingRequest::default())
    }

    /// A backend with most of a long prompt in its cache, and a backlog of 2.5 s.
    fn late_with_long_prefix() -> Candidate {
        Candidate {
            prompt: 30_000.0,
            cached: 29_000.0,
            cached_blocks: 200,
            backlog: 25_000.0,
            ..idle_candidate()
        }
    }

    #[test]
    fn late_backends_come_after_those_in_time() {
        // The cached prefix saves more than the wait costs, but the wait is too long.
        let warm = late_with_long_prefix();
        let cold = Candidate { cached: 12_000.0, cached_blocks: 90, backlog: 0.0, ..warm };
        assert_eq!(choose(&[warm, cold]).reason, "cached_prefix");
        assert_eq!(choose_in_time(&[warm, cold]), PolicyChoice { index: 1, reason: "avoids_late" });
    }

    #[test]
    fn in_an_overloaded_fleet_a_late_backend_with_the_prompt_in_its_cache_gets_the_request() {
        let late = Candidate { waiting: 8.0, ..late_with_long_prefix() };
        let in_time = Candidate { cached: 12_000.0, cached_blocks: 90, backlog: 0.0, ..late };
        assert_eq!(
            choose_in_time(&[late, in_time]),
            PolicyChoice { index: 0, reason: "cached_prefix" }
        );
    }

    #[test]
    fn in_an_overloaded_fleet_the_latest_backend_with_the_prompt_gets_the_request_up_to_a_limit() {
        let late = |backlog| Candidate { backlog, ..idle_candidate() };
        let fleet = [late(30_000.0), late(90_000.0), late(25_000.0)];
        assert_eq!(choose_in_time(&fleet), PolicyChoice { index: 1, reason: "all_late" });
        let hopeless = late(MAX_LATENESS * 2.0 * 1e4 + 1.0);
        assert_eq!(choose_in_time(&[fleet[0], hopeless, fleet[2]]).index, 0);
        assert_eq!(
            choose_in_time(&[late(0.0), hopeless]),
            PolicyChoice { index: 0, reason: "lowest_ttft" }
        );
        let cached = Candidate { cached: 900.0, cached_blocks: 7, ..fleet[0] };
        assert_eq!(
            choose_in_time(&[fleet[1], cached, fleet[2]]).index,
            1,
            "the others compute more"
        );
    }

    #[test]
    fn a_long_prompt_on_a_slow_engine_is_not_late_without_a_queue() {
        let settings =
            KvAwareSettings { ttft_objective_seconds: 0.5, ..KvAwareSettings::default() };
        let long = Candidate { prompt: 20_000.0, ..idle_candidate() };
        let fleet = [long, Candidate { backlog: 1_000.0, ..long }];
        assert_eq!(pick(&settings, &fleet, &RoutingRequest::default()).index, 0);
    }

    #[test]
    fn recomputation_costs_more_the_more_requests_wait_in_the_fleet() {
        let warm = Candidate { cached: 900.0, backlog: 2_500.0, ..idle_candidate() };
        let calm = [warm, idle_candidate()];
        assert_eq!(choose(&calm).index, 1);
        let busy = calm.map(|candidate| Candidate { waiting: 4.0, ..candidate });
        assert_eq!(choose(&busy).index, 0);
    }

    #[test]
    fn queues_still_count_while_all_backends_are_overdue() {
        let overdue = Candidate { overdue: 3.0, ..idle_candidate() };
        let busy = Candidate { overdue: 2.0, backlog: 20_000.0, ..idle_candidate() };
        assert_eq!(choose(&[overdue, busy]).index, 0);
        assert_eq!(choose(&[overdue, Candidate { backlog: 0.0, ..busy }]).index, 1);
    }

    #[test]
    fn slot_wait_and_backlog_overlap() {
        let full = Candidate { slot_wait: 0.5, ..idle_candidate() };
        assert_eq!(choose(&[full, idle_candidate()]).index, 1);
        let both = Candidate { backlog: 5_000.0, ..full };
        let cost =
            |candidate| cost(&KvAwareSettings::default(), &candidate, false, &FleetLoad::default());
        assert!((cost(both) - cost(full)).abs() < 1e-9, "5,000 tokens take half a second too");
    }

    #[test]
    fn candidates_without_information_are_picked_evenly() {
        let unknown =
            Candidate { kv_usage: None, capacity: None, certainty: 0.0, ..idle_candidate() };
        let counts = (0..300).fold([0; 3], |mut counts, sequence| {
            let request = RoutingRequest { sequence, ..RoutingRequest::default() };
            counts[pick(&KvAwareSettings::default(), &[unknown; 3], &request).index] += 1;
            counts
        });
        assert_eq!(counts, [100; 3]);
    }
}
