//! A thread that handles the items of a bounded queue in batches. Items are records, log lines or sampled
//! texts.
//!
//! A producer never waits, because a full queue returns the item. At shutdown the thread handles the remaining
//! items.

use super::cpu_time::{self, TelemetryPart};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use tokenweir_request::batch_queue::BatchQueue;

/// Guard of the thread that handles the items of a queue. Dropping the guard closes the queue and
/// waits until the thread has handled the remaining items, or until a time limit.
pub struct BatchWorkerGuard {
    close_queue: Box<dyn Fn() + Send + Sync>,
    /// A channel without messages that disconnects when the thread has dropped its handler.
    thread_ended: Receiver<()>,
    /// Maximum time for which `Drop` of this guard waits for the end of the thread.
    shutdown_timeout: Duration,
}

impl BatchWorkerGuard {
    /// Starts the thread. The thread calls `handle` for each batch, and once more after the queue was closed.
    /// `handle` must take the items from the queue and catch its own panics. Dropping the guard waits for at
    /// most `shutdown_timeout`.
    pub fn start<T: Send + 'static>(
        queue: Arc<BatchQueue<T>>,
        shutdown_timeout: Duration,
        mut handle: impl FnMut(&BatchQueue<T>) + Send + 'static,
    ) -> Self {
        let (end_sender, thread_ended) = channel();
        let thread_queue = queue.clone();
        thread::spawn(move || {
            while thread_queue.wait_for_batch() {
                cpu_time::measure(TelemetryPart::Logs, || handle(&thread_queue));
            }
            handle(&thread_queue);
            // The handler is dropped first, so that its files and processes are closed when dropping the guard
            // returns.
            drop(handle);
            drop(end_sender);
        });
        Self {
            close_queue: Box::new(move || queue.close()),
            thread_ended,
            shutdown_timeout,
        }
    }
}

impl Drop for BatchWorkerGuard {
    fn drop(&mut self) {
        (self.close_queue)();
        // The call returns an error both when the thread has ended and at the timeout.
        let _ = self.thread_ended.recv_timeout(self.shutdown_timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const LONG_LINGER: Duration = Duration::from_hours(1);

    #[test]
    fn a_drop_waits_for_remaining_items() {
        let queue = Arc::new(BatchQueue::new(LONG_LINGER, 100));
        let handled = Arc::new(Mutex::new(Vec::new()));
        let thread_handled = handled.clone();
        let worker = BatchWorkerGuard::start(queue.clone(), Duration::MAX, move |queue| {
            thread_handled.lock().unwrap().extend(queue.take_batch());
        });
        (0..50).for_each(|item| queue.push(item, 1).unwrap());
        drop(worker);
        assert!(handled.lock().unwrap().iter().copied().eq(0..50));
        assert_eq!(Arc::strong_count(&handled), 1, "the handler was dropped");
        assert_eq!(queue.push(50, 1), Err(50));
    }

    #[test]
    fn a_drop_does_not_wait_forever() {
        let (gate_sender, gate) = channel::<()>();
        let blocked = Arc::new(BatchQueue::<()>::new(LONG_LINGER, 1));
        drop(BatchWorkerGuard::start(
            blocked,
            Duration::ZERO,
            move |_| {
                let _ = gate.recv();
            },
        ));
        drop(gate_sender);
        let panicking = Arc::new(BatchQueue::<()>::new(LONG_LINGER, 1));
        drop(BatchWorkerGuard::start(panicking, Duration::MAX, |_| {
            panic!("a defect")
        }));
    }
}
