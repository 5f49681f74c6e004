//! Ends responses whose clients do not read them.
//!
//! The HTTP server does not poll a response body while its client reads nothing, so the body cannot
//! detect this itself. The task that writes the response holds the [`ResponseAbortHandle`] of the
//! response and is woken when the handle is triggered.

use super::open_table::{OpenTable, TableEntry};
use futures_util::task::AtomicWaker;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The abort handle of one response, or of all responses of a connection. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct ResponseAbortHandle(Arc<AbortState>);

#[derive(Debug, Default)]
struct AbortState {
    is_aborted: AtomicBool,
    waker: AtomicWaker,
    /// The abort handle of the connection that carries this stream. `None`: this handle is the handle
    /// of a connection.
    connection: Option<ResponseAbortHandle>,
    /// Origin of `last_write_nanos`. `None`: writes are not timed.
    epoch: Option<Instant>,
    /// Nanoseconds from `epoch` to the last write to the client. 0: no write is pending.
    last_write_nanos: AtomicU64,
}

/// The abort handles of all streams on connections that carry several streams (HTTP/2).
#[derive(Debug)]
pub struct AbortRegistry {
    epoch: Instant,
    handles: Arc<OpenTable<ResponseAbortHandle>>,
}

/// The abort handle of a stream that is registered in [`AbortRegistry`] until it is dropped.
#[derive(Debug)]
pub struct RegisteredAbortHandle(TableEntry<ResponseAbortHandle>);

// === impl ResponseAbortHandle ===

impl ResponseAbortHandle {
    /// Aborts the response and wakes its task.
    pub fn abort(&self) {
        self.0.is_aborted.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    /// Whether this handle or the handle of its connection was triggered.
    pub fn is_aborted(&self) -> bool {
        let AbortState { is_aborted, connection, .. } = &*self.0;
        is_aborted.load(Ordering::Acquire) || connection.as_ref().is_some_and(Self::is_aborted)
    }

    /// Whether this handle or the handle of its connection was triggered. Also registers `waker`, which
    /// [`ResponseAbortHandle::abort`] of this handle wakes.
    pub fn register_and_check_abort(&self, waker: &Waker) -> bool {
        self.0.waker.register(waker);
        self.is_aborted()
    }

    /// Records that data was handed to the client's connection: the write timeout runs from `now`.
    pub fn on_write(&self, now: Instant) {
        if let Some(epoch) = self.0.epoch {
            let nanos = now.saturating_duration_since(epoch).as_nanos() as u64;
            self.0.last_write_nanos.store(nanos.max(1), Ordering::Relaxed);
        }
    }

    /// Records that the client's connection asks for more data: the write timeout stops.
    pub fn on_drained(&self) {
        if self.0.epoch.is_some() {
            self.0.last_write_nanos.store(0, Ordering::Relaxed);
        }
    }

    fn write_pending_for(&self, now: Instant) -> Option<Duration> {
        let last_write = self.0.last_write_nanos.load(Ordering::Relaxed);
        let epoch = self.0.epoch.filter(|_| last_write > 0)?;
        Some(now.saturating_duration_since(epoch + Duration::from_nanos(last_write)))
    }
}

// === impl AbortRegistry ===

impl AbortRegistry {
    /// An empty registry. `epoch` is the origin of its times.
    pub fn new(epoch: Instant) -> Arc<Self> {
        Arc::new(Self { epoch, handles: Arc::default() })
    }

    /// Registers the abort handle of a stream on the connection with the handle `connection`.
    pub fn stream(&self, connection: &ResponseAbortHandle) -> RegisteredAbortHandle {
        let connection = Some(connection.clone());
        let state = AbortState { connection, epoch: Some(self.epoch), ..AbortState::default() };
        RegisteredAbortHandle(self.handles.insert(ResponseAbortHandle(Arc::new(state))))
    }

    /// Aborts every stream whose last write has been pending for `limit` or longer.
    pub fn sweep(&self, now: Instant, limit: Duration) {
        for (_, handle) in self.handles.values() {
            if handle.write_pending_for(now).is_some_and(|time| time >= limit) {
                handle.abort();
            }
        }
    }
}

impl RegisteredAbortHandle {
    /// The abort handle of the stream.
    pub fn handle(&self) -> &ResponseAbortHandle {
        self.0.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    const WRITE_TIMEOUT: Duration = Duration::from_mins(1);

    #[test]
    fn a_stream_is_aborted_when_its_client_reads_nothing_for_the_timeout() {
        let epoch = clock::now();
        let registry = AbortRegistry::new(epoch);
        let [slow, fast, waiting] =
            [(); 3].map(|()| registry.stream(&ResponseAbortHandle::default()));
        let written_at = epoch + Duration::from_secs(5);
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
        let stream = AbortRegistry::new(clock::now()).stream(&connection);
        // A connection has no write times: the server checks its socket instead.
        connection.on_write(clock::now());
        assert!(!stream.handle().is_aborted());
        connection.abort();
        assert!(stream.handle().is_aborted());
    }
}
