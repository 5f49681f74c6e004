//! Ends responses whose clients do not read them.
//!
//! While its client reads nothing, the HTTP server does not poll a response body, so the body cannot detect
//! this itself. The task that writes the response holds its [`ResponseAbortHandle`] and is woken when the
//! handle is triggered.

use super::open_table::{OpenTable, TableEntry};
use futures_util::task::AtomicWaker;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::AtomicInstant;

/// The abort handle of one response, or of all responses of a connection. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct ResponseAbortHandle(Arc<AbortState>);

#[derive(Debug, Default)]
struct AbortState {
    is_aborted: AtomicBool,
    waker: AtomicWaker,
    /// The abort handle of the connection that carries this stream. `None`: this handle is the handle
    /// of a connection, whose writes are not timed.
    connection: Option<ResponseAbortHandle>,
    /// The time of the last write to the client. `None`: no write is pending.
    last_write_at: AtomicInstant,
}

/// The abort handles of all streams on connections that carry several streams (HTTP/2).
#[derive(Debug, Default)]
pub struct AbortRegistry {
    handles: Arc<OpenTable<ResponseAbortHandle>>,
}

/// The abort handle of a stream. It is registered in [`AbortRegistry`] until it is dropped.
#[derive(Debug)]
pub struct RegisteredAbortHandle(TableEntry<ResponseAbortHandle>);

impl ResponseAbortHandle {
    /// Aborts the response and wakes its task.
    pub fn abort(&self) {
        self.0.is_aborted.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    /// Whether this handle or the handle of its connection was triggered.
    pub fn is_aborted(&self) -> bool {
        let AbortState {
            is_aborted,
            connection,
            ..
        } = &*self.0;
        is_aborted.load(Ordering::Acquire) || connection.as_ref().is_some_and(Self::is_aborted)
    }

    /// Whether this handle or the handle of its connection was triggered. Also registers `waker` to be woken by
    /// [`ResponseAbortHandle::abort`] of this handle.
    pub fn register_and_check_abort(&self, waker: &Waker) -> bool {
        self.0.waker.register(waker);
        self.is_aborted()
    }

    /// Records that data was handed to the client's connection. The write timeout runs from `now`.
    pub fn on_write(&self, now: Instant) {
        if self.0.connection.is_some() {
            self.0.last_write_at.set(Some(now));
        }
    }

    /// Records that the client's connection asks for more data. The write timeout stops.
    pub fn on_drained(&self) {
        if self.0.connection.is_some() {
            self.0.last_write_at.set(None);
        }
    }

    fn write_pending_for(&self, now: Instant) -> Option<Duration> {
        self.0
            .last_write_at
            .get()
            .map(|last_write| now.saturating_duration_since(last_write))
    }
}

impl AbortRegistry {
    /// Registers the abort handle of a stream on the connection with the handle `connection`.
    pub fn stream(&self, connection: &ResponseAbortHandle) -> RegisteredAbortHandle {
        let connection = Some(connection.clone());
        let state = AbortState {
            connection,
            ..AbortState::default()
        };
        RegisteredAbortHandle(self.handles.insert(ResponseAbortHandle(Arc::new(state))))
    }

    /// Aborts every stream whose last write has been pending for `limit` or longer.
    pub fn sweep(&self, now: Instant, limit: Duration) {
        for (_, handle) in self.handles.values() {
            if handle
                .write_pending_for(now)
                .is_some_and(|time| time >= limit)
            {
                handle.abort();
            }
        }
    }
}

impl RegisteredAbortHandle {
    /// The handle that the response of the stream registers.
    pub fn handle(&self) -> &ResponseAbortHandle {
        &self.0.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    const WRITE_TIMEOUT: Duration = Duration::from_mins(1);

    #[test]
    fn unread_streams_are_aborted_after_the_timeout() {
        let registry = AbortRegistry::default();
        let [slow, fast, waiting] =
            [(); 3].map(|()| registry.stream(&ResponseAbortHandle::default()));
        let written_at = clock::now();
        slow.handle().on_write(written_at);
        fast.handle().on_write(written_at);
        fast.handle().on_drained();
        registry.sweep(written_at + (WRITE_TIMEOUT / 2), WRITE_TIMEOUT);
        assert!(!slow.handle().is_aborted());
        registry.sweep(written_at + WRITE_TIMEOUT, WRITE_TIMEOUT);
        let aborted = [&slow, &fast, &waiting].map(|stream| stream.handle().is_aborted());
        assert_eq!(aborted, [true, false, false]);
        drop((slow, fast, waiting));
        assert!(registry.handles.values().is_empty());
    }

    #[test]
    fn aborting_a_connection_aborts_its_streams() {
        let connection = ResponseAbortHandle::default();
        let stream = AbortRegistry::default().stream(&connection);
        // A connection has no write times, because the server checks its socket instead.
        connection.on_write(clock::now());
        assert!(!stream.handle().is_aborted());
        connection.abort();
        assert!(stream.handle().is_aborted());
    }
}
