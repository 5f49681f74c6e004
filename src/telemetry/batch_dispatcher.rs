//! Passes finished requests in batches to sinks that can wait, on a thread of its own.
//!
//! A finished request then costs the worker thread only a push to a queue, and the series of a
//! metric are loaded into the CPU cache once per batch and not once per request.

use super::batch_worker::BatchWorkerGuard;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tokenweir_core::batch_queue::BatchQueue;
use tokenweir_core::observe::Sink;
use tokenweir_core::record::RequestRecord;
use tokenweir_net::supervise::{self, BackgroundTask};

/// Queues records for the dispatch thread.
pub(super) struct BatchDispatcher(Arc<BatchDispatcherState>);

/// The dispatch thread. Dropping it dispatches the remaining records and ends the thread.
pub type BatchDispatcherGuard = BatchWorkerGuard;

struct BatchDispatcherState {
    sinks: Vec<Arc<dyn Sink>>,
    /// Boxed, because a record is large and a growing vector moves its elements.
    records: Arc<BatchQueue<Box<RequestRecord>>>,
    /// Held while records are dispatched, so that they stay in order.
    dispatch_lock: Mutex<()>,
}

/// How long the first record waits for others. The metrics page flushes the queue first, so it is
/// not outdated. A shorter wait would delay one chunk in a hundred on a core that the thread shares
/// with a worker.
const BATCH_LINGER: Duration = Duration::from_millis(100);
/// Most queued records, about 16 MiB. Beyond it, the thread that ends a request dispatches its
/// record.
const MAX_QUEUED_RECORDS: usize = 8_192;
/// Records dispatched together: few enough to stay in the CPU cache.
const DISPATCH_BATCH_SIZE: usize = 32;
/// A batch with at most this many records means low load. Between parts of such a batch the thread
/// yields, so that a worker on the same core can run: since Linux 6.6 the scheduler switches to it
/// only at a yield. Under high load the thread does not yield, because it would fall behind.
const LOW_LOAD_MAX_RECORDS: usize = 64;
/// Records dispatched together under low load. A worker on the same core waits until they are done.
const LOW_LOAD_BATCH_SIZE: usize = 4;

// === impl BatchDispatcher ===

impl BatchDispatcher {
    /// Starts the dispatch thread for these sinks.
    pub(super) fn start(sinks: Vec<Arc<dyn Sink>>) -> (Self, BatchDispatcherGuard) {
        let records = Arc::new(BatchQueue::new(BATCH_LINGER, MAX_QUEUED_RECORDS));
        let dispatch_lock = Mutex::default();
        let state =
            Arc::new(BatchDispatcherState { sinks, records: records.clone(), dispatch_lock });
        let dispatcher = Self(state.clone());
        // Sinks do not block, and their panics are caught, so the thread ends.
        (dispatcher, BatchWorkerGuard::start(records, Duration::MAX, move |_| state.settle()))
    }

    /// The sinks of the dispatch thread.
    pub(super) fn sinks(&self) -> &[Arc<dyn Sink>] {
        &self.0.sinks
    }

    /// Queues a record. If the queue is full or closed, dispatches the queue and the record on this
    /// thread.
    pub(super) fn enqueue(&self, record: Box<RequestRecord>) {
        if let Err(record) = self.0.records.push(record, 1) {
            self.settle();
            self.0.dispatch(&[&record], false);
        }
    }

    /// Dispatches the queued records. All records queued before the call have been dispatched when
    /// it returns.
    pub(super) fn settle(&self) {
        self.0.settle();
    }
}

impl BatchDispatcherState {
    fn settle(&self) {
        let _dispatch_guard = self.dispatch_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let records = self.records.take_batch();
        let is_low_load = records.len() <= LOW_LOAD_MAX_RECORDS;
        let size = if is_low_load { LOW_LOAD_BATCH_SIZE } else { DISPATCH_BATCH_SIZE };
        let records: Vec<&RequestRecord> = records.iter().map(|record| &**record).collect();
        for records in records.chunks(size) {
            self.dispatch(records, is_low_load);
        }
    }

    /// Calls one sink after the other and yields in between under low load. If a sink panics, it
    /// misses the rest of these records; the other sinks get all of them.
    fn dispatch(&self, records: &[&RequestRecord], is_low_load: bool) {
        for sink in &self.sinks {
            supervise::catch_panic(BackgroundTask::RecordSink, || sink.finished(records));
            if is_low_load {
                thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::record::fixtures::streamed;
    use tokenweir_net::supervise::PanicCounts;

    /// Collects the `bytes_out` of each record. Tests use it as a record number.
    #[derive(Default)]
    struct RecordNumberCollector(Mutex<Vec<u64>>);

    impl Sink for RecordNumberCollector {
        fn finished(&self, records: &[&RequestRecord]) {
            self.0.lock().unwrap().extend(records.iter().map(|record| record.bytes_out));
        }
    }

    fn numbered_record(number: u64) -> RequestRecord {
        RequestRecord { bytes_out: number, ..streamed() }
    }

    #[test]
    fn every_record_is_dispatched_once_and_in_order_including_shutdown() {
        let numbers = Arc::new(RecordNumberCollector::default());
        let (dispatcher, guard) = BatchDispatcher::start(vec![numbers.clone()]);
        (0..10_000).for_each(|number| dispatcher.enqueue(Box::new(numbered_record(number))));
        drop(guard);
        dispatcher.enqueue(Box::new(numbered_record(10_000)));
        assert!(numbers.0.lock().unwrap().iter().copied().eq(0..=10_000));
    }

    /// Panics at every hundredth record.
    struct PanickingSink;

    impl Sink for PanickingSink {
        fn finished(&self, records: &[&RequestRecord]) {
            let is_hundredth = |record: &RequestRecord| record.bytes_out.is_multiple_of(100);
            assert!(!records.iter().copied().any(is_hundredth), "one in a hundred");
        }
    }

    #[test]
    fn panicking_sink_is_counted_and_other_sinks_get_every_record() {
        let before = PanicCounts::snapshot().for_task(BackgroundTask::RecordSink);
        let numbers = Arc::new(RecordNumberCollector::default());
        let sinks: Vec<Arc<dyn Sink>> = vec![Arc::new(PanickingSink), numbers.clone()];
        let (dispatcher, guard) = BatchDispatcher::start(sinks);
        (1..=1_000).for_each(|number| dispatcher.enqueue(Box::new(numbered_record(number))));
        drop(guard);
        assert!(numbers.0.lock().unwrap().iter().copied().eq(1..=1_000));
        assert_eq!(PanicCounts::snapshot().for_task(BackgroundTask::RecordSink) - before, 10);
    }

    #[test]
    fn flush_dispatches_all_earlier_records() {
        let numbers = Arc::new(RecordNumberCollector::default());
        let (dispatcher, _guard) = BatchDispatcher::start(vec![numbers.clone()]);
        for number in 0..200 {
            dispatcher.enqueue(Box::new(numbered_record(number)));
            dispatcher.settle();
            assert_eq!(numbers.0.lock().unwrap().last(), Some(&number));
        }
    }
}
