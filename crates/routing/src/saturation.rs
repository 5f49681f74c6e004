//! Decides whether a backend is saturated: further requests would only wait in its engine, where
//! the gateway can no longer move them to another backend.
//!
//! ```text
//! saturated = in_flight ≥ max_in_flight                    known to this gateway itself
//!           ∨ certainty × waiting ≥ max_waiting
//!           ∨ certainty × k ÷ (1 − k) ≥ max_kv_usage ÷ (1 − max_kv_usage)
//! waiting   = reported_waiting + sent_since                if the last report had waiting requests
//!           = sent_since − (batch − running)               if not
//! k         = estimated KV cache usage
//! batch     = max(256, 2 × running)
//! ```
//!
//! - `sent_since` is the number of requests sent since the last report, less those that ended.
//! - An engine without waiting requests does not report how many more it could run. `batch` is the number
//!   of requests that it is assumed to run at once.
//! - `certainty`, from 0 to 1, falls with the age of the report, so a backend whose scrapes fail does not
//!   stay saturated.
//! - An idle backend is never saturated, whatever KV cache usage it reports.
//! - An engine at a standstill may not count as saturated, because its metrics do not change. While the
//!   other backends are saturated, requests wait in the admission queue and are not sent to this engine,
//!   see [`is_stuck`].

use super::{Candidate, ReportedLoad};

/// The thresholds from which a backend counts as saturated, one for each measure of load. `None`:
/// this measure does not make a backend saturated.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SaturationThresholds {
    /// Threshold for the number of requests that wait in the engine.
    pub waiting: Option<u32>,
    /// Threshold for the KV cache usage, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Threshold for the number of requests that this gateway has in flight at the backend.
    pub in_flight: Option<u32>,
}

/// Least number of sequences that an engine without a queue is assumed to run at once: the default
/// of vLLM's `--max-num-seqs`. An engine that runs more than half of this number is assumed to be able to
/// run twice as many as it runs now.
const MIN_ASSUMED_BATCH: f64 = 256.0;
/// KV cache usage above which the value of [`pressure`] does not grow, so that the value stays finite.
const MAX_PRESSURE_USAGE: f64 = 0.99;

/// Seconds for which a candidate must be overdue to count as stuck.
const STUCK_OVERDUE_SECONDS: f64 = 2.0;

/// Whether the engine of a candidate seems to be at a standstill. A request is better off in the admission
/// queue, waiting for a saturated backend, than at such an engine.
pub fn is_stuck(candidate: &Candidate) -> bool {
    candidate.overdue >= STUCK_OVERDUE_SECONDS
}

impl SaturationThresholds {
    /// Whether a candidate has reached one of the thresholds.
    pub fn is_saturated(&self, candidate: &Candidate) -> bool {
        let reported = &candidate.reported;
        let is_idle = reported.running + reported.waiting + reported.sent_since <= 0.0;
        let exceeds_waiting =
            |threshold| candidate.certainty * waiting(reported) >= f64::from(threshold);
        let exceeds_usage = |threshold| {
            let usage = candidate.kv_usage.unwrap_or(0.0);
            candidate.certainty * pressure(usage) >= pressure(threshold)
        };
        self.in_flight.is_some_and(|threshold| candidate.in_flight >= threshold)
            || !is_idle
                && (self.waiting.is_some_and(exceeds_waiting)
                    || self.kv_usage.is_some_and(exceeds_usage))
    }
}

/// Estimated number of requests that wait in the engine. Negative: the engine could run more.
fn waiting(reported: &ReportedLoad) -> f64 {
    if reported.waiting > 0.0 {
        return reported.waiting + reported.sent_since;
    }
    reported.sent_since - (MIN_ASSUMED_BATCH.max(2.0 * reported.running) - reported.running)
}

/// usage ÷ (1 − usage), with the usage limited to [`MAX_PRESSURE_USAGE`].
fn pressure(usage: f64) -> f64 {
    let usage = usage.clamp(0.0, MAX_PRESSURE_USAGE);
    usage / (1.0 - usage)
}

#[cfg(test)]
mod tests {
    use super::super::tests::idle_candidate;
    use super::*;
    use proptest::prelude::*;

    const THRESHOLDS: SaturationThresholds =
        SaturationThresholds { waiting: Some(16), kv_usage: Some(0.97), in_flight: None };

