//! A queue whose consumer thread takes items in batches.
//!
//! Producers never wait. The first item wakes the consumer thread, which waits for the linger time
//! or for a full batch, and then takes all items. Waking a thread per item would cost several times
//! as much as handling most items.

use crate::clock;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A bounded queue that is drained in batches.
#[derive(Debug)]
pub struct BatchQueue<T> {
    pending: Mutex<PendingBatch<T>>,
    /// Notified when the first item arrives, when the batch becomes full, and on close.
    ready: Condvar,
    linger: Duration,
    capacity: usize,
}

/// The capacity divided by this is a full batch, for which the consumer does not linger.
const BATCH_FRACTION_OF_CAPACITY: usize = 32;

#[derive(Debug)]
struct PendingBatch<T> {
    items: Vec<T>,
    total_size: usize,
    closed_at: Option<Instant>,
}

impl<T> BatchQueue<T> {
    /// A queue with room for items of a total size of `capacity`. The consumer waits up to `linger`
    /// after the first item, or until the total size is 1/32 of `capacity`.
    pub const fn new(linger: Duration, capacity: usize) -> Self {
        let pending = PendingBatch { items: Vec::new(), total_size: 0, closed_at: None };
        Self { pending: Mutex::new(pending), ready: Condvar::new(), linger, capacity }
    }

    /// Adds an item of this size. Returns it if capacity is lacking or the queue is closed.
    pub fn push(&self, item: T, size: usize) -> Result<(), T> {
        let mut pending = self.lock_pending();
        if pending.closed_at.is_some() || pending.total_size + size > self.capacity {
            return Err(item);
        }
        pending.items.push(item);
        let was_full = self.is_batch_full(&pending);
        pending.total_size += size;
        let should_notify = pending.items.len() == 1 || was_full != self.is_batch_full(&pending);
        drop(pending);
        if should_notify {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Waits until a batch is ready. Returns whether more items can come after it.
    pub fn wait_for_batch(&self) -> bool {
        let is_empty =
            |pending: &mut PendingBatch<T>| pending.items.is_empty() && pending.closed_at.is_none();
        let pending = self.ready.wait_while(self.lock_pending(), is_empty);
        let pending = pending.unwrap_or_else(PoisonError::into_inner);
        let needs_more = |pending: &mut PendingBatch<T>| {
            pending.closed_at.is_none() && !self.is_batch_full(pending)
        };
        let batch = self.ready.wait_timeout_while(pending, self.linger, needs_more);
        batch.unwrap_or_else(PoisonError::into_inner).0.closed_at.is_none()
    }

    fn is_batch_full(&self, pending: &PendingBatch<T>) -> bool {
        pending.total_size >= (self.capacity / BATCH_FRACTION_OF_CAPACITY).max(1)
    }

    /// Takes all items in the order in which they were added.
    pub fn take_batch(&self) -> Vec<T> {
        let mut pending = self.lock_pending();
        pending.total_size = 0;
        std::mem::take(&mut pending.items)
    }

    /// Closes the queue: it accepts no further items, and waiting consumers wake up.
    pub fn close(&self) {
        self.lock_pending().closed_at.get_or_insert_with(clock::now);
        self.ready.notify_all();
    }

    /// When the queue was closed. `None`: it is open.
    pub fn closed_at(&self) -> Option<Instant> {
        self.lock_pending().closed_at
    }

    fn lock_pending(&self) -> MutexGuard<'_, PendingBatch<T>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    const LONG_LINGER: Duration = Duration::from_hours(1);

    #[test]
    fn items_are_taken_in_order_as_one_batch() {
        let queue = BatchQueue::new(Duration::ZERO, 10);
        (0..10).for_each(|number| queue.push(number, 1).unwrap());
        assert!(queue.wait_for_batch());
        assert_eq!(queue.take_batch(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(queue.take_batch().is_empty());
    }

    #[test]
    fn a_full_queue_returns_the_item_and_taking_a_batch_frees_capacity() {
        let queue = BatchQueue::new(Duration::ZERO, 10);
        assert_eq!(queue.push("large", 9), Ok(()));
        assert_eq!(queue.push("small", 2), Err("small"));
        assert_eq!(queue.take_batch(), ["large"]);
        assert_eq!(queue.push("small", 2), Ok(()));
    }

    #[test]
    fn a_full_batch_is_not_delayed() {
        let queue = Arc::new(BatchQueue::new(LONG_LINGER, 10 * BATCH_FRACTION_OF_CAPACITY));
        let thread = {
            let queue = queue.clone();
            thread::spawn(move || (queue.wait_for_batch(), queue.take_batch().len()))
        };
        (0..10).for_each(|number| queue.push(number, 1).unwrap());
        assert_eq!(thread.join().unwrap(), (true, 10));
    }

    #[test]
    fn a_closed_queue_is_drained_and_accepts_nothing() {
        let queue = Arc::new(BatchQueue::new(LONG_LINGER, 10 * BATCH_FRACTION_OF_CAPACITY));
        queue.push("before", 1).unwrap();
        let thread = {
            let queue = queue.clone();
            thread::spawn(move || (queue.wait_for_batch(), queue.take_batch()))
        };
        queue.close();
        assert_eq!(thread.join().unwrap(), (false, vec!["before"]));
        assert_eq!(queue.push("after", 1), Err("after"));
        assert!(queue.closed_at().is_some());
    }

    #[test]
    fn each_item_of_many_threads_is_taken_once() {
        let queue = BatchQueue::new(Duration::from_millis(1), 10_000);
        let mut taken = Vec::new();
        thread::scope(|scope| {
            for first in [0, 1_000, 2_000, 3_000] {
                let queue = &queue;
                let push_all =
                    move || (first..first + 1_000).all(|number| queue.push(number, 1).is_ok());
                scope.spawn(move || assert!(push_all()));
            }
            while taken.len() < 4_000 {
                assert!(queue.wait_for_batch());
                taken.extend(queue.take_batch());
            }
        });
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..4_000));
    }
}
