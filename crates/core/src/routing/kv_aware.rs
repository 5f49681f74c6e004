//! The least predicted time to first token.
//!
//! ```text
//! ttft     = base + max(backlog × seconds per token, slot wait)
//!          + work × (1 + interference × running) × seconds per token + pressure + overdue
//! work     = prompt − cached × room            what has to be computed
//! room     = (1 − k) ÷ (1 − guard), from 0 to 1
//! pressure = seconds × k ÷ (1 − k)             grows steeply as the cache fills
//! k        = KV usage + (prompt − cached + answer) ÷ capacity
//! ```
//!
//! `base` and `seconds per token` are learned from the replica's own first outputs, so that a
//! slower one gets less. A full cache makes the engine wait or preempt, and a preempted request is
//! computed twice; so the pressure has no bound, and a prefix that lies in a cache which is nearly
//! full is worth nothing. The streams that run at a replica all stand still for a part of every
//! prompt that is computed beside them: that is what `interference` is for.
//!
//! An engine runs a limited number of sequences at once. Once that number has been learned, `slot
//! wait` is the time until one of them ends. `overdue` is how long the replica's oldest request
//! without output has waited beyond its own prediction: whatever holds that one up also holds up
//! those behind it, and an engine that is frozen is found out by nothing else.

use super::{Ask, Candidate, Choice, Prefill, lowest, session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The weights.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Seconds that a KV cache which is half full counts for.
    pub pressure: f64,
    /// How much more a prompt counts for each request that runs beside it.
    pub interference: f64,
    /// Share of the KV cache above which a cached prefix counts less and less.
    pub guard: f64,
    /// Share of the prompt that the replica of its session is believed to have cached, if nothing
    /// is known of the prompt itself.
    pub session: f64,
    /// Seconds that it takes to load a LoRA adapter.
    pub adapter_seconds: f64,
    /// Age in seconds at which what a replica said counts for half.
    pub horizon_seconds: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pressure: 0.1,
            interference: 0.02,
            guard: 0.9,
            session: 0.5,
            adapter_seconds: 1.0,
            horizon_seconds: 5.0,
        }
    }
}

/// The fullest that a cache can be for the pressure; beyond it the pressure grows evenly.
const FULL: f64 = 0.98;
/// Seconds for each time that a cache is overfull by all it holds.
const OVERFULL: f64 = 60.0;
/// Costs that differ by less are equal: a hundredth, and a millisecond.
const SLACK: (f64, f64) = (0.01, 0.001);

pub(super) fn pick(settings: &Settings, candidates: &[Candidate], ask: &Ask) -> Choice {
    let home = home(candidates, ask);
    let cost = |(index, candidate)| cost(settings, candidate, home == Some(index));
    let costs: Vec<f64> = candidates.iter().enumerate().map(cost).collect();
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let slack = SLACK.0 * least + SLACK.1;
    // Equals take turns, but a session does not move among them.
    let stays = home.filter(|home| costs[*home] <= least + slack);
    let index =
        stays.unwrap_or_else(|| lowest(candidates, &costs.iter().copied(), slack, ask.sequence));
    let is_avoiding = is_avoiding(candidates, &costs, index);
    let reason = if is_avoiding { "avoids_overdue" } else { reason(candidates, index, home) };
    Choice { index, reason }
}

/// Whether the candidate that would cost least, if none were overdue, is passed over because it is.
fn is_avoiding(candidates: &[Candidate], costs: &[f64], chosen: usize) -> bool {
    if candidates.iter().all(|candidate| candidate.overdue <= 0.0) {
        return false;
    }
    let cost = |index: usize| {
        let candidate = &candidates[index];
        costs[index] - for_weight(candidate.overdue, candidate)
    };
    let least = (0..candidates.len()).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
    least.is_some_and(|least| {
        candidates[least].overdue > candidates[chosen].overdue && cost(least) <= cost(chosen)
    })
}

/// The candidate that keeps the session of a request, if it has one.
pub(super) fn home(candidates: &[Candidate], ask: &Ask) -> Option<usize> {
    ask.session.and_then(|session| session::highest(candidates, session, |_| true))
}

