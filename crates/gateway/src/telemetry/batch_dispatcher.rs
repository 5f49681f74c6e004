//! The batch dispatcher passes the records of finished requests to sinks in batches, on its own thread. It
//! serves the sinks that need not receive a record immediately.
//!
//! A finished request then costs the worker thread only a push to a queue. The series of a metric are loaded
//! into the CPU cache once per batch instead of once per request.

use super::batch_worker::BatchWorkerGuard;
use super::cpu_time::{self, TelemetryPart};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_protocol::mutex::lock;
use tokenweir_request::answer::AnswerJudge;
use tokenweir_request::batch_queue::BatchQueue;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::RequestRecord;

/// Guard of the dispatch thread. Dropping the guard dispatches the remaining records and ends the
/// thread.
pub type BatchDispatcherGuard = BatchWorkerGuard;

/// Queues records for the dispatch thread, which passes them to the sinks.
pub(super) struct BatchDispatcher {
    /// The sinks to which the dispatch thread passes the records.
    pub(super) sinks: Vec<Arc<dyn Sink>>,
    /// Queued records. They are boxed because a growing vector would move the large records.
    records: Arc<BatchQueue<Box<RequestRecord>>>,
    /// Judges the answers of the records. The lock is held while queued records are dispatched, so that
    /// concurrent flushes keep the order of the records.
    judge: Mutex<AnswerJudge>,
}

/// How long the first record of a batch waits for further records. The metrics page stays up to date, because
/// reading the page flushes the queue. With a shorter wait, the dispatch thread would delay 1 % of the response
/// chunks on a core that it shares with a worker thread.
const BATCH_LINGER: Duration = Duration::from_millis(100);
/// Capacity of the queue, in records (about 16 MiB). If the queue is full, the thread that ends a
/// request dispatches the record itself.
const MAX_QUEUED_RECORDS: usize = 8_192;
/// Number of records that each sink receives per call under high load. A batch of this size fits into the CPU
/// cache.
const DISPATCH_BATCH_SIZE: usize = 32;
/// Largest batch that counts as low load, in records. Under low load the dispatch thread yields after each call
/// of a sink, so that a worker thread on the same core can run: since Linux 6.6 the scheduler switches to the
/// worker thread only at a yield. Under high load the dispatch thread does not yield, because it would fall
/// behind.
const LOW_LOAD_MAX_RECORDS: usize = 64;
/// Number of records that each sink receives per call under low load. A worker thread on the same
/// core waits while the dispatch thread runs one such call.
const LOW_LOAD_BATCH_SIZE: usize = 4;

impl BatchDispatcher {
    /// Starts the dispatch thread, which passes the queued records to these sinks in batches.
    pub(super) fn start(
        sinks: Vec<Arc<dyn Sink>>,
        judge: AnswerJudge,
    ) -> (Arc<Self>, BatchDispatcherGuard) {
        let records = Arc::new(BatchQueue::new(BATCH_LINGER, MAX_QUEUED_RECORDS));
        let dispatcher = Arc::new(Self {
            sinks,
            records: records.clone(),
            judge: Mutex::new(judge),
        });
        let thread_dispatcher = dispatcher.clone();
        let dispatch = move |_: &_| thread_dispatcher.flush();
        // Dropping the guard may wait without a time limit: the thread ends by itself, because sinks do not
        // block and their panics are caught.
        (
            dispatcher,
            BatchWorkerGuard::start(records, Duration::MAX, dispatch),
        )
    }

    /// Queues a record. If the queue is full or closed, the calling thread dispatches the queued
    /// records and then this record.
    pub(super) fn enqueue(&self, record: Box<RequestRecord>) {
        if let Err(record) = self.records.push(record, 1) {
            self.flush_before(Some(record));
        }
    }

    /// Dispatches the queued records on the calling thread. On return, all records that were queued before the
    /// call have been dispatched.
    pub(super) fn flush(&self) {
        self.flush_before(None);
    }

    /// Dispatches the queued records, and then `last`, which the queue did not accept. The lock is held for all
    /// these records, so that no other flush passes records to the sinks in between.
    fn flush_before(&self, last: Option<Box<RequestRecord>>) {
        let mut judge = lock(&self.judge);
        let mut records = self.records.take_batch();
        let is_low_load = records.len() <= LOW_LOAD_MAX_RECORDS && last.is_none();
        records.extend(last);
        if records.is_empty() {
            return;
        }
        let _measurement = cpu_time::start(TelemetryPart::Records);
        let boxes = records.iter_mut().map(|record| &mut **record);
        supervise::catch_panic(BackgroundTask::RECORD_SINK, || judge.judge(boxes));
        let batch_size = if is_low_load {
            LOW_LOAD_BATCH_SIZE
        } else {
            DISPATCH_BATCH_SIZE
        };
        let references: Vec<&RequestRecord> = records.iter().map(|record| &**record).collect();
        for records in references.chunks(batch_size) {
            self.dispatch(records, is_low_load);
        }
    }

