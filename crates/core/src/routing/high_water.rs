//! Whether a replica is past its high-water mark: more work would only wait there, where it cannot
//! be moved any more.
//!
//! ```text
//! past     = in flight ≥ mark                               what this gateway knows itself
//!          ∨ certainty · waiting ≥ mark
//!          ∨ certainty · k ÷ (1 − k) ≥ mark ÷ (1 − mark)
//! waiting  = waiting + sent since                           if it said that requests wait
//!          = sent since − (batch − running)                 if not
//! k        = the KV usage that the ledger believes
//! batch    = the larger of 256 and 2 · running
//! ```
//!
//! *Sent since* is less what has ended since, so each request that ends makes room for one. An
//! engine without a queue has free places in its batch: how many, it does not say. An old report
//! fades, so one that stays away never closes the door; and a replica that has nothing to do is
//! never past its mark, whatever it says of its cache.
//!
//! A frozen engine is past no mark: its metrics stand still. While others are full it is worth less
//! than a place in the gateway's queue, see [`is_stuck`].

use super::{Candidate, LastSaid};

/// The marks. `None`: no such mark.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Marks {
    /// Requests waiting in the engine.
    pub waiting: Option<u32>,
    /// Share of the KV cache that requests hold, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Requests of this gateway at the replica.
    pub in_flight: Option<u32>,
}

/// Requests that an engine is thought to run at once while it has no queue: vLLM's default
/// `--max-num-seqs`, or as many again as it runs.
const BATCH: f64 = 256.0;
/// The fullest that a cache can be for its pressure.
const FULL: f64 = 0.99;

/// Seconds for which a candidate's oldest request must be overdue to take it for stuck.
const STUCK: f64 = 2.0;

/// Whether a candidate's engine does nothing, as far as can be seen: a request waits better for another
/// one that is full than there.
pub fn is_stuck(candidate: &Candidate) -> bool {
    candidate.overdue >= STUCK
}

impl Marks {
    /// Whether a candidate is past one of the marks.
    pub fn are_passed_by(&self, candidate: &Candidate) -> bool {
        let said = &candidate.said;
        let is_idle = said.running + said.waiting + said.sent_since <= 0.0;
        let is_past_queue = |mark| candidate.certainty * waiting(said) >= f64::from(mark);
        let is_past_usage = |mark| {
            let usage = candidate.kv_usage.unwrap_or(0.0);
            candidate.certainty * pressure(usage) >= pressure(mark)
        };
        self.in_flight.is_some_and(|mark| candidate.in_flight >= mark)
            || !is_idle
                && (self.waiting.is_some_and(is_past_queue)
                    || self.kv_usage.is_some_and(is_past_usage))
    }
}

fn waiting(said: &LastSaid) -> f64 {
    if said.waiting > 0.0 {
        return said.waiting + said.sent_since;
    }
    said.sent_since - (BATCH.max(2.0 * said.running) - said.running)
}

/// Of a cache: finite, and growing without a jump as it fills.
fn pressure(share: f64) -> f64 {
    let share = share.clamp(0.0, FULL);
    share / (1.0 - share)
}

#[cfg(test)]
mod tests {
    use super::super::tests::replica;
    use super::*;
    use proptest::prelude::*;

    const MARKS: Marks = Marks { waiting: Some(16), kv_usage: Some(0.97), in_flight: None };

    /// A replica that runs eight and said this, at which nothing has changed since.
    fn said(waiting: f64, kv_usage: f64) -> Candidate {
        let said = LastSaid { waiting, running: 8.0, sent_since: 0.0 };
        Candidate { in_flight: 20, said, kv_usage: Some(kv_usage), ..replica() }
    }

    fn since(sent_since: f64, candidate: Candidate) -> Candidate {
        Candidate { said: LastSaid { sent_since, ..candidate.said }, ..candidate }
    }

    fn is_past(candidate: Candidate) -> bool {
        MARKS.are_passed_by(&candidate)
    }

    #[test]
    fn a_queue_is_what_the_replica_said_and_what_was_sent_or_has_ended_since() {
        assert!(!is_past(said(15.0, 0.5)));
        assert!(is_past(said(16.0, 0.5)));
        assert!(is_past(since(1.0, said(15.0, 0.5))), "one was sent since");
        assert!(!is_past(since(-1.0, said(16.0, 0.5))), "one has ended since");
    }

    #[test]
    fn an_engine_without_a_queue_takes_a_batch_before_it_is_thought_to_have_one() {
        let sent = |running, count| {
            let said = LastSaid { waiting: 0.0, running, sent_since: count };
            Candidate { said, ..replica() }
        };
        assert!(!is_past(sent(8.0, 248.0 + 15.0)));
        assert!(is_past(sent(8.0, 248.0 + 16.0)));
        assert!(!is_past(sent(600.0, 600.0 + 15.0)), "a large batch may double");
        assert!(is_past(sent(600.0, 600.0 + 16.0)));
    }

    #[test]
    fn a_report_that_stays_away_opens_the_door_step_by_step_and_never_closes_it() {
        let at = |waiting, kv_usage, certainty| {
            is_past(Candidate { certainty, ..said(waiting, kv_usage) })
        };
        assert!(at(20.0, 0.5, 0.9) && !at(20.0, 0.5, 0.7), "a short queue is soon forgotten");
        assert!(at(40.0, 0.5, 0.5) && !at(40.0, 0.5, 0.3), "a longer one later");
        assert!(at(0.0, 1.0, 0.5) && !at(0.0, 1.0, 0.3));
        assert!(!at(15.0, 0.96, 1.0) && !at(15.0, 0.96, 0.0));
    }

    #[test]
    fn a_replica_that_says_nothing_counts_by_what_this_gateway_has_there() {
        let silent = Candidate { in_flight: 1_000, kv_usage: None, certainty: 0.0, ..replica() };
        assert!(!is_past(silent));
        let marks = Marks { in_flight: Some(1_000), ..MARKS };
        assert!(marks.are_passed_by(&silent));
        assert!(!marks.are_passed_by(&Candidate { in_flight: 999, ..silent }));
    }

    #[test]
    fn a_replica_with_nothing_to_do_is_not_past_its_mark_whatever_its_cache_says() {
        assert!(!is_past(Candidate { kv_usage: Some(1.0), ..replica() }));
        assert!(is_past(said(0.0, 1.0)));
    }

    proptest! {
        #[test]
        fn what_is_believed_less_is_never_past_its_mark_for_that(
            waiting in 0.0..2_000.0_f64, kv_usage in 0.0..1.2_f64, sent in 0.0..600.0_f64,
            certainty in 0.0..1.0_f64, less in 0.0..1.0_f64,
        ) {
            let at = |certainty| {
                is_past(Candidate { certainty, ..since(sent, said(waiting, kv_usage)) })
            };
            prop_assert!(at(certainty) || !at(certainty * less));
        }

        #[test]
        fn one_more_request_never_brings_a_replica_below_its_mark(
            waiting in 0.0..50.0_f64, kv_usage in 0.0..1.2_f64, sent in -20.0..600.0_f64,
        ) {
            let at = |sent| is_past(since(sent, said(waiting, kv_usage)));
            prop_assert!(at(sent + 1.0) || !at(sent));
        }
    }
}
