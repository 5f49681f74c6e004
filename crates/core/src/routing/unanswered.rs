//! The requests at one backend that have had no output yet, and how long the oldest of them is
//! overdue.
//!
//! A request that has waited longer than predicted is evidence against the backend: its engine may
//! be frozen although `/health` answers. Engines serve first come, first served, so the delay of the
//! request at the head of the queue is what the next one has to expect (the head-of-line estimator of
//! Ibrahim and Whitt 2009: *Real-time delay estimation based on delay history*). The delay is measured
//! against the request's own prediction, so that a long prompt is not overdue while it is computed.
//!
//! A request that was sent before one that has had output is out of turn: it is no evidence of how
//! long the next one waits, and is forgotten. A request that is no stream shows no output before its
//! end; it counts only until the metrics of the engine show that the engine makes tokens.

use super::said::Real;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The requests without output. Times are seconds from the epoch of the ledger.
#[derive(Debug)]
#[repr(C)] // decisions read the first two fields
pub(super) struct Unanswered {
    /// When the oldest request becomes overdue. Infinite: there is none.
    overdue_from: Real,
    /// When the output of that request was expected.
    expected_at: Real,
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    /// Tickets that have been given.
    tickets: u64,
    /// Streams in the order in which they were sent.
    streams: VecDeque<Waiting>,
    /// Requests that are no streams, in the same order.
    whole: VecDeque<Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    ticket: u64,
    overdue_from: f64,
    expected_at: f64,
}

/// Identifies a request in the queues of its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// A request is overdue after this many times its prediction and [`SLACK`]: predictions of single
/// requests are often wrong by a factor of two.
const FACTOR: f64 = 2.0;
/// Seconds.
const SLACK: f64 = 0.25;
/// The same factor for the time that answers take: answers differ more in length than predictions do.
const ANSWER_FACTOR: f64 = 4.0;

// === impl Unanswered ===

impl Unanswered {
    pub(super) fn new() -> Self {
        Self {
            overdue_from: Real::new(f64::INFINITY),
            expected_at: Real::new(f64::INFINITY),
            queues: Mutex::default(),
        }
    }

    /// For how many seconds the oldest request is overdue; 0 if it is not, or if there is none.
    pub(super) fn overdue(&self, now: f64) -> f64 {
        if now <= self.overdue_from.get() {
            return 0.0;
        }
        // The other value may already be that of the next request.
        (now - self.expected_at.get()).max(0.0)
    }

    /// A stream has been sent. Its first output is expected after this many seconds.
    pub(super) fn add_stream(&self, expected: f64, now: f64) -> Ticket {
        let overdue_from = now + FACTOR * expected + SLACK;
        self.add(|queues| &mut queues.streams, overdue_from, now + expected)
    }

    /// A request that is no stream has been sent. Its first token is expected after `expected`
    /// seconds, and `answer` seconds later its end.
    pub(super) fn add_whole(&self, expected: f64, answer: f64, now: f64) -> Ticket {
        let overdue_from = now + FACTOR * expected + SLACK + ANSWER_FACTOR * answer;
        self.add(|queues| &mut queues.whole, overdue_from, now + expected + answer)
    }

    /// A request has had output: it and all that were sent before it wait no more.
    pub(super) fn on_output(&self, ticket: Ticket) {
        let mut queues = self.queues();
        let is_out_of_turn = |waiting: &Waiting| waiting.ticket <= ticket.0;
        let Queues { streams, whole, .. } = &mut *queues;
        for queue in [streams, whole] {
            while queue.front().is_some_and(is_out_of_turn) {
                queue.pop_front();
            }
        }
        self.publish(&queues);
    }

    /// A request has ended without output: this is no evidence that the others are served.
    pub(super) fn remove(&self, ticket: Ticket) {
        let mut queues = self.queues();
        let Queues { streams, whole, .. } = &mut *queues;
        for queue in [streams, whole] {
            if let Ok(index) = queue.binary_search_by_key(&ticket.0, |waiting| waiting.ticket) {
                queue.remove(index);
            }
        }
        self.publish(&queues);
    }

    /// The engine makes tokens: its requests that are no streams may be among those that get them.
    pub(super) fn on_progress(&self) {
        let mut queues = self.queues();
        queues.whole.clear();
        self.publish(&queues);
    }

    fn add(
        &self,
        queue: impl Fn(&mut Queues) -> &mut VecDeque<Waiting>,
        overdue_from: f64,
        expected_at: f64,
    ) -> Ticket {
        let mut queues = self.queues();
        queues.tickets += 1;
        let ticket = queues.tickets;
        let queue = queue(&mut queues);
        queue.push_back(Waiting { ticket, overdue_from, expected_at });
        if queue.len() == 1 {
            self.publish(&queues);
        }
        Ticket(ticket)
    }

