//! Policy `kv_aware`: picks the candidate with the least predicted time to first token (TTFT) per
//! unit of weight.
//!
//! ```text
//! ttft     = base + max(backlog × per_token, slot_wait)
//!          + work × (1 + interference × running) × per_token
//!          + pressure × k ÷ (1 − k) + adapter_seconds + overdue
//! work     = prompt − cached × reuse             prompt tokens to compute
//! reuse    = (1 − k) ÷ (1 − cache_reuse_threshold), from 0 to 1
//! k        = kv_usage + (prompt − cached + output) ÷ capacity
//! ```
//!
//! - `base` and `per_token` are learned from the first outputs of the backend, so a slower backend
//!   gets fewer requests.
//! - `k` is the KV cache usage with this request. In a full cache the engine makes requests wait
//!   or preempts them, and it computes a preempted request twice. The pressure therefore grows
//!   without bound, and a prefix in an almost full cache counts for nothing: it may be evicted.
//! - `interference`: the streams that run at a backend stand still for a part of each prefill.
//! - `slot_wait`: an engine runs a limited number of sequences at once. Once that number is
//!   learned, this is the time until one of them ends.
//! - `adapter_seconds` counts if the backend has not loaded the LoRA adapter of the request.
//! - `overdue`: time for which the oldest request without output has waited beyond its own
//!   prediction. The cause also delays the requests behind it. No other term detects a frozen
//!   engine.

