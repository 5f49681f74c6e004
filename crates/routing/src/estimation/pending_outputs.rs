//! Tracks the requests at one backend that have had no output yet, and for how long the oldest one is overdue.
//!
//! A request that has waited longer than predicted is evidence against the backend: its engine may be at a
//! standstill although `/health` answers. Engines serve in order of arrival, so the delay of the request at the
//! head of the queue predicts the delay of the next request (the head-of-line estimator of Ibrahim and Whitt
//! 2009: *Real-time delay estimation based on delay history*). The delay is measured against the request's own
//! prediction, so a long prompt is not overdue while it is computed.
//!
//! When a request has output, all requests sent before it are removed. They were served out of order, so their
//! delay does not predict the delay of the next request. A non-streaming request shows no output before its
//! end. It counts only until the metrics of the engine show that the engine generates tokens.

use super::limits::PREDICTION_ERROR;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokenweir_protocol::atomic::AtomicF64;
use tokenweir_protocol::mutex::lock;

/// The requests at one backend that have had no output yet. Times are seconds since the start of
/// the [`LoadEstimator`].
///
/// [`LoadEstimator`]: super::LoadEstimator
#[derive(Debug)]
#[repr(C)] // routing decisions read only the fields before the queue
pub(super) struct PendingOutputs {
    /// Time at which the oldest request becomes overdue. Infinity: no request.
    overdue_from: AtomicF64,
    /// Time at which the output of the oldest request was expected.
    expected_at: AtomicF64,
    /// Age of the prefix table when the oldest stream was sent. Above [`u32::MAX`]: no stream.
    oldest_table_age: AtomicU64,
    queue: Mutex<PendingQueue>,
}

#[derive(Debug, Default)]
struct PendingQueue {
    last_id: u64,
    /// The requests, in the order in which they were sent.
    requests: VecDeque<PendingOutput>,
}

#[derive(Debug, Clone, Copy)]
struct PendingOutput {
    id: u64,
    is_stream: bool,
    overdue_from: f64,
    expected_at: f64,
    /// Age of the prefix table before the prompt was added to it.
    table_age: u32,
}

/// Identifies a request in the queue of its backend. Ids increase with time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingOutputId(u64);

/// Time that is added to the predicted time before a request is overdue.
const OVERDUE_SLACK_SECONDS: f64 = 0.25;
/// Multiple of the mean response time after which a non-streaming request is overdue. It is greater
/// than [`PREDICTION_ERROR`], because response lengths vary more than prediction errors.
const RESPONSE_TIME_FACTOR: f64 = 4.0;

impl Default for PendingOutputs {
    fn default() -> Self {
        Self {
            overdue_from: AtomicF64::new(f64::INFINITY),
            expected_at: AtomicF64::new(f64::INFINITY),
            oldest_table_age: AtomicU64::new(u64::MAX),
            queue: Mutex::default(),
        }
    }
}

impl PendingOutputs {
    /// Seconds since the output of the oldest request was expected, if that request is overdue. 0: no request
    /// is overdue.
    pub(super) fn overdue(&self, now: f64) -> f64 {
        if now <= self.overdue_from.get() {
            return 0.0;
        }
        // The two values are not read atomically, so this may be the time of the next request.
        (now - self.expected_at.get()).max(0.0)
    }

    /// Age of the prefix table when the oldest stream without output was sent. `None`: no such stream.
    pub(super) fn oldest_table_age(&self) -> Option<u32> {
        u32::try_from(self.oldest_table_age.load(Ordering::Relaxed)).ok()
    }

    /// Adds a request. Its first token is expected after `expected_seconds`, and a non-streaming response
    /// `response_seconds` later. `None`: the request is a stream. `table_age`: the age of the prefix table
    /// before the prompt is added.
    pub(super) fn add(
        &self,
        expected_seconds: f64,
        response_seconds: Option<f64>,
        now: f64,
        table_age: u32,
    ) -> PendingOutputId {
        let rest = response_seconds.unwrap_or(0.0);
        let tolerated = PREDICTION_ERROR * expected_seconds + RESPONSE_TIME_FACTOR * rest;
        let mut queue = lock(&self.queue);
        queue.last_id += 1;
        let id = queue.last_id;
        queue.requests.push_back(PendingOutput {
            id,
            is_stream: response_seconds.is_none(),
            overdue_from: now + tolerated + OVERDUE_SLACK_SECONDS,
            expected_at: now + expected_seconds + rest,
            table_age,
        });
        self.publish_oldest(&queue);
        PendingOutputId(id)
    }

    /// Removes a request that has had output, and all requests that were sent before it.
    pub(super) fn on_output(&self, id: PendingOutputId) {
        self.retain(|pending| pending.id > id.0);
    }

    /// Removes a request that ended without output. Earlier requests stay, because this end does not show that
    /// the engine serves them.
    pub(super) fn remove(&self, id: PendingOutputId) {
        self.retain(|pending| pending.id != id.0);
    }

    /// Removes all non-streaming requests, because the engine generates tokens, which may belong to them.
    pub(super) fn on_progress(&self) {
        self.retain(|pending| pending.is_stream);
    }