/// What is compared: the predicted time for each unit of weight.
pub fn cost(settings: &Settings, candidate: &Candidate, is_home: bool) -> f64 {
    for_weight(ttft(settings, candidate, is_home), candidate)
}

/// Seconds for each unit of a candidate's weight.
pub fn for_weight(seconds: f64, candidate: &Candidate) -> f64 {
    if candidate.weight > 1 { seconds / f64::from(candidate.weight) } else { seconds }
}

/// The predicted time to first token at a candidate, in seconds.
pub fn ttft(settings: &Settings, candidate: &Candidate, is_home: bool) -> f64 {
    let believed = if is_home { settings.session * candidate.prompt } else { 0.0 };
    let cached = candidate.cached.max(believed);
    let held = candidate.prompt - cached + candidate.output;
    let k = match (candidate.kv_usage, candidate.capacity) {
        (Some(usage), Some(capacity)) => usage + held / capacity as f64,
        (usage, _) => usage.unwrap_or(0.0),
    };
    let room = ((1.0 - k) / (1.0 - settings.guard).max(0.001)).clamp(0.0, 1.0);
    let work = candidate.prompt - cached * room;
    let Prefill { base, per_token } = candidate.prefill;
    // Prompts that are ahead are computed while slots are waited for.
    let ahead = candidate.backlog * per_token;
    let queue = if candidate.slot_wait > ahead { candidate.slot_wait } else { ahead };
    let work = work * (1.0 + settings.interference * candidate.running) * per_token;
    let adapter = if candidate.has_adapter { 0.0 } else { settings.adapter_seconds };
    base + queue + work + settings.pressure * pressure(k) + adapter + candidate.overdue
}

/// 1 for a cache that is half full.
fn pressure(k: f64) -> f64 {
    let full = k.clamp(0.0, FULL);
    full / (1.0 - full) + OVERFULL * (k - FULL).max(0.0)
}