use super::{Candidate, PolicyChoice, PrefillCost, RoutingRequest, lowest, session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Weights of the policy `kv_aware`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KvAwareSettings {
    /// Seconds added to the predicted TTFT of a backend whose KV cache is half full. At a usage of
    /// k, `pressure` × k ÷ (1 − k) seconds are added.
    pub pressure: f64,
    /// Relative increase of the prefill time for each request that runs in the engine.
    pub interference: f64,
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
}

impl Default for KvAwareSettings {
    fn default() -> Self {
        Self {
            pressure: 0.1,
            interference: 0.02,
            cache_reuse_threshold: 0.9,
            session: 0.5,
            adapter_seconds: 1.0,
            horizon_seconds: 5.0,
        }
    }
}

/// KV cache usage above which the pressure grows linearly, so that it stays finite.
const MAX_PRESSURE_USAGE: f64 = 0.98;
/// Slope of the pressure above [`MAX_PRESSURE_USAGE`]. It is multiplied by
/// [`KvAwareSettings::pressure`], like the rest of the pressure.
const OVERFULL_PRESSURE_SLOPE: f64 = 60.0;
/// Costs within this relative and absolute (seconds) tolerance of the lowest cost are ties.
const TIE_TOLERANCE: (f64, f64) = (0.01, 0.001);

pub(super) fn pick(
    settings: &KvAwareSettings,
    candidates: &[Candidate],
    request: &RoutingRequest,
) -> PolicyChoice {
    let session_index = home(candidates, request);
    let cost = |(index, candidate)| cost(settings, candidate, session_index == Some(index));
    let costs: Vec<f64> = candidates.iter().enumerate().map(cost).collect();
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let slack = TIE_TOLERANCE.0 * least + TIE_TOLERANCE.1;
    // Ties take turns, except that a session stays at its backend.
    let unmoved = session_index.filter(|index| costs[*index] <= least + slack);
    let index = unmoved
        .unwrap_or_else(|| lowest(candidates, &costs.iter().copied(), slack, request.sequence));
    let is_avoiding = is_avoiding(candidates, &costs, index);
    let reason =
        if is_avoiding { "avoids_overdue" } else { reason(candidates, index, session_index) };
    PolicyChoice { index, reason }
}

/// Whether the choice avoids an overdue candidate: the candidate with the least cost apart from
/// overdue delays was not chosen, and it is overdue for longer than the chosen candidate.
fn is_avoiding(candidates: &[Candidate], costs: &[f64], chosen: usize) -> bool {
    if candidates.iter().all(|candidate| candidate.overdue <= 0.0) {
        return false;
    }
    let cost = |index: usize| {
        let candidate = &candidates[index];
        costs[index] - per_weight(candidate.overdue, candidate)
    };
    let least = (0..candidates.len()).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
    least.is_some_and(|least| {
        candidates[least].overdue > candidates[chosen].overdue && cost(least) <= cost(chosen)
    })
}

/// Index of the candidate to which the session of a request is hashed. `None`: no session.
pub(super) fn home(candidates: &[Candidate], request: &RoutingRequest) -> Option<usize> {
    request.session.and_then(|session| session::highest_scored(candidates, session, |_| true))
}

/// The cost that the policy compares: predicted TTFT in seconds per unit of weight.
/// `is_session_candidate`: the session of the request is hashed to this candidate.
pub fn cost(settings: &KvAwareSettings, candidate: &Candidate, is_session_candidate: bool) -> f64 {
    per_weight(ttft(settings, candidate, is_session_candidate), candidate)
}

/// Divides `seconds` by the weight of a candidate.
pub fn per_weight(seconds: f64, candidate: &Candidate) -> f64 {
    if candidate.weight > 1 { seconds / f64::from(candidate.weight) } else { seconds }
}

/// Predicted TTFT of a candidate in seconds, see the [module documentation](self).
/// `is_session_candidate`: the session of the request is hashed to this candidate.
pub fn ttft(settings: &KvAwareSettings, candidate: &Candidate, is_session_candidate: bool) -> f64 {
    let session_cached =
        if is_session_candidate { settings.session * candidate.prompt } else { 0.0 };
    let cached = candidate.cached.max(session_cached);
    let new_tokens = candidate.prompt - cached + candidate.output;
    let k = match (candidate.kv_usage, candidate.capacity) {
        (Some(usage), Some(capacity)) => usage + new_tokens / capacity as f64,
        (usage, _) => usage.unwrap_or(0.0),
    };
    let reuse = ((1.0 - k) / (1.0 - settings.cache_reuse_threshold).max(0.001)).clamp(0.0, 1.0);
    let work = candidate.prompt - cached * reuse;
    let PrefillCost { base, per_token } = candidate.prefill;
    // The engine computes the prompts of the backlog while this request waits for a slot.
    let backlog = candidate.backlog * per_token;
    let queue = if candidate.slot_wait > backlog { candidate.slot_wait } else { backlog };
    let work = work * (1.0 + settings.interference * candidate.running) * per_token;
    let adapter = if candidate.has_adapter { 0.0 } else { settings.adapter_seconds };
    base + queue + work + settings.pressure * pressure(k) + adapter + candidate.overdue
}

/// k ÷ (1 − k), which is 1 for a cache that is half full; linear above [`MAX_PRESSURE_USAGE`].
fn pressure(k: f64) -> f64 {
    let usage = k.clamp(0.0, MAX_PRESSURE_USAGE);
    usage / (1.0 - usage) + OVERFULL_PRESSURE_SLOPE * (k - MAX_PRESSURE_USAGE).max(0.0)
}

fn reason(candidates: &[Candidate], index: usize, session_index: Option<usize>) -> &'static str {
    let chosen = &candidates[index];
    let most = candidates.iter().map(|candidate| candidate.cached).fold(0.0, f64::max);
    let least = candidates.iter().map(|candidate| candidate.cached).fold(f64::INFINITY, f64::min);
    // A prefix that all candidates have cached, such as a system prompt, did not decide.
    if most > least && chosen.cached >= most {
        "cached_prefix"
    } else if most > least {
        "prefix_too_busy"
    } else {
        match session_index {
            Some(session_index) if session_index == index => "session",
            Some(_) => "session_too_busy",
            None => "lowest_ttft",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::idle_candidate;
    use super::*;

    fn choose(candidates: &[Candidate]) -> PolicyChoice {
        pick(&KvAwareSettings::default(), candidates, &RoutingRequest::default())
    }

    #[test]
    fn a_short_queue_can_outweigh_a_cached_prefix() {
        let idle = idle_candidate();
        let warm = Candidate { cached: 500.0, backlog: 20_000.0, ..idle_candidate() };
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
            )
        };
        let costs: Vec<f64> = (0..=30).map(|n| at(f64::from(n) / 20.0)).collect();
        assert!(costs.windows(2).all(|pair| pair[1] > pair[0]));
        assert!(at(0.95) - at(0.90) > 4.0 * (at(0.55) - at(0.50)));
        assert!(at(1e9).is_finite());
    }

    #[test]
    fn a_cached_prefix_does_not_count_in_a_full_cache() {
        let hot = Candidate { cached: 900.0, kv_usage: Some(0.99), ..idle_candidate() };
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

    #[test]
    fn queues_still_count_while_all_backends_are_overdue() {
        let overdue = Candidate { overdue: 3.0, ..idle_candidate() };
        let busy = Candidate { overdue: 2.9, backlog: 10_000.0, ..idle_candidate() };
        assert_eq!(choose(&[overdue, busy]).index, 0);
        assert_eq!(choose(&[overdue, Candidate { backlog: 0.0, ..busy }]).index, 1);
    }

    #[test]
    fn slot_wait_and_backlog_overlap() {
        let full = Candidate { slot_wait: 0.5, ..idle_candidate() };
        assert_eq!(choose(&[full, idle_candidate()]).index, 1);
        let both = Candidate { backlog: 5_000.0, ..full };
        let cost = |candidate| cost(&KvAwareSettings::default(), &candidate, false);
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
