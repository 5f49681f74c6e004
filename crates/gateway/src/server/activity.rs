//! Records which client connections are idle. When the limit of connections is reached, the connection
//! that has been idle longest is closed, so that a new connection can be accepted.

use futures_util::task::AtomicWaker;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Instant;
use tokenweir_protocol::atomic::AtomicInstant;
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokio::sync::Notify;

/// The requests of one connection, and the signal to close it.
#[derive(Debug, Default)]
pub(crate) struct ConnectionActivity {
    open_requests: AtomicU32,
    /// Time at which a request last ended. None: the connection has not served a request.
    pub(super) last_end_at: AtomicInstant,
    /// Waker of the task that reads an HTTP/2 connection. It is woken when the last open request ends, so
    /// that the task can start the idle timeout.
    idle_waker: AtomicWaker,
    is_closing: AtomicBool,
    close: Notify,
}

/// All client connections.
#[derive(Debug, Default)]
pub(super) struct ConnectionActivities {
    /// The open connections, by the memory address of their `ConnectionActivity`.
    connections: Mutex<HashMap<usize, Arc<ConnectionActivity>>>,
    /// Number of connections that were told to close and are still open.
    closing: AtomicUsize,
}

/// Maximum number of connections that were told to close and are still open. These do not count
/// towards the limit of connections.
const MAX_CLOSING: usize = 64;

impl ConnectionActivity {
    /// Records that a request of the connection begins.
    pub(super) fn begin_request(&self) {
        self.open_requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a request of the connection has ended.
    pub(super) fn end_request(&self) {
        // Before the decrement, so that a thread that sees no open request sees this time.
        self.last_end_at.set(Some(clock::now()));
        if self.open_requests.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle_waker.wake();
        }
    }

    /// Whether the connection has an open request. If so, `waker` is woken when the last open
    /// request ends.
    pub(super) fn is_busy(&self, waker: &Waker) -> bool {
        if self.open_requests.load(Ordering::Acquire) == 0 {
            return false;
        }
        self.idle_waker.register(waker);
        self.open_requests.load(Ordering::Acquire) > 0
    }

    /// Waits until the connection is told to close.
    pub(super) async fn closed(&self) {
        self.close.notified().await;
    }

    /// Time at which the connection became idle after a request. `None`: the connection is not idle,
    /// had no request yet, or was told to close.
    fn idle_since(&self) -> Option<Instant> {
        let is_idle = self.open_requests.load(Ordering::Relaxed) == 0
            && !self.is_closing.load(Ordering::Relaxed);
        self.last_end_at.get().filter(|_| is_idle)
    }
}

impl ConnectionActivities {
    pub(super) fn add(&self) -> Arc<ConnectionActivity> {
        let activity = Arc::<ConnectionActivity>::default();
        lock(&self.connections).insert(key(&activity), activity.clone());
        activity
    }

    pub(super) fn remove(&self, activity: &Arc<ConnectionActivity>) {
        lock(&self.connections).remove(&key(activity));
        if activity.is_closing.load(Ordering::Relaxed) {
            self.closing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Number of connections that were told to close and are still open.
    pub(super) fn closing(&self) -> usize {
        self.closing.load(Ordering::Relaxed)
    }

    /// Tells the connection that has been idle longest to close. Returns `false` if no connection
    /// is idle, or if [`MAX_CLOSING`] connections are still closing.
    pub(super) fn close_longest_idle(&self) -> bool {
        if self.closing() >= MAX_CLOSING {
            return false;
        }
        let connections = lock(&self.connections);
        let idle = connections.values().filter_map(|it| Some((it.idle_since()?, it)));
        let Some((_, longest)) = idle.min_by_key(|(since, _)| *since) else { return false };
        longest.is_closing.store(true, Ordering::Relaxed);
        self.closing.fetch_add(1, Ordering::Relaxed);
        longest.close.notify_one();
        true
    }
}

fn key(activity: &Arc<ConnectionActivity>) -> usize {
    Arc::as_ptr(activity).addr()
}
