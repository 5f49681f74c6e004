//! Decides whether the backends that can serve a request are full: a further request would only wait in an
//! engine, where the gateway can no longer move it to another backend.
//!
//! ```text
//! full    = waiting × certainty ≥ max(max_waiting, running ÷ 16) ∨ k ≥ max_kv_usage ∧ certainty ≥ ½
//!           ∨ gap × certainty ≥ 0.7 × TPOT limit ∨ backlog ≥ 2,048 tokens ∧ backlog × per_token ≥ 0.15 × TTFT limit
//! waiting = reported_waiting + sent_since if the last report had waiting requests, otherwise 0
//! k       = estimated KV cache usage
//! gap     = mean time between two tokens of a sequence in the last second, if it is twice its least value or more
//! backlog = prompt tokens that the engine has to compute first, at `per_token` seconds for each
//! ```
//!
//! - A full backend stays a candidate while any other is not full. It may have the prefix of the prompt in its
//!   cache, and the policy weighs this prefix against its queue. Without this rule, the requests with a popular
//!   prefix leave the backend that has it, evict the caches of the other backends, and fill these too.
//! - `sent_since` is the number of requests sent since the last report, minus the number of requests that
//!   ended.
//! - An engine without waiting requests does not report how many more it could run, so the requests sent since do
//!   not count as waiting.
//! - The limits are the lowest ones among the objectives of the model. They also apply to requests with another
//!   objective or none, because such a request would delay the others. At 110 % of the capacity, the two rules
//!   gain 7 and 9 points of goodput in the tournament of `lab`.
//! - `certainty`, from 0 to 1, falls with the age of the report, so a backend whose scrapes fail does not stay
//!   full.
//! - An idle backend is never full, regardless of its reported KV cache usage.
//! - An engine at a standstill may not count as full, because its metrics do not change. While all others are
//!   full, requests wait in the admission queue and are not sent to this engine.
//! - `max_in_flight` is a limit of each backend. A backend at the limit is no candidate.

use super::{Candidate, PolicyKind, shares};

/// The thresholds at which a backend counts as full, one for each measure of load. `None`: the measure is not
/// used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SaturationThresholds {
    /// Threshold for the number of requests that wait in the engine. It rises with the number of running
    /// requests.
    pub waiting: Option<u32>,
    /// Threshold for the KV cache usage, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Threshold for the number of requests that this gateway has in flight at the backend.
    pub in_flight: Option<u32>,
    /// The limits of the objectives of the model.
    pub limits: LatencyLimits,
}

/// The latency limits that the objectives of a model set, in seconds. `None`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LatencyLimits {
    /// Limit of the TTFT.
    pub ttft: Option<f64>,
    /// Limit of the TPOT.
    pub tpot: Option<f64>,
}

/// Share of the running requests that may wait before the engine counts as full. An engine that runs more
/// requests starts more of them between two reports.
const WAITING_SHARE: f64 = 1.0 / 16.0;
/// Certainty below which the KV cache usage does not count. A report as old as the horizon has this certainty.
const MIN_CERTAINTY: f64 = 0.5;

/// Share of the TTFT limit that the backlog of an engine may take. The rest is for the prefill of the request
/// itself, the wait in the gateway and errors of the estimate.
const BACKLOG_SHARE: f64 = 0.15;
/// Prompt tokens with which vLLM fills a step: the default of `--max-num-batched-tokens` on small GPUs. With
/// less backlog, the engine would run steps that are not full.
const MIN_BACKLOG_TOKENS: f64 = 2_048.0;
/// Share of the TPOT limit above which gaps between tokens count as long. About half of the requests have a
/// TPOT above the mean gap.
const TOKEN_GAP_SHARE: f64 = 0.7;

/// Seconds for which a candidate must be overdue to count as stuck.
const STUCK_OVERDUE_SECONDS: f64 = 2.0;

/// Whether the engine of a candidate seems to make no progress.
fn is_stuck(candidate: &Candidate) -> bool {
    candidate.overdue >= STUCK_OVERDUE_SECONDS
}

