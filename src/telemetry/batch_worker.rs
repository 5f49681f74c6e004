//! A thread that handles the items of a bounded queue in batches: records, log lines, payloads and
//! quality samples.
//!
//! A producer never waits: what does not fit into the queue comes back to it. At shutdown the thread
//! handles the remaining items.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use tokenweir_core::batch_queue::BatchQueue;

/// The thread of a queue. Dropping it closes the queue and waits until the thread has handled the
/// remaining items.
pub struct BatchWorkerGuard {
    close: Box<dyn Fn() + Send + Sync>,
    /// Disconnected when the thread has dropped its handler.
    ended: Receiver<()>,
    max_shutdown: Duration,
}

impl BatchWorkerGuard {
    /// Starts the thread. It calls `handle` for each batch, and once more after the queue was
    /// closed. `handle` takes the items from the queue and catches the panics of its work. The drop
    /// waits for `max_shutdown` at most.
    pub(crate) fn start<T: Send + 'static>(
        queue: Arc<BatchQueue<T>>,
        max_shutdown: Duration,
        mut handle: impl FnMut(&BatchQueue<T>) + Send + 'static,
    ) -> Self {
        let (end_sender, ended) = channel();
        let thread_queue = queue.clone();
        thread::spawn(move || {
            while thread_queue.wait_for_batch() {
                handle(&thread_queue);
            }
            handle(&thread_queue);
            // Its files and processes are closed before the wait ends.
            drop(handle);
            drop(end_sender);
        });
        Self { close: Box::new(move || queue.close()), ended, max_shutdown }
    }
}

impl Drop for BatchWorkerGuard {
    fn drop(&mut self) {
        (self.close)();
        // Fails when the thread has ended, and after the limit.
        let _ = self.ended.recv_timeout(self.max_shutdown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const LINGER: Duration = Duration::from_hours(1);

    #[test]
    fn the_remaining_items_are_handled_before_the_drop_returns() {
        let queue = Arc::new(BatchQueue::new(LINGER, 100));
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
    fn the_drop_does_not_wait_for_a_thread_that_is_blocked_or_has_panicked() {
        let (gate_sender, gate) = channel::<()>();
        let blocked = Arc::new(BatchQueue::<()>::new(LINGER, 1));
        drop(BatchWorkerGuard::start(blocked, Duration::ZERO, move |_| {
            let _ = gate.recv();
        }));
        drop(gate_sender);
        let panicking = Arc::new(BatchQueue::<()>::new(LINGER, 1));
        drop(BatchWorkerGuard::start(panicking, Duration::MAX, |_| panic!("a defect")));
    }
}
