//! Timeouts for slow clients: a wrapper of the client connection with a write timeout, and the
//! timer type that the write timeout and the read timeouts of HTTP/1.1 and HTTP/2 use.
//!
//! A timer is created only when the connection waits for the client. A connection whose client
//! reads without delay has no timer.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_request::observe::ResponseAbortHandle;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The byte stream of a client connection with a write timeout. Writes fail with
/// [`io::ErrorKind::TimedOut`] when the client reads nothing for `timeout` while bytes wait to be
/// written or flushed.
pub(super) struct WriteTimeoutStream<S> {
    stream: S,
    timeout: Duration,
    /// Aborts the open responses of the connection when the timeout expires, so that their records
    /// show the write timeout.
    abort_handle: ResponseAbortHandle,
    timer: KeyedTimer<WriteOperation>,
}

/// A timer for one wait at a time. The key `K` identifies the wait: the timeout counts from the
/// first call of [`KeyedTimer::has_elapsed`] with a new key. To save work, a new wait with a later
/// deadline does not reset the Tokio timer at once, but only when the timer fires too early.
pub(super) struct KeyedTimer<K> {
    /// The Tokio timer. `None` before the first wait.
    sleep: Option<Pin<Box<Sleep>>>,
    /// The key and the deadline of the current wait. `None`: nothing waits.
    pending: Option<(K, Instant)>,
}

/// The kind of write operation that waits for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteOperation {
    /// The connection accepts no more bytes.
    Write,
    /// The connection accepted bytes that it has not sent yet.
    Flush,
}

// === impl KeyedTimer ===

impl<K: PartialEq> KeyedTimer<K> {
    pub(super) const fn new() -> Self {
        Self { sleep: None, pending: None }
    }

    /// Whether the wait for `key` has lasted for `limit` or longer. If not, the task of `cx` is
    /// woken when it has. A key that differs from the key of the previous call starts a new wait.
    pub(super) fn has_elapsed(&mut self, key: K, limit: Duration, cx: &mut Context<'_>) -> bool {
        let deadline = match &self.pending {
            Some((awaited, deadline)) if *awaited == key => *deadline,
            _ => clock::now() + limit,
        };
        self.pending = Some((key, deadline));
        let deadline = deadline.into();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if deadline <= sleep.deadline() {
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }

    /// The key of the current wait. `None`: nothing waits.
    fn pending_key(&self) -> Option<&K> {
        self.pending.as_ref().map(|(key, _)| key)
    }

    /// Cancels the current wait, so that it cannot time out. The next wait uses the same Tokio timer.
    pub(super) fn clear(&mut self) {
        self.pending = None;
    }
}

// === impl WriteTimeoutStream ===

impl<S> WriteTimeoutStream<S> {
    pub(super) fn new(stream: S, timeout: Duration, abort_handle: ResponseAbortHandle) -> Self {
        Self { stream, timeout, abort_handle, timer: KeyedTimer::new() }
    }

    /// Applies the timeout to the result of a write operation. A completed write ends the wait. A
    /// completed flush ends the wait only if the wait is for a flush, because a flush without
    /// pending bytes always completes. A pending operation fails when the wait exceeds the timeout.
    fn apply_timeout<T>(
        &mut self,
        operation: WriteOperation,
        polled: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            if operation == WriteOperation::Write || self.timer.pending_key() == Some(&operation) {
                self.timer.clear();
            }
            return polled;
        }
        let operation = self.timer.pending_key().copied().unwrap_or(operation);
        if self.timer.has_elapsed(operation, self.timeout, cx) {
            self.abort_handle.abort();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.apply_timeout(WriteOperation::Write, polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.apply_timeout(WriteOperation::Write, polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.apply_timeout(WriteOperation::Flush, polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.apply_timeout(WriteOperation::Flush, polled, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    const WRITE_TIMEOUT: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn write_timeout_closes_the_connection_and_aborts_responses() {
        let (gateway_side, _client_side) = duplex(4);
        let abort_handle = ResponseAbortHandle::default();
        let mut stream = WriteTimeoutStream::new(gateway_side, WRITE_TIMEOUT, abort_handle.clone());
        let start = clock::now();
        let error = stream.write_all(b"12345").await.unwrap_err();
        let elapsed = clock::now().duration_since(start);
        assert_eq!((error.kind(), elapsed), (io::ErrorKind::TimedOut, WRITE_TIMEOUT));
        assert!(abort_handle.is_aborted());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reads_do_not_trigger_the_write_timeout() {
        let (gateway_side, mut client_side) = duplex(1);
        let abort_handle = ResponseAbortHandle::default();
        let mut stream = WriteTimeoutStream::new(gateway_side, WRITE_TIMEOUT, abort_handle.clone());
        let client_task = tokio::spawn(async move {
            let mut received = Vec::new();
            for _ in 0..5 {
                tokio::time::sleep(WRITE_TIMEOUT / 2).await;
                received.push(client_side.read_u8().await.unwrap());
            }
            received
        });
        stream.write_all(b"12345").await.unwrap();
        assert_eq!(client_task.await.unwrap(), b"12345");
        assert!(!abort_handle.is_aborted());
    }
}