/// Removes backends whose engines seem to be at a standstill, unless all do. A request is better off waiting
/// for a full backend in the admission queue than at such an engine.
pub fn retain_moving(candidates: &mut Vec<Candidate>) {
    if candidates.iter().any(|candidate| !is_stuck(candidate)) {
        candidates.retain(|candidate| !is_stuck(candidate));
    }
}

impl Default for SaturationThresholds {
    /// The default: 4 waiting requests or a KV cache usage of 0.97, and any number of requests in flight.
    fn default() -> Self {
        let limits = LatencyLimits::default();
        Self {
            waiting: Some(4),
            kv_usage: Some(0.97),
            in_flight: None,
            limits,
        }
    }
}

impl SaturationThresholds {
    /// Keeps the candidates among which the policy picks. If all backends are full, none remains, and the
    /// request waits.
    pub fn retain_open(&self, candidates: &mut Vec<Candidate>, policy: PolicyKind) {
        if candidates.iter().all(|candidate| self.is_full(candidate)) {
            candidates.clear();
        }
        // Round robin, random choices and shares ignore queues. Without this exclusion, a slow backend would
        // get its share even with a long queue.
        let is_blind = matches!(policy, PolicyKind::RoundRobin | PolicyKind::Random)
            || !shares::are_equal(candidates);
        candidates.retain(|candidate| {
            let is_excluded = if is_blind {
                self.is_full(candidate)
            } else {
                self.is_at_limit(candidate)
            };
            !is_excluded
        });
    }

    /// Whether the gateway has the maximum number of requests in flight at the backend.
    fn is_at_limit(&self, candidate: &Candidate) -> bool {
        self.in_flight
            .is_some_and(|limit| candidate.in_flight >= limit)
    }

    /// Whether a further request would wait in the engine of the candidate.
    fn is_full(&self, candidate: &Candidate) -> bool {
        if self.is_at_limit(candidate) {
            return true;
        }
        let reported = &candidate.reported;
        if reported.running + reported.waiting + reported.sent_since <= 0.0 {
            return false;
        }
        let exceeds_waiting = |threshold| {
            let limit = f64::from(threshold).max(WAITING_SHARE * reported.running);
            let waiting = reported.waiting + reported.sent_since;
            reported.waiting > 0.0 && candidate.certainty * waiting >= limit
        };
        let exceeds_usage = |threshold| {
            let usage = candidate.kv_usage.unwrap_or(0.0);
            candidate.certainty >= MIN_CERTAINTY && usage >= threshold
        };
        self.waiting.is_some_and(exceeds_waiting)
            || self.kv_usage.is_some_and(exceeds_usage)
            || self.limits.are_near(candidate)
    }
}

