//! Notifies the admission queue that a backend may have free capacity. Without queued requests a
//! notification costs a fence and a load.
//!
//! The side that frees capacity updates the load counters first and reads the number of waiting
//! requests afterwards. The queue stores that number first and tries for a lease afterwards. The
//! fences enforce this order, so at least one side sees the other and no notification is lost.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use tokio::sync::Notify;

/// The notifier, shared by all backends of a pool.
#[derive(Debug, Default)]
pub struct CapacityNotifier {
    waiting_requests: AtomicUsize,
    capacity_freed: Notify,
}

impl CapacityNotifier {
    /// Wakes the queue because capacity may have become free.
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.waiting_requests() > 0 {
            self.capacity_freed.notify_one();
        }
    }

    /// Sets the number of queued requests. Call it before the last attempt to get a lease.
    pub fn set_waiting_requests(&self, waiting: usize) {
        self.waiting_requests.store(waiting, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The number of queued requests.
    pub fn waiting_requests(&self) -> usize {
        self.waiting_requests.load(Ordering::Relaxed)
    }

    /// Waits until capacity may have become free since the previous call returned.
    pub async fn wait_capacity_freed(&self) {
        self.capacity_freed.notified().await;
    }
}