    /// Passes the records to one sink after the other. Under low load, yields after each sink. A sink that
    /// panics misses the remaining `records`, but the other sinks receive all of them.
    fn dispatch(&self, records: &[&RequestRecord], is_low_load: bool) {
        for sink in &self.sinks {
            supervise::catch_panic(BackgroundTask::RECORD_SINK, || sink.finished(records));
            if is_low_load {
                thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tokenweir_request::record::fixtures::streamed;

    /// A sink that collects the `bytes_out` of each record, which these tests use as a record number.
    #[derive(Default)]
    struct RecordNumberCollector(Mutex<Vec<u64>>);

    impl Sink for RecordNumberCollector {
        fn finished(&self, records: &[&RequestRecord]) {
            self.0
                .lock()
                .unwrap()
                .extend(records.iter().map(|record| record.bytes_out));
        }
    }

    fn numbered_record(number: u64) -> RequestRecord {
        RequestRecord {
            bytes_out: number,
            ..streamed()
        }
    }

    #[test]
    fn each_record_passes_once_in_order() {
        let numbers = Arc::new(RecordNumberCollector::default());
        let (dispatcher, guard) =
            BatchDispatcher::start(vec![numbers.clone()], AnswerJudge::default());
        (0..10_000).for_each(|number| dispatcher.enqueue(Box::new(numbered_record(number))));
        drop(guard);
        dispatcher.enqueue(Box::new(numbered_record(10_000)));
        assert!(numbers.0.lock().unwrap().iter().copied().eq(0..=10_000));
    }

    /// A sink that detects concurrent calls.
    #[derive(Default)]
    struct OverlapDetector {
        is_called: AtomicBool,
        overlaps: AtomicUsize,
    }

    impl Sink for OverlapDetector {
        fn finished(&self, _: &[&RequestRecord]) {
            if self.is_called.swap(true, Ordering::SeqCst) {
                self.overlaps.fetch_add(1, Ordering::SeqCst);
            }
            (0..20).for_each(|_| thread::yield_now());
            self.is_called.store(false, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_full_queue_calls_sinks_in_turn() {
        let detector = Arc::new(OverlapDetector::default());
        let (dispatcher, guard) =
            BatchDispatcher::start(vec![detector.clone()], AnswerJudge::default());
        // A closed queue accepts no record, and neither does a full queue.
        drop(guard);
        thread::scope(|scope| {
            for _ in 0..4 {
                let enqueue = || {
                    (0..100)
                        .for_each(|number| dispatcher.enqueue(Box::new(numbered_record(number))));
                };
                scope.spawn(enqueue);
            }
        });
        assert_eq!(detector.overlaps.load(Ordering::SeqCst), 0);
    }

    /// A sink that panics at every hundredth record.
    struct PanickingSink;

    impl Sink for PanickingSink {
        fn finished(&self, records: &[&RequestRecord]) {
            let is_hundredth = |record: &RequestRecord| record.bytes_out.is_multiple_of(100);
            assert!(
                !records.iter().copied().any(is_hundredth),
                "one in a hundred"
            );
        }
    }

    #[test]
    fn a_panic_spares_the_other_sinks() {
        let before = BackgroundTask::RECORD_SINK.panics();
        let numbers = Arc::new(RecordNumberCollector::default());
        let sinks: Vec<Arc<dyn Sink>> = vec![Arc::new(PanickingSink), numbers.clone()];
        let (dispatcher, guard) = BatchDispatcher::start(sinks, AnswerJudge::default());
        (1..=1_000).for_each(|number| dispatcher.enqueue(Box::new(numbered_record(number))));
        drop(guard);
        assert!(numbers.0.lock().unwrap().iter().copied().eq(1..=1_000));
        assert_eq!(BackgroundTask::RECORD_SINK.panics() - before, 10);
    }

    #[test]
    fn a_flush_passes_all_earlier_records() {
        let numbers = Arc::new(RecordNumberCollector::default());
        let (dispatcher, _guard) =
            BatchDispatcher::start(vec![numbers.clone()], AnswerJudge::default());
        for number in 0..200 {
            dispatcher.enqueue(Box::new(numbered_record(number)));
            dispatcher.flush();
            assert_eq!(numbers.0.lock().unwrap().last(), Some(&number));
        }
    }
}
