//! Notifies the admission queue that a backend may have free capacity. Without queued requests, a
//! notification costs one memory fence and one atomic load.
//!
//! The code that frees capacity first updates the load counters and then reads the number of
//! waiting requests. The queue first stores the number of waiting requests and then tries to lease
//! a backend. The memory fences enforce both orders. So either the notification sees the waiting
//! request, or the queue sees the free capacity, and no notification is lost.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use tokio::sync::Notify;

/// Notifies the admission queue that a backend may have free capacity. All backends of a pool share
/// it.
#[derive(Debug, Default)]
pub struct CapacityNotifier {
    waiting_requests: AtomicUsize,
    capacity_freed: Notify,
}

impl CapacityNotifier {
    /// Wakes the admission queue, if requests wait in it, because a backend may have capacity.
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.waiting_requests() > 0 {
            self.capacity_freed.notify_one();
        }
    }

    /// Sets the number of queued requests. After queueing a request, the queue must call this before its last
    /// attempt to lease a backend.
    pub fn set_waiting_requests(&self, waiting: usize) {
        self.waiting_requests.store(waiting, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Number of requests in the admission queue, as the queue set it last.
    pub fn waiting_requests(&self) -> usize {
        self.waiting_requests.load(Ordering::Relaxed)
    }

    /// Waits for a notification that a backend may have capacity. Returns at once if there was a
    /// notification since the previous call returned.
    pub async fn wait_capacity_freed(&self) {
        self.capacity_freed.notified().await;
    }
}
