//! A queue whose consumer thread takes items in batches.
//!
//! Producers never wait. The first item wakes the consumer thread. The thread waits until the linger time is
//! over or a batch is full, and then takes all items. Waking a thread for each item would cost several times as
//! much as processing most items.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokenweir_protocol::mutex::lock;

/// A bounded queue whose consumer takes all items at once.
#[derive(Debug)]
pub struct BatchQueue<T> {
    /// The items that the consumer has not taken yet.
    pending: Mutex<PendingBatch<T>>,
    /// Notified when the first item arrives, when the batch becomes full, and on close.
    ready: Condvar,
    /// Maximum time for which the consumer waits for further items after the first item.
    linger: Duration,
    /// Maximum total size of the items in the queue, in the unit of [`BatchQueue::push`].
    capacity: usize,
}

/// Number of full batches that fit into a queue. The consumer takes a full batch before the linger time is
/// over.
const FULL_BATCHES_PER_CAPACITY: usize = 32;

#[derive(Debug)]
struct PendingBatch<T> {
    items: Vec<T>,
    /// Sum of the sizes of `items`, as the producers stated them.
    total_size: usize,
    is_closed: bool,
}

impl<T> BatchQueue<T> {
    /// A queue for items with a total size of at most `capacity`. The consumer waits for up to
    /// `linger` after the first item, or until the total size is 1/32 of `capacity`.
    pub const fn new(linger: Duration, capacity: usize) -> Self {
        let pending = PendingBatch {
            items: Vec::new(),
            total_size: 0,
            is_closed: false,
        };
        Self {
            pending: Mutex::new(pending),
            ready: Condvar::new(),
            linger,
            capacity,
        }
    }

    /// Adds an item of this size, in the unit of the capacity. Returns the item as an error if the queue is
    /// closed or lacks the capacity.
    pub fn push(&self, item: T, size: usize) -> Result<(), T> {
        let mut pending = lock(&self.pending);
        if pending.is_closed || pending.total_size + size > self.capacity {
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

    /// Waits until a batch is ready or the queue is closed. `true`: a batch is ready, and further items can
    /// follow. `false`: the queue is closed, and its remaining items, possibly none, are the last batch.
    pub fn wait_for_batch(&self) -> bool {
        let should_wait_for_item =
            |pending: &mut PendingBatch<T>| pending.items.is_empty() && !pending.is_closed;
        let pending = self
            .ready
            .wait_while(lock(&self.pending), should_wait_for_item);
        let pending = pending.unwrap_or_else(PoisonError::into_inner);
        let should_wait_for_more =
            |pending: &mut PendingBatch<T>| !pending.is_closed && !self.is_batch_full(pending);
        let batch = self
            .ready
            .wait_timeout_while(pending, self.linger, should_wait_for_more);
        !batch.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    fn is_batch_full(&self, pending: &PendingBatch<T>) -> bool {
        pending.total_size >= (self.capacity / FULL_BATCHES_PER_CAPACITY).max(1)
    }

    /// Takes all items in order of arrival.
    pub fn take_batch(&self) -> Vec<T> {
        let mut pending = lock(&self.pending);
        pending.total_size = 0;
        std::mem::take(&mut pending.items)
    }

    /// Closes the queue: it accepts no further items, and waiting consumers wake up.
    pub fn close(&self) {
        lock(&self.pending).is_closed = true;
        self.ready.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const LONG_LINGER: Duration = Duration::from_hours(1);

    #[test]
    fn a_full_queue_rejects_items() {
        let queue = BatchQueue::new(Duration::ZERO, 10);
        assert_eq!(queue.push("large", 9), Ok(()));
        assert_eq!(queue.push("small", 2), Err("small"));
        assert_eq!(queue.take_batch(), ["large"]);
        assert_eq!(queue.push("small", 2), Ok(()));
    }

    #[test]
    fn a_full_batch_does_not_linger() {
        let queue = BatchQueue::new(LONG_LINGER, 10 * FULL_BATCHES_PER_CAPACITY);
        thread::scope(|scope| {
            let taken = scope.spawn(|| (queue.wait_for_batch(), queue.take_batch().len()));
            (0..10).for_each(|number| queue.push(number, 1).unwrap());
            assert_eq!(taken.join().unwrap(), (true, 10));
        });
    }

    #[test]
    fn concurrent_items_are_taken_once() {
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
