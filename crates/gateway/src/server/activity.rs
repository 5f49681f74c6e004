//! Records which client connections have no open request. When the limit of connections is reached, the gateway
//! closes one of these to accept a new connection.

use futures_util::task::AtomicWaker;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::{AtomicCount, AtomicFlag, AtomicInstant};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokio::sync::Notify;

/// The requests of one connection, and the signal to close it.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    opened_at: Instant,
    open_requests: AtomicU32,
    /// Time at which a request last ended. `None`: the connection has served no request.
    pub(super) last_end_at: AtomicInstant,
    /// Waker of the task that reads an HTTP/2 connection. The end of the last open request wakes the task,
    /// which then starts the idle timeout.
    idle_waker: AtomicWaker,
    is_closing: AtomicFlag,
    close: Notify,
}

#[derive(Debug, Default)]
pub(super) struct ConnectionActivities {
    /// The open connections, by the memory address of their `ConnectionActivity`.
    connections: Mutex<HashMap<usize, Arc<ConnectionActivity>>>,
    /// Number of connections that were told to close but are still open.
    closing: AtomicCount,
}

/// The state of a connection that can be closed for a new one. The lowest value is closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Closable {
    /// No complete request head has arrived since the connection was opened.
    WithoutRequestSince(Instant),
    /// The last request ended at this time.
    IdleSince(Instant),
}

/// Minimum age at which a connection without a complete request head may be closed for a new one. So clients
/// that connect at the same moment do not replace each other.
pub(super) const MIN_HEAD_TIME: Duration = Duration::from_millis(100);
/// Maximum number of connections that were told to close but are still open. They do not count towards the
/// limit of connections.
const MAX_CLOSING: usize = 64;

impl ConnectionActivity {
    fn new(opened_at: Instant) -> Self {
        Self {
            opened_at,
            open_requests: AtomicU32::new(0),
            last_end_at: AtomicInstant::default(),
            idle_waker: AtomicWaker::new(),
            is_closing: AtomicFlag::default(),
            close: Notify::new(),
        }
    }

    pub(super) fn begin_request(&self) {
        self.open_requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_request(&self) {
        // Stored before the decrement, so that a thread that sees no open request also sees this time.
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

    pub(super) fn has_had_request(&self) -> bool {
        self.open_requests.load(Ordering::Acquire) > 0 || self.last_end_at.get().is_some()
    }

    /// When the connection may be closed for a new one. `None`: it has an open request, is too young, or was
    /// already told to close.
    fn closable(&self, now: Instant) -> Option<Closable> {
        if self.open_requests.load(Ordering::Acquire) > 0 || self.is_closing.get() {
            return None;
        }
        match self.last_end_at.get() {
            Some(ended_at) => Some(Closable::IdleSince(ended_at)),
            None if now.saturating_duration_since(self.opened_at) < MIN_HEAD_TIME => None,
            None => Some(Closable::WithoutRequestSince(self.opened_at)),
        }
    }
}

impl ConnectionActivities {
    pub(super) fn add(&self) -> Arc<ConnectionActivity> {
        let activity = Arc::new(ConnectionActivity::new(clock::now()));
        lock(&self.connections).insert(key(&activity), activity.clone());
        activity
    }

    pub(super) fn remove(&self, activity: &Arc<ConnectionActivity>) {
        lock(&self.connections).remove(&key(activity));
        if activity.is_closing.get() {
            self.closing.sub(1);
        }
    }

    /// Number of connections that were told to close but are still open.
    pub(super) fn closing(&self) -> usize {
        self.closing.get()
    }

    /// Tells one connection to close: the oldest without a complete request head or, if there is none, the one
    /// idle for the longest time. Returns `false` if there is no such connection, or if [`MAX_CLOSING`]
    /// connections are still closing.
    pub(super) fn close_one(&self) -> bool {
        if self.closing() >= MAX_CLOSING {
            return false;
        }
        let now = clock::now();
        let connections = lock(&self.connections);
        let closable = connections
            .values()
            .filter_map(|it| Some((it.closable(now)?, it)));
        let Some((_, connection)) = closable.min_by_key(|(worth, _)| *worth) else {
            return false;
        };
        connection.is_closing.set(true);
        self.closing.add(1);
        connection.close.notify_one();
        true
    }
}

fn key(activity: &Arc<ConnectionActivity>) -> usize {
    Arc::as_ptr(activity).addr()
}