    /// Shows decisions the oldest request: of the two oldest, the one that is overdue first.
    fn publish(&self, queues: &Queues) {
        let fronts = [queues.streams.front(), queues.whole.front()].into_iter().flatten();
        let first = fronts.min_by(|a, b| a.overdue_from.total_cmp(&b.overdue_from));
        let [overdue_from, expected_at] =
            first.map_or([f64::INFINITY; 2], |waiting| [waiting.overdue_from, waiting.expected_at]);
        self.expected_at.set(expected_at);
        self.overdue_from.set(overdue_from);
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is(actual: f64, expected: f64) -> bool {
        (actual - expected).abs() < 1e-9
    }

    #[test]
    fn a_request_is_overdue_after_twice_its_prediction_and_a_quarter_of_a_second() {
        let unanswered = Unanswered::new();
        assert!(is(unanswered.overdue(1e9), 0.0), "there is none");
        unanswered.add_stream(0.1, 10.0);
        assert!(is(unanswered.overdue(10.44), 0.0));
        assert!(is(unanswered.overdue(10.46), 0.36), "since its output was expected");
    }

    #[test]
    fn a_long_prompt_is_not_overdue_while_it_is_computed_and_hides_nothing_after_that() {
        let unanswered = Unanswered::new();
        let long = unanswered.add_stream(20.0, 0.0);
        unanswered.add_stream(20.1, 0.1);
        assert!(is(unanswered.overdue(40.0), 0.0));
        unanswered.on_output(long);
        assert!(is(unanswered.overdue(40.5), 0.0));
        assert!(is(unanswered.overdue(41.0), 20.8));
    }

    #[test]
    fn the_oldest_is_the_one_that_counts_until_it_has_output() {
        let unanswered = Unanswered::new();
        let tickets = [0.0, 1.0, 2.0].map(|sent| unanswered.add_stream(0.1, sent));
        assert!(is(unanswered.overdue(3.0), 2.9));
        unanswered.on_output(tickets[0]);
        assert!(is(unanswered.overdue(3.0), 1.9));
        unanswered.on_output(tickets[1]);
        unanswered.on_output(tickets[2]);
        assert!(is(unanswered.overdue(3.0), 0.0));
    }

    #[test]
    fn a_request_that_later_ones_have_overtaken_is_no_evidence() {
        let unanswered = Unanswered::new();
        let stuck = unanswered.add_stream(0.1, 0.0);
        let later = unanswered.add_stream(0.1, 50.0);
        unanswered.on_output(later);
        assert!(is(unanswered.overdue(100.0), 0.0));
        unanswered.remove(stuck);
        assert!(is(unanswered.overdue(100.0), 0.0));
    }

    #[test]
    fn a_client_that_leaves_takes_only_its_own_request_away() {
        let unanswered = Unanswered::new();
        let tickets = [0.0, 1.0, 2.0].map(|sent| unanswered.add_stream(0.1, sent));
        unanswered.remove(tickets[1]);
        assert!(is(unanswered.overdue(3.0), 2.9));
        unanswered.remove(tickets[0]);
        assert!(is(unanswered.overdue(3.0), 0.9));
    }

    #[test]
    fn a_request_that_is_no_stream_is_overdue_only_if_the_engine_makes_no_token() {
        let unanswered = Unanswered::new();
        unanswered.add_whole(0.1, 1.0, 0.0);
        assert!(is(unanswered.overdue(4.4), 0.0));
        assert!(is(unanswered.overdue(4.5), 3.4));
        unanswered.add_stream(0.1, 4.0);
        unanswered.on_progress();
        assert!(is(unanswered.overdue(4.4), 0.0), "the stream is not overdue yet");
        assert!(is(unanswered.overdue(5.0), 0.9), "tokens of others do not answer a stream");
    }

    proptest! {
        #[test]
        fn whatever_comes_no_request_is_left_and_no_delay_is_negative(
            steps in proptest::collection::vec((0_u8..5, 0_usize..8, 0.0..30.0_f64), 1..100),
        ) {
            let (unanswered, mut open, mut now) = (Unanswered::new(), Vec::new(), 0.0);
            for (step, which, seconds) in steps {
                now += seconds;
                match step {
                    0 | 1 if open.len() > which => {
                        let ticket = open.remove(which);
                        if step == 0 { unanswered.on_output(ticket) } else { unanswered.remove(ticket) }
                    }
                    2 => open.push(unanswered.add_whole(seconds, seconds, now)),
                    3 => unanswered.on_progress(),
                    _ => open.push(unanswered.add_stream(seconds, now)),
                }
                let overdue = unanswered.overdue(now);
                prop_assert!((0.0..=now).contains(&overdue), "{overdue} of {now}");
            }
            for ticket in open {
                unanswered.remove(ticket);
            }
            prop_assert!(is(unanswered.overdue(now + 1e9), 0.0));
        }
    }
}
