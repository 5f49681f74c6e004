//! Tells finished requests a little later and together, on a thread of its own: to those who need
//! not know at once. A request that has ended costs a push where the bytes flow; and the series of
//! a metric are fetched into the CPU's cache once for many requests instead of once for each.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokenweir_core::gather::Gatherer;
use tokenweir_core::observe::Sink;
use tokenweir_core::record::RequestRecord;
use tokenweir_net::supervise::{self, Task};

/// Takes records and tells them.
pub(super) struct Teller(Arc<Shared>);

/// The thread that tells. Dropping it tells what is left.
pub struct Telling {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    sinks: Vec<Arc<dyn Sink>>,
    /// Boxed, because a record is large, and vectors that grow move what they hold.
    records: Gatherer<Box<RequestRecord>>,
    /// Held while records are told, so that they are told in their order.
    telling: Mutex<()>,
}

/// How long the first record waits for others: whoever reads a page settles first. A thread that
/// wakes more often holds up one chunk in a hundred where it shares its core with a worker.
const TOGETHER: Duration = Duration::from_millis(100);
/// Records that wait at most: about 16 MiB. Then whoever ends a request tells it.
const MOST: usize = 8_192;
/// Records that are told together: few enough to stay in the CPU's cache.
const AT_ONCE: usize = 32;
/// Records that a calm gateway has at most. There is no hurry then, and a worker that has something to do
/// on this core goes between, which the scheduler of Linux 6.6 and later allows only if it is asked. A
/// busy gateway would not get to tell them.
const CALM: usize = 64;
/// Records that are told together in a calm one: what a worker waits for.
const FEW: usize = 4;

// === impl Teller ===

impl Teller {
    /// Starts the thread that tells these sinks.
    pub(super) fn start(sinks: Vec<Arc<dyn Sink>>) -> (Self, Telling) {
        let records = Gatherer::new(TOGETHER, MOST);
        let shared = Arc::new(Shared { sinks, records, telling: Mutex::default() });
        let of_thread = shared.clone();
        let thread = Some(thread::spawn(move || of_thread.run()));
        (Self(shared.clone()), Telling { shared, thread })
    }

    /// Those that are told.
    pub(super) fn sinks(&self) -> &[Arc<dyn Sink>] {
        &self.0.sinks
    }

    /// Takes a record, to tell it soon.
    pub(super) fn take(&self, record: Box<RequestRecord>) {
        if let Err(record) = self.0.records.give(record, 1) {
            self.settle();
            self.0.tell(&[record], false);
        }
    }

    /// Tells what waits. What was taken before has been told when it returns.
    pub(super) fn settle(&self) {
        self.0.settle();
    }
}

impl Shared {
    fn run(&self) {
        while self.records.wait() {
            self.settle();
        }
        self.settle();
    }

    fn settle(&self) {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let records = self.records.take();
        let is_calm = records.len() <= CALM;
        for records in records.chunks(if is_calm { FEW } else { AT_ONCE }) {
            self.tell(records, is_calm);
        }
    }

    /// Tells one sink after the other, and lets other threads in between if there is no hurry. A
    /// sink that panics loses the rest of these records; the other sinks get all of them.
    fn tell(&self, records: &[Box<RequestRecord>], is_calm: bool) {
        for sink in &self.sinks {
            supervise::catch(Task::RecordSink, || sink.finished_all(records));
            if is_calm {
                thread::yield_now();
            }
        }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.shared.records.end();
        // Sinks do not block and their panics are caught, so it ends.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::record::sample::streamed;
    use tokenweir_net::supervise::Panics;

    /// Remembers the bytes of each record, which tests number.
    #[derive(Default)]
    struct Numbers(Mutex<Vec<u64>>);

    impl Sink for Numbers {
        fn finished(&self, record: &RequestRecord) {
            self.0.lock().unwrap().push(record.bytes_out);
        }
    }

    fn record(number: u64) -> RequestRecord {
        RequestRecord { bytes_out: number, ..streamed() }
    }

    #[test]
    fn every_record_is_told_once_and_in_order_and_none_is_lost_at_the_end() {
        let numbers = Arc::new(Numbers::default());
        let (teller, telling) = Teller::start(vec![numbers.clone()]);
        (0..10_000).for_each(|number| teller.take(Box::new(record(number))));
        drop(telling);
        teller.take(Box::new(record(10_000)));
        assert!(numbers.0.lock().unwrap().iter().copied().eq(0..=10_000));
    }

    /// Panics at some records.
    struct Panicking;

    impl Sink for Panicking {
        fn finished(&self, record: &RequestRecord) {
            assert!(!record.bytes_out.is_multiple_of(100), "one in a hundred");
        }
    }

    #[test]
    fn a_sink_that_panics_is_counted_and_the_others_get_every_record() {
        let before = Panics::now().of(Task::RecordSink);
        let numbers = Arc::new(Numbers::default());
        let (teller, telling) = Teller::start(vec![Arc::new(Panicking), numbers.clone()]);
        (1..=1_000).for_each(|number| teller.take(Box::new(record(number))));
        drop(telling);
        assert!(numbers.0.lock().unwrap().iter().copied().eq(1..=1_000));
        assert_eq!(Panics::now().of(Task::RecordSink) - before, 10);
    }

    #[test]
    fn whoever_asks_sees_what_has_ended_before() {
        let numbers = Arc::new(Numbers::default());
        let (teller, _telling) = Teller::start(vec![numbers.clone()]);
        for number in 0..200 {
            teller.take(Box::new(record(number)));
            teller.settle();
            assert_eq!(numbers.0.lock().unwrap().last(), Some(&number));
        }
    }
}