    /// A backend that reported this load and eight running requests. Nothing has changed since.
    fn reporting_candidate(waiting: f64, kv_usage: f64) -> Candidate {
        let reported = ReportedLoad { waiting, running: 8.0, sent_since: 0.0 };
        Candidate { in_flight: 20, reported, kv_usage: Some(kv_usage), ..idle_candidate() }
    }

    fn since(sent_since: f64, candidate: Candidate) -> Candidate {
        Candidate { reported: ReportedLoad { sent_since, ..candidate.reported }, ..candidate }
    }

    fn is_saturated(candidate: Candidate) -> bool {
        THRESHOLDS.is_saturated(&candidate)
    }

    #[test]
    fn saturation_counts_the_reported_waiting_requests_and_those_sent_or_ended_since() {
        assert!(!is_saturated(reporting_candidate(15.0, 0.5)));
        assert!(is_saturated(reporting_candidate(16.0, 0.5)));
        assert!(is_saturated(since(1.0, reporting_candidate(15.0, 0.5))), "one was sent since");
        assert!(!is_saturated(since(-1.0, reporting_candidate(16.0, 0.5))), "one has ended since");
    }

    #[test]
    fn a_backend_without_waiting_requests_is_saturated_only_by_more_requests_than_a_batch() {
        let sent = |running, count| {
            let reported = ReportedLoad { waiting: 0.0, running, sent_since: count };
            Candidate { reported, ..idle_candidate() }
        };
        assert!(!is_saturated(sent(8.0, 248.0 + 15.0)));
        assert!(is_saturated(sent(8.0, 248.0 + 16.0)));
        assert!(!is_saturated(sent(600.0, 600.0 + 15.0)), "a large batch may double");
        assert!(is_saturated(sent(600.0, 600.0 + 16.0)));
    }

    #[test]
    fn an_ageing_load_report_ends_the_saturation_of_a_backend_gradually_and_never_causes_it() {
        let at = |waiting, kv_usage, certainty| {
            is_saturated(Candidate { certainty, ..reporting_candidate(waiting, kv_usage) })
        };
        assert!(at(20.0, 0.5, 0.9) && !at(20.0, 0.5, 0.7), "a short queue fades soon");
        assert!(at(40.0, 0.5, 0.5) && !at(40.0, 0.5, 0.3), "a longer one later");
        assert!(at(0.0, 1.0, 0.5) && !at(0.0, 1.0, 0.3));
        assert!(!at(15.0, 0.96, 1.0) && !at(15.0, 0.96, 0.0));
    }

    #[test]
    fn a_backend_without_reports_is_saturated_by_local_load_only() {
        let unreported =
            Candidate { in_flight: 1_000, kv_usage: None, certainty: 0.0, ..idle_candidate() };
        assert!(!is_saturated(unreported));
        let thresholds = SaturationThresholds { in_flight: Some(1_000), ..THRESHOLDS };
        assert!(thresholds.is_saturated(&unreported));
        assert!(!thresholds.is_saturated(&Candidate { in_flight: 999, ..unreported }));
    }

    #[test]
    fn an_idle_backend_is_never_saturated_by_kv_usage() {
        assert!(!is_saturated(Candidate { kv_usage: Some(1.0), ..idle_candidate() }));
        assert!(is_saturated(reporting_candidate(0.0, 1.0)));
    }

    proptest! {
        #[test]
        fn a_lower_certainty_of_the_load_report_never_saturates_a_backend(
            waiting in 0.0..2_000.0_f64, kv_usage in 0.0..1.2_f64, sent in 0.0..600.0_f64,
            certainty in 0.0..1.0_f64, less in 0.0..1.0_f64,
        ) {
            let at = |certainty| {
                let candidate = since(sent, reporting_candidate(waiting, kv_usage));
                is_saturated(Candidate { certainty, ..candidate })
            };
            prop_assert!(at(certainty) || !at(certainty * less));
        }

        #[test]
        fn one_more_request_never_ends_the_saturation_of_a_backend(
            waiting in 0.0..50.0_f64, kv_usage in 0.0..1.2_f64, sent in -20.0..600.0_f64,
        ) {
            let at = |sent| is_saturated(since(sent, reporting_candidate(waiting, kv_usage)));
            prop_assert!(at(sent + 1.0) || !at(sent));
        }
    }
}