    fn retain(&self, stays: impl Fn(&PendingOutput) -> bool) {
        let mut queue = lock(&self.queue);
        queue.requests.retain(stays);
        self.publish_oldest(&queue);
    }

    /// Publishes the times of the oldest stream or the oldest non-streaming request, whichever becomes overdue
    /// first. Readers then need no lock.
    fn publish_oldest(&self, queue: &PendingQueue) {
        let oldest = |is_stream| {
            let mut requests = queue.requests.iter();
            requests.find(|pending| pending.is_stream == is_stream)
        };
        let stream = oldest(true);
        let fronts = [stream, oldest(false)].into_iter().flatten();
        let first = fronts.min_by(|a, b| a.overdue_from.total_cmp(&b.overdue_from));
        let expected_at = first.map_or(f64::INFINITY, |pending| pending.expected_at);
        let overdue_from = first.map_or(f64::INFINITY, |pending| pending.overdue_from);
        let table_age = stream.map_or(u64::MAX, |pending| pending.table_age.into());
        self.expected_at.set(expected_at);
        self.overdue_from.set(overdue_from);
        self.oldest_table_age.store(table_age, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_close(actual: f64, expected: f64) -> bool {
        (actual - expected).abs() < 1e-9
    }

    #[test]
    fn twice_the_predicted_time_is_overdue() {
        let pending = PendingOutputs::default();
        assert!(is_close(pending.overdue(1e9), 0.0), "no request");
        pending.add(0.1, None, 10.0, 0);
        assert!(is_close(pending.overdue(10.44), 0.0));
        assert!(
            is_close(pending.overdue(10.46), 0.36),
            "since its output was expected"
        );
    }

    #[test]
    fn a_long_prefill_is_not_overdue() {
        let pending = PendingOutputs::default();
        let long = pending.add(20.0, None, 0.0, 0);
        pending.add(20.1, None, 0.1, 0);
        assert!(is_close(pending.overdue(40.0), 0.0));
        pending.on_output(long);
        assert!(is_close(pending.overdue(40.5), 0.0));
        assert!(is_close(pending.overdue(41.0), 20.8));
    }

    #[test]
    fn a_client_disconnect_removes_only_its_own_request() {
        let pending = PendingOutputs::default();
        let ids = [0.0, 1.0, 2.0].map(|sent| pending.add(0.1, None, sent, 0));
        pending.remove(ids[1]);
        assert!(is_close(pending.overdue(3.0), 2.9));
        pending.remove(ids[0]);
        assert!(is_close(pending.overdue(3.0), 0.9));
    }

    #[test]
    fn a_later_output_ends_an_older_wait() {
        let pending = PendingOutputs::default();
        let stuck = pending.add(0.1, None, 0.0, 0);
        let later = pending.add(0.1, None, 50.0, 0);
        pending.on_output(later);
        assert!(is_close(pending.overdue(100.0), 0.0));
        pending.remove(stuck);
        assert!(is_close(pending.overdue(100.0), 0.0));
    }

    #[test]
    fn unstreamed_requests_are_overdue_without_new_tokens() {
        let pending = PendingOutputs::default();
        pending.add(0.1, Some(1.0), 0.0, 0);
        assert!(is_close(pending.overdue(4.4), 0.0));
        assert!(is_close(pending.overdue(4.5), 3.4));
        pending.add(0.1, None, 4.0, 0);
        pending.on_progress();
        assert!(
            is_close(pending.overdue(4.4), 0.0),
            "the stream is not overdue yet"
        );
        assert!(
            is_close(pending.overdue(5.0), 0.9),
            "engine progress does not remove streams"
        );
    }

    #[test]
    fn the_oldest_waiting_stream_gives_the_age() {
        let pending = PendingOutputs::default();
        pending.add(0.1, Some(1.0), 0.0, 0);
        assert_eq!(pending.oldest_table_age(), None);
        let ids = [3, 7, 7].map(|age| pending.add(0.1, None, 0.0, age));
        assert_eq!(pending.oldest_table_age(), Some(3));
        pending.remove(ids[0]);
        assert_eq!(pending.oldest_table_age(), Some(7));
        pending.on_output(ids[2]);
        assert_eq!(pending.oldest_table_age(), None);
    }

    proptest! {
        #[test]
        fn every_history_leaves_no_request_and_no_delay(
            steps in proptest::collection::vec((0_u8..5, 0_usize..8, 0.0..30.0_f64), 1..100),
        ) {
            let pending = PendingOutputs::default();
            let mut open = Vec::new();
            let mut now = 0.0;
            for (step, which, seconds) in steps {
                now += seconds;
                match step {
                    0 | 1 if open.len() > which => {
                        let id = open.remove(which);
                        if step == 0 { pending.on_output(id) } else { pending.remove(id) }
                    }
                    2 => open.push(pending.add(seconds, Some(seconds), now, 0)),
                    3 => pending.on_progress(),
                    _ => open.push(pending.add(seconds, None, now, 0)),
                }
                let overdue = pending.overdue(now);
                prop_assert!((0.0..=now).contains(&overdue), "{overdue} of {now}");
            }
            for id in open {
                pending.remove(id);
            }
            prop_assert!(is_close(pending.overdue(now + 1e9), 0.0));
        }
    }
}