impl LatencyLimits {
    /// Whether a further request at this candidate would probably exceed a limit, or make other requests exceed
    /// it.
    fn are_near(&self, candidate: &Candidate) -> bool {
        let gap = candidate.certainty * candidate.token_gap;
        let backlog = candidate.backlog * candidate.prefill.per_token;
        self.tpot
            .is_some_and(|limit| gap >= TOKEN_GAP_SHARE * limit)
            || candidate.backlog >= MIN_BACKLOG_TOKENS
                && self
                    .ttft
                    .is_some_and(|limit| backlog >= BACKLOG_SHARE * limit)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::idle_candidate;
    use super::super::{PrefillCost, ReportedLoad};
    use super::*;
    use proptest::prelude::*;

    const THRESHOLDS: SaturationThresholds = SaturationThresholds {
        waiting: Some(16),
        kv_usage: Some(0.97),
        in_flight: None,
        limits: NO_LIMITS,
    };
    const NO_LIMITS: LatencyLimits = LatencyLimits {
        ttft: None,
        tpot: None,
    };

    /// A backend whose last report had this load and eight running requests. Nothing has changed since.
    fn reporting_candidate(waiting: f64, kv_usage: f64) -> Candidate {
        let reported = ReportedLoad {
            waiting,
            running: 8.0,
            sent_since: 0.0,
        };
        Candidate {
            in_flight: 20,
            reported,
            kv_usage: Some(kv_usage),
            ..idle_candidate()
        }
    }

    fn since(sent_since: f64, candidate: Candidate) -> Candidate {
        Candidate {
            reported: ReportedLoad {
                sent_since,
                ..candidate.reported
            },
            ..candidate
        }
    }

    fn is_full(candidate: Candidate) -> bool {
        THRESHOLDS.is_full(&candidate)
    }

    fn at_position(position: usize, candidate: Candidate) -> Candidate {
        Candidate {
            position,
            ..candidate
        }
    }

    /// The positions of the candidates that remain.
    fn open(
        thresholds: SaturationThresholds,
        policy: PolicyKind,
        mut candidates: Vec<Candidate>,
    ) -> Vec<usize> {
        retain_moving(&mut candidates);
        thresholds.retain_open(&mut candidates, policy);
        candidates
            .iter()
            .map(|candidate| candidate.position)
            .collect()
    }

    #[test]
    fn full_backends_stay_candidates_while_others_have_capacity() {
        let full = at_position(0, reporting_candidate(100.0, 1.0));
        let free = at_position(1, reporting_candidate(0.0, 0.5));
        for policy in PolicyKind::ALL {
            let is_blind = matches!(policy, PolicyKind::RoundRobin | PolicyKind::Random);
            let expected = if is_blind { vec![1] } else { vec![0, 1] };
            assert_eq!(
                open(THRESHOLDS, policy, vec![full, free]),
                expected,
                "{policy:?}"
            );
            assert!(
                open(THRESHOLDS, policy, vec![full, full]).is_empty(),
                "{policy:?}"
            );
        }
    }

    #[test]
    fn waiting_for_a_full_backend_beats_stuck_ones() {
        let open =
            |candidates: &[Candidate]| open(THRESHOLDS, PolicyKind::KvAware, candidates.to_vec());
        let full = at_position(0, reporting_candidate(100.0, 0.5));
        let free = at_position(1, reporting_candidate(0.0, 0.5));
        let stuck = at_position(
            2,
            Candidate {
                overdue: STUCK_OVERDUE_SECONDS,
                ..free
            },
        );
        assert!(open(&[full, stuck]).is_empty());
        assert_eq!(
            open(&[full, stuck, free]),
            [0, 1],
            "the policy decides between the moving ones"
        );
        assert_eq!(
            open(&[stuck]),
            [2],
            "no other backend can serve the request"
        );
    }

    #[test]
    fn the_maximum_number_in_flight_excludes_a_backend() {
        let thresholds = SaturationThresholds {
            in_flight: Some(20),
            ..THRESHOLDS
        };
        let at_limit = at_position(0, reporting_candidate(0.0, 0.5));
        let below = at_position(
            1,
            Candidate {
                in_flight: 19,
                ..reporting_candidate(0.0, 0.5)
            },
        );
        for policy in PolicyKind::ALL {
            assert_eq!(
                open(thresholds, policy, vec![at_limit, below]),
                [1],
                "{policy:?}"
            );
            assert!(
                open(thresholds, policy, vec![at_limit]).is_empty(),
                "{policy:?}"
            );
        }
    }

    #[test]
    fn waiting_counts_changes_since_the_report() {
        assert!(!is_full(reporting_candidate(15.0, 0.5)));
        assert!(is_full(reporting_candidate(16.0, 0.5)));
        assert!(
            is_full(since(1.0, reporting_candidate(15.0, 0.5))),
            "one was sent since"
        );
        assert!(
            !is_full(since(-1.0, reporting_candidate(16.0, 0.5))),
            "one has ended since"
        );
    }

    #[test]
    fn the_more_requests_run_the_more_may_wait() {
        let candidate = |running| {
            let reported = ReportedLoad {
                waiting: 16.0,
                running,
                sent_since: 0.0,
            };
            Candidate {
                reported,
                ..idle_candidate()
            }
        };
        assert!(is_full(candidate(256.0)) && !is_full(candidate(257.0)));
    }

    #[test]
    fn an_ageing_report_stops_counting_gradually() {
        let at = |waiting, kv_usage, certainty| {
            is_full(Candidate {
                certainty,
                ..reporting_candidate(waiting, kv_usage)
            })
        };
        assert!(
            at(20.0, 0.5, 0.9) && !at(20.0, 0.5, 0.7),
            "a short queue fades soon"
        );
        assert!(
            at(40.0, 0.5, 0.5) && !at(40.0, 0.5, 0.3),
            "a longer one later"
        );
        assert!(at(0.0, 1.0, 0.5) && !at(0.0, 1.0, 0.3));
        assert!(!at(15.0, 0.96, 1.0) && !at(15.0, 0.96, 0.0));
    }

    #[test]
    fn without_reports_only_requests_in_flight_fill_backends() {
        let unreported = Candidate {
            in_flight: 1_000,
            kv_usage: None,
            certainty: 0.0,
            ..idle_candidate()
        };
        assert!(!is_full(unreported));
        let thresholds = SaturationThresholds {
            in_flight: Some(1_000),
            ..THRESHOLDS
        };
        assert!(thresholds.is_full(&unreported));
        assert!(!thresholds.is_full(&Candidate {
            in_flight: 999,
            ..unreported
        }));
    }

    #[test]
    fn long_gaps_between_tokens_fill_a_backend() {
        let limits = LatencyLimits {
            tpot: Some(0.1),
            ..NO_LIMITS
        };
        let slowed = |token_gap| Candidate {
            token_gap,
            ..reporting_candidate(0.0, 0.5)
        };
        let is_full = |candidate| {
            SaturationThresholds {
                limits,
                ..THRESHOLDS
            }
            .is_full(&candidate)
        };
        assert!(is_full(slowed(0.07)) && !is_full(slowed(0.069)));
        assert!(
            !is_full(Candidate {
                certainty: 0.5,
                ..slowed(0.08)
            }),
            "an old report"
        );
        assert!(
            !is_full(Candidate {
                token_gap: 0.5,
                ..idle_candidate()
            }),
            "an idle engine"
        );
        assert!(
            !THRESHOLDS.is_full(&slowed(0.5)),
            "no objective limits the TPOT"
        );
    }

    #[test]
    fn a_long_backlog_fills_a_backend() {
        let limits = LatencyLimits {
            ttft: Some(2.0),
            ..NO_LIMITS
        };
        let prefill = PrefillCost {
            base: 9.0,
            per_token: 1e-4,
        };
        let behind = |backlog| Candidate {
            backlog,
            prefill,
            ..reporting_candidate(0.0, 0.5)
        };
        let is_full = |candidate| {
            SaturationThresholds {
                limits,
                ..THRESHOLDS
            }
            .is_full(&candidate)
        };
        assert!(is_full(behind(3_000.0)) && !is_full(behind(2_900.0)));
        let slow = PrefillCost {
            base: 9.0,
            per_token: 1.0,
        };
        let less = Candidate {
            prefill: slow,
            ..behind(2_000.0)
        };
        assert!(!is_full(less), "less than a step");
        assert!(
            !THRESHOLDS.is_full(&behind(1e6)),
            "no objective limits the TTFT"
        );
    }

    #[test]
    fn kv_usage_never_fills_an_idle_backend() {
        assert!(!is_full(Candidate {
            kv_usage: Some(1.0),
            ..idle_candidate()
        }));
        assert!(is_full(reporting_candidate(0.0, 1.0)));
    }

    proptest! {
        #[test]
        fn a_lower_certainty_never_fills_a_backend(
            waiting in 0.0..2_000.0_f64, kv_usage in 0.0..1.2_f64, sent in 0.0..600.0_f64,
            certainty in 0.0..1.0_f64, less in 0.0..1.0_f64,
        ) {
            let at = |certainty| {
                let candidate = since(sent, reporting_candidate(waiting, kv_usage));
                is_full(Candidate { certainty, ..candidate })
            };
            prop_assert!(at(certainty) || !at(certainty * less));
        }

        #[test]
        fn one_more_request_never_makes_room(
            waiting in 0.0..50.0_f64, kv_usage in 0.0..1.2_f64, sent in -20.0..600.0_f64,
        ) {
            let at = |sent| is_full(since(sent, reporting_candidate(waiting, kv_usage)));
            prop_assert!(at(sent + 1.0) || !at(sent));
        }
    }
}