fn reason(candidates: &[Candidate], index: usize, home: Option<usize>) -> &'static str {
    let chosen = &candidates[index];
    let most = candidates.iter().map(|candidate| candidate.cached).fold(0.0, f64::max);
    let least = candidates.iter().map(|candidate| candidate.cached).fold(f64::INFINITY, f64::min);
    // What all have in their caches, such as a system prompt, speaks for none.
    if most > least && chosen.cached >= most {
        "cached_prefix"
    } else if most > least {
        "prefix_too_busy"
    } else {
        match home {
            Some(home) if home == index => "session",
            Some(_) => "session_too_busy",
            None => "lowest_ttft",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::replica;
    use super::*;

    fn choose(candidates: &[Candidate]) -> Choice {
        pick(&Settings::default(), candidates, &Ask::default())
    }

    #[test]
    fn a_shorter_queue_is_worth_more_than_a_part_of_the_prompt_in_the_cache() {
        let idle = replica();
        let warm = Candidate { cached: 500.0, backlog: 20_000.0, ..replica() };
        assert_eq!(choose(&[warm, idle]), Choice { index: 1, reason: "prefix_too_busy" });
        let warm = Candidate { backlog: 400.0, ..warm };
        assert_eq!(choose(&[warm, idle]), Choice { index: 0, reason: "cached_prefix" });
    }

    #[test]
    fn a_faster_replica_gets_more_before_it_is_as_slow() {
        let fast = Prefill { base: 0.05, per_token: 2.5e-5 };
        let mut fleet = [Candidate { prefill: fast, ..replica() }, replica()];
        let mut counts = [0; 2];
        for _ in 0..100 {
            let index = choose(&fleet).index;
            counts[index] += 1;
            fleet[index].backlog += 1_000.0;
        }
        assert!((75..=85).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn the_fuller_the_cache_the_steeper_its_price() {
        let at = |usage| {
            cost(&Settings::default(), &Candidate { kv_usage: Some(usage), ..replica() }, false)
        };
        let costs: Vec<f64> = (0..=30).map(|n| at(f64::from(n) / 20.0)).collect();
        assert!(costs.windows(2).all(|pair| pair[1] > pair[0]));
        assert!(at(0.95) - at(0.90) > 4.0 * (at(0.55) - at(0.50)));
        assert!(at(1e9).is_finite());
    }

    #[test]
    fn a_cached_prefix_does_not_draw_a_request_to_a_cache_that_is_full() {
        let hot = Candidate { cached: 900.0, kv_usage: Some(0.99), ..replica() };
        assert_eq!(choose(&[hot, replica()]), Choice { index: 1, reason: "prefix_too_busy" });
    }

    #[test]
    fn a_session_stays_where_it_is_until_that_replica_is_busy() {
        let mut fleet = [1, 2, 3].map(|key| Candidate { key, ..replica() });
        let ask = Ask { session: Some(77), ..Ask::default() };
        let home = pick(&Settings::default(), &fleet, &ask);
        assert_eq!(home.reason, "session");
        for sequence in 0..10 {
            assert_eq!(pick(&Settings::default(), &fleet, &Ask { sequence, ..ask }), home);
        }
        fleet[home.index].backlog = 50_000.0;
        let away = pick(&Settings::default(), &fleet, &ask);
        assert_ne!(away.index, home.index);
        assert_eq!(away.reason, "session_too_busy");
    }

    #[test]
    fn a_session_of_short_prompts_does_not_move_among_equals() {
        let fleet = [1, 2, 3].map(|key| Candidate { key, prompt: 5.0, ..replica() });
        let at = |sequence| {
            let ask = Ask { sequence, session: Some(77), ..Ask::default() };
            pick(&Settings::default(), &fleet, &ask)
        };
        assert!((0..10).all(|sequence| at(sequence) == at(0)));
        assert_eq!(at(0).reason, "session");
    }

    #[test]
    fn a_request_for_an_adapter_goes_where_it_is_loaded_unless_that_takes_longer() {
        let without = Candidate { has_adapter: false, ..replica() };
        assert_eq!(choose(&[without, replica()]).index, 1);
        let busy = Candidate { backlog: 50_000.0, ..replica() };
        assert_eq!(choose(&[without, busy]).index, 0);
    }

    #[test]
    fn a_backend_whose_oldest_request_is_overdue_is_avoided_and_the_reason_says_so() {
        let overdue = Candidate { overdue: 0.5, ..replica() };
        assert_eq!(choose(&[overdue, replica()]), Choice { index: 1, reason: "avoids_overdue" });
        let warm = Candidate { cached: 900.0, ..overdue };
        assert_eq!(choose(&[warm, replica()]), Choice { index: 1, reason: "avoids_overdue" });
        // A wait that is longer still is no better.
        let busy = Candidate { backlog: 50_000.0, ..replica() };
        assert_eq!(choose(&[overdue, busy]), Choice { index: 0, reason: "lowest_ttft" });
    }

    #[test]
    fn while_all_are_overdue_their_queues_still_count() {
        let overdue = Candidate { overdue: 3.0, ..replica() };
        let busy = Candidate { overdue: 2.9, backlog: 10_000.0, ..replica() };
        assert_eq!(choose(&[overdue, busy]).index, 0);
        assert_eq!(choose(&[overdue, Candidate { backlog: 0.0, ..busy }]).index, 1);
    }

    #[test]
    fn a_wait_for_a_slot_counts_and_the_prompts_ahead_are_computed_meanwhile() {
        let full = Candidate { slot_wait: 0.5, ..replica() };
        assert_eq!(choose(&[full, replica()]).index, 1);
        let both = Candidate { backlog: 5_000.0, ..full };
        let cost = |candidate| cost(&Settings::default(), &candidate, false);
        assert!((cost(both) - cost(full)).abs() < 1e-9, "5,000 tokens take half a second, too");
    }

    #[test]
    fn nothing_known_is_no_reason_to_prefer_anyone() {
        let unknown = Candidate { kv_usage: None, capacity: None, certainty: 0.0, ..replica() };
        let counts = (0..300).fold([0; 3], |mut counts, sequence| {
            let ask = Ask { sequence, ..Ask::default() };
            counts[pick(&Settings::default(), &[unknown; 3], &ask).index] += 1;
            counts
        });
        assert_eq!(counts, [100; 3]);
    }
}
