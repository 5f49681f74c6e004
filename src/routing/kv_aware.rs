//! The lowest predicted cost of a request at each replica, from two sources: what the replica
//! last said of its queue and its KV cache, and what this gateway has sent it since.
//!
//! ```text
//! cost     = certainty · said + (1 − certainty) · own
//! said     = waiting · (queue + requests sent since) + pressure · k ÷ (1 − k) + running · load
//! own      = running · requests in flight
//! k        = KV usage + (tokens sent since + this request's tokens) ÷ capacity
//! certainty = e^(−age ÷ horizon)
//! ```
//!
//! The pressure term is small while there is room and grows without bound as the cache fills,
//! because a full cache makes the engine preempt, and a preempted request is computed twice. An
//! old report fades smoothly into what the gateway knows itself: there is no age at which the
//! choice turns over.

use super::{Ask, Candidate, Choice, Report, lowest};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The weights, in units of one waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Cost of each request that waits in front of this one.
    pub waiting: f64,
    /// Cost of each request that runs beside this one.
    pub running: f64,
    /// Cost of a KV cache that is half full.
    pub pressure: f64,
    /// Age in seconds at which a report counts for 37 %.
    pub horizon_seconds: f64,
}

/// The fullest a cache is thought to be: beyond it, only the queue tells replicas apart.
const FULL: f64 = 0.99;

impl Default for Settings {
    fn default() -> Self {
        Self { waiting: 1.0, running: 0.1, pressure: 1.0, horizon_seconds: 5.0 }
    }
}

pub(super) fn pick(settings: &Settings, candidates: &[Candidate], ask: &Ask) -> Choice {
    let costs = candidates.iter().map(|candidate| cost(settings, candidate, ask.tokens));
    Choice { index: lowest(costs, ask.sequence), reason: "lowest_cost" }
}

/// The predicted cost of `tokens` more tokens at a candidate.
pub fn cost(settings: &Settings, candidate: &Candidate, tokens: u64) -> f64 {
    let own = settings.running * f64::from(candidate.in_flight);
    let Some(report) = &candidate.report else { return own };
    let certainty = certainty(report.age, settings.horizon_seconds);
    certainty * said(settings, candidate, report, tokens) + (1.0 - certainty) * own
}

fn said(settings: &Settings, candidate: &Candidate, report: &Report, tokens: u64) -> f64 {
    let sent_since = f64::from(candidate.in_flight) - f64::from(report.in_flight_then);
    let tokens_since =
        candidate.tokens_in_flight as f64 - report.tokens_then as f64 + tokens as f64;
    let k = match report.capacity {
        Some(capacity) if capacity > 0 => report.kv_usage + tokens_since / capacity as f64,
        _ => report.kv_usage,
    };
    let k = k.clamp(0.0, FULL);
    let queue = f64::from(report.waiting) + sent_since.max(0.0);
    let load = (f64::from(report.running) + sent_since).max(0.0);
    settings.waiting * queue + settings.pressure * k / (1.0 - k) + settings.running * load
}

fn certainty(age: Duration, horizon_seconds: f64) -> f64 {
    (-age.as_secs_f64() / horizon_seconds.max(0.001)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(kv_usage: f64, waiting: u32) -> Candidate {
        Candidate {
            in_flight: 0,
            tokens_in_flight: 0,
            report: Some(Report {
                age: Duration::from_millis(100),
                kv_usage,
                waiting,
                running: 4,
                capacity: Some(100_000),
                in_flight_then: 0,
                tokens_then: 0,
            }),
        }
    }

    fn choose(candidates: &[Candidate]) -> usize {
        let ask = Ask { sequence: 0, seed: 0, tokens: 1_000 };
        pick(&Settings::default(), candidates, &ask).index
    }

    #[test]
    fn the_replica_with_room_is_preferred_and_a_queue_counts_more_than_a_warm_cache() {
        assert_eq!(choose(&[replica(0.9, 0), replica(0.3, 0)]), 1);
        assert_eq!(choose(&[replica(0.3, 12), replica(0.6, 0)]), 1);
    }

    #[test]
    fn what_was_sent_since_the_report_counts_although_the_replica_has_not_said_so() {
        let mut busier = replica(0.2, 0);
        busier.in_flight = 6;
        busier.tokens_in_flight = 60_000;
        assert_eq!(choose(&[busier, replica(0.3, 0)]), 1);
    }

    #[test]
    fn a_burst_between_two_reports_is_spread_instead_of_herding() {
        let mut fleet = [replica(0.10, 0), replica(0.12, 0), replica(0.14, 0)];
        let mut counts = [0; 3];
        for _ in 0..60 {
            let index = choose(&fleet);
            counts[index] += 1;
            fleet[index].in_flight += 1;
            fleet[index].tokens_in_flight += 1_000;
        }
        assert!(counts.iter().all(|count| (15..=25).contains(count)), "{counts:?}");
    }

    #[test]
    fn cost_fades_smoothly_from_the_report_to_our_own_knowledge_as_it_ages() {
        let at = |seconds| {
            let mut replica = replica(0.95, 3);
            if let Some(report) = &mut replica.report {
                report.age = Duration::from_secs(seconds);
            }
            cost(&Settings::default(), &replica, 0)
        };
        let costs: Vec<f64> = (0..60).map(at).collect();
        assert!(costs.windows(2).all(|pair| pair[1] <= pair[0] && pair[0] - pair[1] < 5.0));
        assert!(costs[59] < 0.01, "nothing in flight, nothing believed");
    }

    #[test]
    fn a_full_cache_is_finite_and_worse_than_any_other() {
        let full = cost(&Settings::default(), &replica(1.0, 0), 1_000_000);
        assert!(full.is_finite() && full > cost(&Settings::default(), &replica(0.97, 0), 0));
    }
}
